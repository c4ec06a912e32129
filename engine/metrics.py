"""Counters, time stamps, and the formulas over them.

Token counts come from the engine's own accounting, never from timing. `queries` counts every token of each
request that did a lookup (the whole length, although the last token can never hit), `hits` the tokens found.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class PrefixCacheStats:
    """Prefix-cache lookups since the last reading; lookups of preempted requests are counted apart.

    Source: vLLM 0.32.0, v1/metrics/stats.py (fields and their meaning).
    """

    reset: bool = False  # a reset of the cache succeeded since the last reading
    requests: int = 0
    queries: int = 0  # tokens
    hits: int = 0  # tokens
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def record(self, num_tokens: int, num_hits: int, preempted: bool) -> None:
        """Count one admitted request that looked its prefix up; both numbers in tokens."""
        if preempted:
            # A resumed request finds its own blocks again: that is survival, not reuse between requests.
            self.preempted_requests += 1
            self.preempted_queries += num_tokens
            self.preempted_hits += num_hits
        else:
            self.requests += 1
            self.queries += num_tokens
            self.hits += num_hits

    def add(self, other: PrefixCacheStats) -> None:
        """Add another reading's counts to this one."""
        self.reset = self.reset or other.reset
        self.requests += other.requests
        self.queries += other.queries
        self.hits += other.hits
        self.preempted_requests += other.preempted_requests
        self.preempted_queries += other.preempted_queries
        self.preempted_hits += other.preempted_hits

    @property
    def hit_rate(self) -> float:
        """Token-weighted: hits / queries, 0.0 before the first lookup."""
        return self.hits / self.queries if self.queries else 0.0

    @property
    def survival_fraction(self) -> float | None:
        """Share of a preempted request's tokens still cached when it resumed; None if none resumed."""
        return self.preempted_hits / self.preempted_queries if self.preempted_queries else None


class RecentHitRate:
    """The hit rate of the latest requests, in whole readings: what servers log while they run.

    Lookups of preempted requests are left out. A reading without requests changes nothing, one with a reset starts anew.
    Source: vLLM 0.32.0, v1/metrics/stats.py (CachingMetrics).
    """

    def __init__(self, max_requests: int = 1_000) -> None:
        self._max_requests = max_requests
        self._readings: deque[tuple[int, int, int]] = deque()  # requests, queries, hits; oldest first
        self._num_requests = self._queries = self._hits = 0

    def observe(self, stats: PrefixCacheStats) -> None:
        """Add a reading; the oldest leave as long as more than `max_requests` are in."""
        if stats.reset:
            self._readings.clear()
            self._num_requests = self._queries = self._hits = 0
        if not stats.requests:
            return
        self._add((stats.requests, stats.queries, stats.hits), 1)
        self._readings.append((stats.requests, stats.queries, stats.hits))
        # A single reading stays, however large.
        while len(self._readings) > 1 and self._num_requests > self._max_requests:
            self._add(self._readings.popleft(), -1)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was looked up yet: no rate to tell."""
        return not self._num_requests

    @property
    def hit_rate(self) -> float:
        """Token-weighted: hits / queries, 0.0 before the first lookup."""
        return self._hits / self._queries if self._queries else 0.0

    def _add(self, reading: tuple[int, int, int], sign: int) -> None:
        requests, queries, hits = reading
        self._num_requests += sign * requests
        self._queries += sign * queries
        self._hits += sign * hits


@dataclass(slots=True)
class RequestMetrics:
    """Time stamps of one request, in seconds of the engine's clock (virtual on the simulated runner)."""

    arrival_s: float
    first_scheduled_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)  # one per output token; of max_tokens 0 one, of the prompt
    finished_s: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first output token, from arrival; None before it."""
        return self.token_times_s[0] - self.arrival_s if self.token_times_s else None

    @property
    def itl_s(self) -> list[float]:
        """Gaps between successive output tokens."""
        return [later - earlier for earlier, later in zip(self.token_times_s, self.token_times_s[1:])]

    @property
    def tpot_s(self) -> float | None:
        """Mean gap between output tokens; None with fewer than two."""
        gaps = self.itl_s
        return sum(gaps) / len(gaps) if gaps else None

    @property
    def e2e_s(self) -> float | None:
        """Arrival to end; None while unfinished."""
        return None if self.finished_s is None else self.finished_s - self.arrival_s
