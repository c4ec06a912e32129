"""LoopReporter: tells an observer what the engine's loop did, in the terms of step_report.py."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import replace
from typing import Iterator, Mapping, Sequence

from engine.llm_engine import LLMEngine
from engine.request import FinishReason
from engine.request_output import RequestOutput
from engine.server.step_report import FinishedReport, StepObserver, StepReport
from engine.server.ticket import Ticket

logger = logging.getLogger(__name__)


class LoopReporter:
    """Reads the engine after each step; without an observer it only keeps the counts from growing.

    An observer that fails is no reason to serve nobody: it is logged, each kind of failure once.
    """

    def __init__(self, engine: LLMEngine, observer: StepObserver | None) -> None:
        self._engine = engine
        self._observer = observer
        self._logged: set[str] = set()

    def step(
        self,
        num_step_tokens: int = 0,
        num_preempted: int = 0,
        outputs: Sequence[RequestOutput] = (),
        tickets: Mapping[str, Ticket] | None = None,
    ) -> None:
        """A step, or a change without one; `tickets` by request id, for those that get their first token."""
        manager, scheduler = self._engine.manager, self._engine.scheduler
        lookups, num_evicted_tokens = self._engine.take_stats(), manager.take_evicted_tokens()
        if self._observer is None:
            return
        firsts = [output for output in outputs if len(output.metrics.token_times_s) == 1]
        told = [(output, ticket) for output in firsts if not (ticket := (tickets or {})[output.request_id]).is_health_check]
        times_s = [output.metrics.token_times_s for output in outputs if len(output.metrics.token_times_s) > 1]
        report = StepReport(
            now_s=self._engine.runner.now(),
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            kv_cache_usage=manager.usage,
            num_evictable_tokens=manager.prefix_cache.num_evictable * manager.unit_size,
            num_step_tokens=num_step_tokens,
            num_preempted=num_preempted,
            lookups=lookups,
            ttfts_s=tuple(output.metrics.ttft_s or 0.0 for output, _ in told),
            itls_s=tuple(times[-1] - times[-2] for times in times_s),
            num_new_tokens=len(outputs),
            first_tokens=tuple((len(output.prompt_token_ids), output.num_cached_tokens) for output in firsts),
            num_evicted_tokens=num_evicted_tokens,
            streaming_ttfts=tuple(ticket.is_streaming for _, ticket in told),
        )
        with self._tolerant():
            self._observer.observe_step(report)

    def finished(self, tickets: Sequence[Ticket]) -> None:
        """Requests that ended, whatever ended them."""
        if self._observer is None:
            return
        for ticket in tickets:
            request = ticket.request
            metrics = request.metrics
            if metrics.finished_s is None:  # an abort leaves no stamp
                metrics = replace(metrics, finished_s=self._engine.runner.now())
            report = FinishedReport(
                num_prompt_tokens=request.num_prompt_tokens,
                num_cached_tokens=request.num_cached_tokens or 0,
                num_output_tokens=request.num_output_tokens,
                max_tokens=request.sampling_params.max_tokens,
                num_preemptions=request.num_preemptions,
                reason=request.finish_reason or FinishReason.ABORT,
                is_streaming=ticket.is_streaming,
                metrics=metrics,
                is_health_check=ticket.is_health_check,
            )
            with self._tolerant():
                self._observer.observe_finished(report)

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            kind = type(error).__name__
            if kind not in self._logged:
                logger.error("what follows the engine failed: %s", kind)
                self._logged.add(kind)
