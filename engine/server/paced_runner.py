"""PacedRunner: the simulated runner in real time, so that a client waits as long as the cost model says.

    simulated clock   |--- step 1: 9 ms ---|--- step 2: 7 ms ---|          idle          |--- step 3
    real, pace 1      |--- 9 ms -----------|--- 7 ms -----------|                        |---

A step begins when the one before it was due if the same requests go on, whenever that was noticed: waking up late and the
engine's own work between two steps do not add up. After a pause it begins when it is asked for.
"""

from __future__ import annotations

import time
from typing import Callable, Sequence

from engine.errors import ConfigError
from engine.model.simulated_runner import SimulatedRunner
from engine.runner import RunnerOutput
from engine.scheduler import SchedulerOutput

MAX_PACE = 1_000.0

# Of the delay before a step so much is made good at most: after a process was held up, its requests were late, and the next
# ones must not be fast for it.
MAX_CATCH_UP_S = 0.02


class PacedRunner:
    """Runner: tokens of `runner`, on a real clock.

    pace           real seconds per simulated second; 0: no waiting at all
    eos_token_ids  of the text that goes with it; a simulated model ends nothing by itself
    clock, sleep   real time; handed in by tests

    Raises ConfigError for a pace outside 0 to MAX_PACE.
    """

    is_simulated = True

    def __init__(
        self,
        runner: SimulatedRunner,
        pace: float = 1.0,
        eos_token_ids: frozenset[int] = frozenset(),
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if isinstance(pace, bool) or not isinstance(pace, (int, float)) or not 0 <= pace <= MAX_PACE:
            raise ConfigError("pace", pace, f"a number from 0 (no waiting) to {MAX_PACE:,.0f}")
        self.pace = pace
        self.eos_token_ids = eos_token_ids
        self.vocab_size = runner.vocab_size
        self.max_model_len = runner.max_model_len
        self._runner = runner
        self._clock = clock
        self._sleep = sleep
        self._due_s = clock()  # when the latest step ends, or ended, as paced

    def bytes_per_token(self) -> int:
        return self._runner.bytes_per_token()

    def allocate_kv(self, num_blocks: int, unit_size: int) -> None:
        self._runner.allocate_kv(num_blocks, unit_size)

    def token_embeddings(self, token_ids: Sequence[int]) -> list[bytes]:
        return self._runner.token_embeddings(token_ids)

    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        """One step, over when its time is."""
        asked_s = self._clock()
        simulated_s = self._runner.now()
        result = self._runner.execute(output)
        step_s = self.pace * (self._runner.now() - simulated_s)
        # Who is neither new nor back was computed in the step before: the engine has not paused.
        goes_on = len(output.scheduled) > len(output.admitted) + len(output.resumed)
        begin_s = max(self._due_s, asked_s - MAX_CATCH_UP_S) if goes_on else asked_s
        self._due_s = begin_s + step_s
        remaining_s = self._due_s - self._clock()
        if self.pace and remaining_s > 0:
            self._sleep(remaining_s)
        return result

    def now(self) -> float:
        """Seconds of the real clock."""
        return self._clock()
