"""What the engine loop tells of each step and each request: what metrics are made of, and nothing else.

    EngineLoop ──StepReport──▶ StepObserver
               ──FinishedReport──▶

All calls come from the loop's own thread, one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.metrics import PrefixCacheStats, RequestMetrics
from engine.request import FinishReason


@dataclass(frozen=True)
class StepReport:
    """One step, after it ran, or the state after something changed without one (an abort, a reset)."""

    now_s: float  # of the engine's clock, as all times here
    num_running: int  # requests
    num_waiting: int
    kv_cache_usage: float  # share of the pool's blocks in use by requests, 0 to 1
    num_evictable_tokens: int  # cached and in nobody's use
    num_step_tokens: int  # computed in this step, prompts and decodes together; 0 without a step
    num_preempted: int  # requests preempted in this step
    lookups: PrefixCacheStats  # since the last report
    # Of each request that got tokens in this step: gaps and firsts, in seconds; not of the server's own health checks.
    ttfts_s: tuple[float, ...] = ()
    itls_s: tuple[float, ...] = ()
    num_new_tokens: int = 0  # sampled in this step
    # (prompt tokens, of them cached) of each request that got its first token in this step.
    first_tokens: tuple[tuple[int, int], ...] = ()
    streaming_ttfts: tuple[bool, ...] = ()  # aligned with ttfts_s: whether the client streams
    num_evicted_tokens: int = 0  # cached content given up to make room, since the last report (manager.take_evicted_tokens)


@dataclass(frozen=True)
class FinishedReport:
    """One request that ended, whatever ended it."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_preemptions: int
    reason: FinishReason
    is_streaming: bool
    metrics: RequestMetrics = field(repr=False)
    is_health_check: bool = False  # the server's own, and no client's request


class StepObserver(Protocol):
    """Follows an EngineLoop."""

    def observe_step(self, report: StepReport) -> None: ...

    def observe_finished(self, report: FinishedReport) -> None: ...
