"""ServerMetrics: what GET /metrics shows, under the names that dashboards of the real servers already know.

One object follows the engine's loop and answers scrapes; each has a registry of its own, so that several servers in
one process (tests, two labs side by side) do not share counters.
"""

from __future__ import annotations

from typing import Protocol

from engine.llm_engine import LLMEngine
from engine.server.options import ServerOptions
from engine.server.step_report import FinishedReport, StepReport

# vLLM's words for why a request was turned away before it was queued; it answers both with 503.
QUEUE_FULL = "max_num_queued_reqs"
QUEUE_FULL_OF_TOKENS = "max_num_queued_tokens"


class ServerMetrics(Protocol):
    """A StepObserver whose counts can be read at any moment, from any thread."""

    def observe_step(self, report: StepReport) -> None:
        """Count one step, or take over the state after a change without one."""
        ...

    def observe_finished(self, report: FinishedReport) -> None:
        """Count a request that ended."""
        ...

    def reject(self, reason: str = QUEUE_FULL) -> None:
        """Count a request that was turned away because too many waited."""
        ...

    def render(self) -> tuple[bytes, str]:
        """All series in Prometheus' text format, and its content type."""
        ...


def open_metrics(options: ServerOptions, engine: LLMEngine) -> ServerMetrics:
    """Metrics of the flavor that the options ask for, all at zero."""
    from engine.server.metrics.whole_steps import WholeSteps

    if options.flavor == "vllm":
        from engine.server.metrics.vllm_metrics import VLLMMetrics

        return WholeSteps(VLLMMetrics(options, engine))
    from engine.server.metrics.sglang_metrics import SGLangMetrics

    return WholeSteps(SGLangMetrics(options, engine))
