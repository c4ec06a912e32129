"""WholeSteps: metrics between two steps, never of half a step.

The engine's thread counts a step's lookups and then its hits; a page rendered by another thread between the two would show
hits that nobody looked up, or lookups that found nothing, and the growth between two such pages a hit rate that never was.
"""

from __future__ import annotations

from threading import Lock

from engine.server.metrics.prometheus import QUEUE_FULL, ServerMetrics
from engine.server.step_report import FinishedReport, StepReport


class WholeSteps:
    """ServerMetrics over others: each report is counted, and each page rendered, with nothing else between."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._metrics = metrics
        self._lock = Lock()  # the engine waits for a page, a millisecond or two, only while one is rendered

    def observe_step(self, report: StepReport) -> None:
        with self._lock:
            self._metrics.observe_step(report)

    def observe_finished(self, report: FinishedReport) -> None:
        with self._lock:
            self._metrics.observe_finished(report)

    def reject(self, reason: str = QUEUE_FULL) -> None:
        with self._lock:
            self._metrics.reject(reason)

    def render(self) -> tuple[bytes, str]:
        with self._lock:
            return self._metrics.render()
