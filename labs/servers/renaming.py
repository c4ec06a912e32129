"""Renaming: lab ids to server ids by a bijection, chosen anew where a cache cannot be emptied.

    lab's prompt            7 7 3 9 …        the same prompts stay the same, and part at the same token;
    sent before a renaming  20 12 8 14 …     what was sent before cannot be found again, as after a reset
    sent after it           5 31 27 33 …

The first token has a mapping of its own, which never gives an id with which a prompt of this run began before: a cache
whose unit is one token would find it. All other positions are rotated by one random offset. When a small vocabulary has no
such id any more, two prompts of one mapping still never begin alike, but they may begin like older ones (`is_used_up`).
"""

from __future__ import annotations

import random
import threading
from typing import Iterable, Sequence


class Renaming:
    """One mapping for all targets of a run, because they share the server's cache. May be used from several threads.

    size   ids 0 to size − 1 are renamed; others (the tool's own id, ids that only the server knows) stay as they are
    begun  ids with which prompts began before
    """

    def __init__(self, size: int, rng: random.Random | None = None, begun: Iterable[int] = ()) -> None:
        self._size, self._rng, self._lock = size, rng or random.Random(), threading.Lock()
        self._offset = 0
        self._firsts: dict[int, int] = {}  # of this mapping: lab id -> server id
        self._begun: set[int] = set(begun)  # server ids with which any prompt of the run began
        self.is_used_up = False  # whether prompts may begin like older ones

    def renew(self) -> None:
        """Take another mapping."""
        with self._lock:
            if len(self._begun) > self._size // 2:
                self._begun.clear()
                self.is_used_up = True
            self._firsts = {}
            steps = self._rng.randrange(1, self._size) if self._size > 1 else 0
            self._offset = (self._offset + steps) % self._size

    def sent(self, lab_ids: Sequence[int]) -> list[int]:
        """The ids that stand for a prompt."""
        if not lab_ids:
            return []
        return [self._first(lab_ids[0]), *map(self._rotated, lab_ids[1:])]

    def read(self, server_ids: Iterable[int]) -> tuple[int, ...]:
        """Lab ids of generated tokens, which never stand first."""
        return tuple((one - self._offset) % self._size if 0 <= one < self._size else one for one in server_ids)

    def _rotated(self, lab_id: int) -> int:
        return (lab_id + self._offset) % self._size if 0 <= lab_id < self._size else lab_id

    def _first(self, lab_id: int) -> int:
        if not 0 <= lab_id < self._size:
            return lab_id
        with self._lock:
            if lab_id not in self._firsts:
                # The rotated id, or the next free one round the vocabulary.
                start = self._rotated(lab_id)
                free = self._next_free(start, self._begun)
                if free is None:
                    self.is_used_up = True
                    free = self._next_free(start, set(self._firsts.values()))
                self._firsts[lab_id] = free
                self._begun.add(free)
            return self._firsts[lab_id]

    def _next_free(self, start: int, taken: set[int]) -> int | None:
        """The first id from `start` on, round the vocabulary, that is not taken."""
        around = ((start + steps) % self._size for steps in range(self._size))
        return next((one for one in around if one not in taken), None)
