"""ServerNotes: what was noticed about a server, one line each, for the findings of the record that is being made.

What was noted before the first lab is true of the server and told with every record; the rest belongs to the lab that met it.
"""

from __future__ import annotations

import statistics
import threading

MAX_EXAMPLES = 5  # requests named; the others are only counted


class ServerNotes:
    """Collects notes; the same one twice is one. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: dict[str, None] = {}
        self._constant: tuple[str, ...] = ()
        self._disagreements: list[str] = []
        self._num_disagreements = 0
        self._surplus: list[float] = []  # how many times what was sent the counters grew by, where anything was
        self._num_shared = self._num_silent = self._num_unheard = self._num_lost = self._num_impossible = 0
        self._num_falls = 0

    def add(self, note: str) -> None:
        with self._lock:
            self._notes[note] = None

    def disagreement(self, number: int, usage: int, counted: int) -> None:
        """The reply of the run's request of that number says another number than the counters."""
        with self._lock:
            self._num_disagreements += 1
            if len(self._disagreements) < MAX_EXAMPLES:
                self._disagreements.append(f"request {number}: usage {usage:,}, counters {counted:,}")

    def shared(self, num_counted: int, num_sent: int) -> None:
        """The counters of lookups grew by more than was sent."""
        with self._lock:
            self._num_shared += 1
            if num_sent:
                self._surplus.append(num_counted / num_sent)

    def impossible(self) -> None:
        """The counters grew by more hits than lookups."""
        with self._lock:
            self._num_impossible += 1

    def fell(self) -> None:
        """A counter was lower than before."""
        with self._lock:
            self._num_falls += 1

    def silent(self, usage: int | None) -> None:
        """The counters did not move for a request, whose reply reports so many cached tokens."""
        with self._lock:
            self._num_silent += 1
            self._num_unheard += usage or 0

    def lost(self, num_tokens: int) -> None:
        """So many tokens of a series were not counted where the counters were read."""
        with self._lock:
            self._num_lost += num_tokens

    def keep(self) -> None:
        """What was added until now holds for every lab of the run."""
        with self._lock:
            self._constant = tuple(self._notes)

    def take(self) -> tuple[str, ...]:
        """What holds for every lab, and what was noticed since the last call."""
        with self._lock:
            found = self._lines()
            self._notes = dict.fromkeys(self._constant)
            self._disagreements, self._surplus = [], []
            self._num_falls = 0
            self._num_disagreements = self._num_shared = 0
            self._num_silent = self._num_unheard = self._num_lost = self._num_impossible = 0
            return found

    def _lines(self) -> tuple[str, ...]:
        found = list(self._notes)
        if self._num_disagreements:
            examples = "; ".join(self._disagreements)
            more = self._num_disagreements - len(self._disagreements)
            found.append(
                f"two witnesses disagree about cached tokens in {_requests(self._num_disagreements)}: {examples}"
                f"{f'; and {more:,} more' if more else ''}"
            )
        if self._num_silent:
            unheard = f", whose replies report {self._num_unheard:,} cached tokens" if self._num_unheard else ""
            found.append(
                f"the counters did not move for {_requests(self._num_silent)}{unheard}: they are not wired on this path, another "
                "process or replica answers /metrics, or a cache of whole replies in front answered, and no engine was asked"
            )
        elif self._num_lost:
            found.append(
                f"the counters miss {self._num_lost:,} tokens that were sent: they were counted too late, not at all, or by another "
                "replica than the one whose /metrics was read"
            )
        if self._num_falls:
            found.append(
                f"the counters fell {_times(self._num_falls)} while the lab ran: the server was restarted, with an empty cache, or "
                "another replica answers /metrics; what they counted over that moment is unknown, and left out"
            )
        if self._num_impossible:
            found.append(
                f"the counters grew by more hits than lookups {_times(self._num_impossible)}: what they count is wrong"
            )
        if self._num_shared:
            usual = f", usually to ×{statistics.median(self._surplus):.2f} of it" if self._surplus else ""
            found.append(
                "others use this server, or it counts lookups more than once (each request may reach it so often), or late: its counters grew by more than was sent "
                f"{_times(self._num_shared)}{usual}, and were left out; traffic of others can evict what was cached"
            )
        return tuple(found)


def _requests(number: int) -> str:
    return f"{number:,} request{'' if number == 1 else 's'}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
