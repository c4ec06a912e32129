"""Pacer: starts requests no faster than a rate."""

from __future__ import annotations

import math
import threading
import time


class Pacer:
    """Gives each request its moment. May be used from several threads.

    rate  requests per second; None: as fast as they come
    """

    def __init__(self, rate: float | None) -> None:
        self._gap_s = 0.0 if rate is None else 1.0 / rate
        self._lock, self._next_s = threading.Lock(), 0.0

    def wait(self, stop: threading.Event | None = None, most_s: float = math.inf) -> bool:
        """Return when the next request may start, or at once when `stop` is set; False, at once, where that is too far away."""
        if not self._gap_s:
            return True
        with self._lock:
            now_s = time.monotonic()
            start_s = max(now_s, self._next_s)
            if start_s - now_s > most_s:
                return False
            self._next_s = start_s + self._gap_s
        (stop or threading.Event()).wait(start_s - now_s)
        return True
