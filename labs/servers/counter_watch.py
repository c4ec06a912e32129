"""CounterWatch: what the counters of /metrics say of one request, told apart from what others send.

    tokens looked up      reading before ──▶ + exactly the prompt's ──▶ reading after     it was this request alone
                                         ──▶ more                                         others use the server: unknown
                                         ──▶ fewer, for two seconds                       not counted, or elsewhere: unknown

Counters lag the reply by a step, so they are read until the prompt has landed, and with it as many hits as the reply tells,
if any. What has not landed in time may land with the next prompt: then only the sum of both is known. Nothing is read while
several requests are under way, likewise. What has not landed when a series ends never will, as far as anybody can say: it is
named, and the next series starts anew. A counter that fell was begun anew, by a restart or another replica: what was counted
over that moment is unknown.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from labs.servers.metrics_page import MetricsPage
from labs.servers.prefix_counters import SERIES, CounterReading
from labs.servers.server_client import ServerClient
from labs.targets.base import TargetError

WAIT_S = 2.0  # for counters to land after a reply
MAX_SILENT = 3  # waits in vain, one after the other; then nobody waits any more
HITS_WAIT_S = 0.5  # for hits that a reply tells, once the lookups have landed: they are one step's
MAX_SHORT = 2  # such waits in vain; then what replies tell is not what counters count
UNKNOWN = CounterReading(None, None)


@dataclass(frozen=True)
class Growth:
    """What was counted for what was sent."""

    reading: CounterReading  # unknown unless it is exactly the sent tokens' account
    is_shared: bool = False  # others were counted too
    num_checks: int = 0  # the server's own health checks, which were counted too and are left out
    num_late: int = 0  # tokens sent that were not counted yet
    grown: CounterReading = UNKNOWN  # all that was counted, whoever sent it; unknown where no two readings compare
    num_sent: int = 0  # tokens that should have been
    is_fallen: bool = False  # a counter was lower than before

    @property
    def is_silent(self) -> bool:
        """Whether nothing was counted of what was sent."""
        return self.grown.queries == 0 and self.num_late > 0

    @property
    def is_impossible(self) -> bool:
        """More found than was looked up."""
        return self.grown.is_known and self.grown.hits > self.grown.queries


class CounterWatch:
    """Follows one server's counters; used by one thread at a time."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self._last = self._mark = self._read()
        self._num_expected = 0  # tokens sent since the mark that the server should have looked up
        self._num_late = 0  # tokens sent since the mark that had not landed at the last reading
        self._num_silent = self._num_short = 0
        self._num_hits = 0  # tokens found since the mark, by replies
        self._has_fallen = False  # since the mark

    @property
    def is_known(self) -> bool:
        """Whether the server has such counters."""
        return self._last.is_known

    def after(self, num_tokens: int, num_hits: int = 0) -> Growth:
        """What was counted since the last call for prompts of so many tokens that were sent since; waits until it landed.

        num_hits  tokens that were found by their replies' account
        """
        self._num_expected += num_tokens
        self._num_hits += num_hits
        before, self._last = self._last, self._landed(self._last, num_tokens + self._num_late, num_hits)
        growth = _growth(before, self._last, num_tokens, self._num_late)
        self._num_late, self._has_fallen = growth.num_late, self._has_fallen or growth.is_fallen
        return growth

    def forget_late(self) -> None:
        """Expect nothing any more of what was sent before: after a reset of the cache it is another account."""
        self._num_late = 0

    def since_mark(self) -> Growth:
        """What was counted since the last call of this method, for all prompts sent since."""
        if self._has_fallen:
            # All between two marks is one account, and it was begun anew in the middle.
            growth, now = Growth(UNKNOWN, num_sent=self._num_expected), self._read()
        else:
            now = self._landed(self._mark, self._num_expected, self._num_hits)
            growth = _growth(self._mark, now, self._num_expected, 0)
        self._last = self._mark = now
        self._num_expected = self._num_hits = self._num_late = 0
        self._has_fallen = False
        if growth.grown.queries:
            self._num_silent = 0  # they do move: what is sent next is waited for again
        return growth

    def _landed(self, before: CounterReading, num_tokens: int, num_hits: int) -> CounterReading:
        """A reading in which that many tokens were looked up, and found, more than before, or the last one within the wait."""
        deadline_s, pause_s = time.monotonic() + (0.0 if self._num_silent >= MAX_SILENT else WAIT_S), 0.01
        hits_deadline_s = None  # from when the lookups have landed
        while True:
            now = self._read()
            # What was begun anew counts from 0.
            grown = now if now.has_fallen_since(before) else now.growth_since(before)
            landed = grown.is_known and grown.queries >= num_tokens
            if landed and grown.hits < num_hits and self._num_short < MAX_SHORT:
                hits_deadline_s = hits_deadline_s or time.monotonic() + HITS_WAIT_S
                is_over = time.monotonic() > hits_deadline_s
                self._num_short += is_over
            else:
                # A first reading without series is followed by one with them: no growth is known then, and none awaited.
                is_over = landed or not now.is_known or not before.is_known or time.monotonic() > deadline_s
            if is_over:
                if num_tokens:  # that nothing grew is no sign of life
                    self._num_silent = 0 if landed else self._num_silent + 1
                return now
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.2)

    def _read(self) -> CounterReading:
        try:
            reply = self._client.get("/metrics", timeout_s=15.0)
            if reply.status_code != 200:
                return UNKNOWN
            return CounterReading.of(MetricsPage.parse(reply.text, SERIES))
        except TargetError:
            return UNKNOWN  # a second witness that fails must not end what the first one tells


def _growth(before: CounterReading, now: CounterReading, num_tokens: int, num_late: int) -> Growth:
    """What was counted for `num_tokens`, when `num_late` of earlier prompts were still to come."""
    grown, num_sent = now.growth_since(before), num_tokens + num_late
    if now.has_fallen_since(before):
        return Growth(UNKNOWN, num_sent=num_sent, is_fallen=True)
    if not grown.is_known or grown.hits > grown.queries:
        return Growth(UNKNOWN, grown=grown, num_sent=num_sent)
    own = grown.without_checks(num_sent)
    if own.queries > num_sent:
        return Growth(UNKNOWN, is_shared=True, grown=grown, num_sent=num_sent)
    # With late ones among them it is the account of several prompts, and nobody knows of which while some are missing.
    is_own = own.queries == num_sent and not num_late
    num_checks, num_late = grown.queries - own.queries, num_sent - own.queries
    return Growth(own if is_own else UNKNOWN, num_checks=num_checks, num_late=num_late, grown=grown, num_sent=num_sent)
