"""StepWatch: look at an engine right before and right after it plans a step, while everything else runs as it does.

A step's plan says who computes what, who was admitted, preempted, resumed; the pool beside it says who holds which block.
Only for engines in this process.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator

from engine.llm_engine import LLMEngine
from engine.scheduler import Scheduler, SchedulerOutput


class _WatchedScheduler:
    """The scheduler inside, with its plans shown; whatever else is asked of it goes through."""

    def __init__(self, inside: Scheduler, before: Callable[[], None], after: Callable[[SchedulerOutput], None]) -> None:
        self._inside, self._before, self._after = inside, before, after

    def schedule(self) -> SchedulerOutput:
        self._before()
        plan = self._inside.schedule()
        self._after(plan)
        return plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)


@contextmanager
def watch_steps(
    engine: LLMEngine, after: Callable[[SchedulerOutput], None], before: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Call `before` and `after` around the planning of every step; the plan is live: read it, do not keep it."""
    inside = engine.scheduler
    watched = _WatchedScheduler(inside, before, after)
    engine.scheduler = watched  # type: ignore[assignment]
    try:
        yield
    finally:
        if engine.scheduler is watched:  # a step that failed has set up a new one
            engine.scheduler = inside
