"""Patience: a server that is busy is asked again a little later, as it wishes, and within what the probe may take.

429 and 503 say that a request was turned away before anything was computed: no failure, unless it happens again and again.
"""

from __future__ import annotations

import time
from typing import Callable, TypeVar

from labs.probe.budget import ProbeBudget
from labs.servers.server_client import ServerRefused

BUSY = (429, 503)
MAX_RETRIES = 3
RETRY_S = 0.3  # before the first retry where the server names no time, twice as long before each next one
MAX_RETRY_S = 5.0  # however much longer the server wishes

T = TypeVar("T")


def with_patience(call: Callable[[], T], budget: ProbeBudget, turned_away: Callable[[], None]) -> T:
    """What `call` gives, asked up to three times more while the server is busy; `turned_away` is called each time it was.

    Raises what `call` raises, LimitReached when the retries use up the budget.
    """
    for number in range(MAX_RETRIES):
        try:
            return call()
        except ServerRefused as error:
            if error.status not in BUSY:
                raise
            turned_away()
            wait_s = RETRY_S * 2**number if error.retry_after_s is None else min(error.retry_after_s, MAX_RETRY_S)
            if wait_s >= budget.seconds_left:
                raise
        time.sleep(wait_s)
        budget.take(0)
    return call()
