"""PreemptionWatch: who was preempted when, what it found when it resumed, and how many tokens were computed twice.

Taken from the engine's own plans, step by step, so that the counters can be checked against it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from engine.llm_engine import LLMEngine
from engine.scheduler import SchedulerOutput
from labs.watch.step_watch import watch_steps


@dataclass(frozen=True)
class Preemption:
    """A request that had to give its blocks back."""

    request: int  # by the order of first admission, from 0
    num_outputs: int  # tokens it had generated


@dataclass(frozen=True)
class Resumption:
    """A preempted request that was admitted again."""

    num_tokens: int  # looked up: prompt and outputs
    num_hits: int  # found


class PreemptionWatch:
    """Counts over all steps watched; see the module's text."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._numbers: dict[str, int] = {}
        self.preemptions: list[Preemption] = []
        self.resumptions: list[Resumption] = []
        self.num_computed = 0  # tokens computed in all steps
        self.num_steps = 0  # that computed something
        self.num_served = 0  # requests in all steps, one counted in each step that served it
        self.num_refused = 0  # steps that left the first waiting request where it was, for lack of blocks

    def watching(self) -> AbstractContextManager[None]:
        """Watch every step inside the `with`."""
        return watch_steps(self._engine, self._after)

    def _after(self, plan: SchedulerOutput) -> None:
        for request, _ in plan.admitted:
            self._numbers[request.request_id] = len(self._numbers)
        for request in plan.preempted:
            self.preemptions.append(Preemption(self._numbers[request.request_id], request.num_output_tokens))
        self.resumptions += [Resumption(request.num_tokens, hits) for request, hits in plan.resumed]
        self.num_computed += plan.num_scheduled_tokens
        self.num_steps += bool(plan.scheduled)
        self.num_served += len(plan.scheduled)
        # After a preemption nobody is tried.
        self.num_refused += not plan.preempted and len(self._engine.scheduler.waiting) > 0
