"""ServerNotes: what was noticed about a server, one line each, for the findings of the record that is being made.

What was noted before the first lab is true of the server and told with every record; the rest belongs to the lab that met it.
"""

from __future__ import annotations

import threading

MAX_EXAMPLES = 5  # requests named; the others are only counted


class ServerNotes:
    """Collects notes; the same one twice is one. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: dict[str, None] = {}
        self._constant: tuple[str, ...] = ()
        self._disagreements: list[str] = []
        self._num_disagreements = self._num_shared = 0

    def add(self, note: str) -> None:
        with self._lock:
            self._notes[note] = None

    def disagreement(self, number: int, usage: int, counted: int) -> None:
        """The reply of the run's request of that number says another number than the counters."""
        with self._lock:
            self._num_disagreements += 1
            if len(self._disagreements) < MAX_EXAMPLES:
                self._disagreements.append(f"request {number}: usage {usage:,}, counters {counted:,}")

    def shared(self) -> None:
        """The counters grew by more than was sent."""
        with self._lock:
            self._num_shared += 1

    def keep(self) -> None:
        """What was added until now holds for every lab of the run."""
        with self._lock:
            self._constant = tuple(self._notes)

    def take(self) -> tuple[str, ...]:
        """What holds for every lab, and what was noticed since the last call."""
        with self._lock:
            found = self._lines()
            self._notes = dict.fromkeys(self._constant)
            self._disagreements = []
            self._num_disagreements = self._num_shared = 0
            return found

    def _lines(self) -> tuple[str, ...]:
        found = list(self._notes)
        if self._num_disagreements:
            examples = "; ".join(self._disagreements)
            more = self._num_disagreements - len(self._disagreements)
            found.append(
                f"two witnesses disagree about cached tokens in {self._num_disagreements:,} request"
                f"{'' if self._num_disagreements == 1 else 's'}: {examples}{f'; and {more:,} more' if more else ''}"
            )
        if self._num_shared:
            found.append(
                f"others use this server: {self._num_shared:,} times its counters grew by more than was sent, and were "
                "left out; their traffic can evict what was cached"
            )
        return tuple(found)
