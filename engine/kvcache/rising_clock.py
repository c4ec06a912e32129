"""RisingClock: a clock that never says the same time twice.

The radix tree evicts what was used longest ago. SGLang stamps uses with a clock that moves between any two of them;
a simulated one stands still between steps, and two uses at one moment would be decided by something else.
"""

from __future__ import annotations

import math
from typing import Callable


class RisingClock:
    """Seconds of `clock`, moved on by the least possible amount where it stood still."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_s = -math.inf

    def __call__(self) -> float:
        now_s = self._clock()
        self._last_s = now_s if now_s > self._last_s else math.nextafter(self._last_s, math.inf)
        return self._last_s
