"""ProbeBudget: how much one probe may ask of a server that others use."""

from __future__ import annotations

import time
from dataclasses import dataclass

from labs.servers.server_client import LimitReached

MAX_SECONDS = 60.0
TIMED_SHARE = 0.8  # of the seconds allowed, after which no more times are taken
MAX_REQUESTS, STRESS_REQUESTS = 300, 2_000
MAX_TOKENS, STRESS_TOKENS = 100_000, 2_000_000  # of prompts; --stress needs several times what the pool holds


class OutOfTime(LimitReached):
    """The time left is too short for this question, at the pace of the server; a shorter one may still be asked."""


@dataclass(frozen=True)
class ProbeLimits:
    """What a person allows. Raises ValueError for a value outside what each field accepts."""

    max_seconds: float = MAX_SECONDS
    max_requests: int = MAX_REQUESTS
    max_tokens: int = MAX_TOKENS

    def __post_init__(self) -> None:
        if not 1 <= self.max_seconds <= 86_400:
            raise ValueError(f"max_seconds is {self.max_seconds}; accepted: a number from 1 to 86400")
        for name in ("max_requests", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; accepted: a whole number from 1")


class ProbeBudget:
    """What is left of the limits; counts every request that computes tokens."""

    def __init__(self, limits: ProbeLimits) -> None:
        self.limits = limits
        self.num_requests = 0
        self.num_tokens = 0
        self._longest, self._longest_s = 1, 0.0  # tokens of the longest prompt that was computed, and how long that took
        self._begin_s = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the probe began."""
        return time.perf_counter() - self._begin_s

    def at(self, perf_s: float) -> float:
        """When that was, by time.perf_counter(), since the probe began."""
        return perf_s - self._begin_s

    @property
    def seconds_left(self) -> float:
        return self.limits.max_seconds - self.seconds

    def found_larger(self, num_tokens: int) -> None:
        """Count tokens that a request had more than was thought."""
        self.num_tokens += max(0, num_tokens)

    def learn_pace(self, num_tokens: int, seconds: float) -> None:
        """How long a prompt took of which nothing was found; of equals the quickest counts, as the first may warm something up."""
        if num_tokens > self._longest or (num_tokens == self._longest and seconds < self._longest_s):
            self._longest, self._longest_s = num_tokens, seconds

    def expected_s(self, num_tokens: int) -> float:
        """About how long a prompt that must be computed will take; 0 before any was."""
        return self._longest_s * num_tokens / self._longest

    @property
    def tokens_left(self) -> int:
        return self.limits.max_tokens - self.num_tokens

    def take(self, num_tokens: int, num_requests: int = 1, *, most: int = 0) -> None:
        """Count requests before they are sent. Raises LimitReached when a limit would be passed, OutOfTime where only this
        one is too long.

        most  tokens that it may turn out to have, where the server alone counts them
        """
        limits = self.limits
        if self.seconds_left <= 0:
            raise LimitReached(f"{limits.max_seconds:,.0f} s passed")
        if self.expected_s(num_tokens) > self.seconds_left:
            raise OutOfTime(f"{limits.max_seconds:,.0f} s are too few for all questions at this server's pace")
        if self.num_requests + num_requests > limits.max_requests:
            raise LimitReached(f"{self.num_requests:,} requests were sent")
        if self.num_tokens + max(num_tokens, most) > limits.max_tokens:
            raise LimitReached(f"prompts of {self.num_tokens:,} tokens were sent")
        self.num_requests += num_requests
        self.num_tokens += num_tokens
