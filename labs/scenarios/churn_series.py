"""ChurnSeries: many unique prompts at once, in pools from roomy to tight, and how preemption shows in what is counted.

    roomy    all run at once: what the tighter pools are compared with
    tight    requests preempt each other, find a part of their own blocks again, and compute the rest twice

How much they find hangs on who waits how long, and no law is known for it: it is measured only. What must hold in every pool:
first lookups find nothing, a request is counted once, the counters say what the engine's plans say, outputs do not change.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Sequence

from labs import theory
from labs.caches import Cache
from labs.measure import sim_times_note
from labs.output_check import FLOAT32_NEAR_TIE
from labs.protocol import LabSession, Measurement, Prediction
from labs.scenarios.empty_pools import EmptyPools
from labs.scenarios.preemption_series import Run, send_at_once
from labs.scenarios.survival_curve import SurvivalCurve
from labs.targets.base import Target
from labs.workload import TokenIds

NOT_JUDGED = "differ is not judged on sim: its tokens do not hang on K/V"


@dataclass(frozen=True)
class Crowd:
    """The requests: their prompts, and how many tokens each generates."""

    prompts: tuple[TokenIds, ...] = field(repr=False)
    output_tokens: tuple[int, ...]

    @classmethod
    def of(cls, prompts: Sequence[TokenIds], mean_output_tokens: int, seed: int) -> Crowd:
        """Each generates from a half to three halves of the mean, so that they end one by one."""
        rng, least = random.Random(seed), (mean_output_tokens + 1) // 2
        counts = (rng.randint(least, most_outputs(mean_output_tokens)) for _ in prompts)
        return cls(tuple(prompts), tuple(counts))

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompts[0])

    def send(self, target: Target) -> Run:
        return send_at_once(target, self.prompts, self.output_tokens)


def most_outputs(mean_output_tokens: int) -> int:
    """What a request of a crowd generates at most."""
    return mean_output_tokens * 3 // 2


@dataclass(frozen=True)
class ChurnResult:
    """What one cache brought."""

    cache: Cache
    runs: dict[int, list[Run]]  # by pool, in tokens, roomiest first; one run a trial
    measurements: tuple[Measurement, ...]

    @property
    def first_runs(self) -> dict[int, Run]:
        """Counts, which no trial changes."""
        return {pool: runs[0] for pool, runs in self.runs.items()}

    @property
    def survival(self) -> SurvivalCurve:
        return SurvivalCurve.of(self.cache.title, self.first_runs)


@dataclass(frozen=True)
class ChurnSeries:
    """One crowd and one cache, with pools from roomy to tight."""

    crowd: Crowd
    cache: Cache
    pool_tokens: Sequence[int]
    num_trials: int

    @property
    def num_requests(self) -> int:
        return len(self.pool_tokens) * self.num_trials * len(self.crowd.prompts)

    def run(self, session: LabSession, pools: EmptyPools) -> ChurnResult:
        """Send the crowd into each pool, and record what was counted."""
        runs: dict[int, list[Run]] = {}
        measurements: list[Measurement] = []
        count = len(self.crowd.prompts)
        for pool in self.pool_tokens:
            target = pools.open(self.cache.engine_fields, pool // self.cache.unit)
            try:
                for trial in range(self.num_trials):
                    if trial:
                        pools.empty(target)
                    runs.setdefault(pool, []).append(self.crowd.send(target))
                    session.progress(f"{self.cache.title}: {count} requests, pool for {pool:,}", count)
                num_differing = self._num_differing(session, target, runs, pool)
            finally:
                target.close()
            found = self._measurements(pool, runs[pool], num_differing, session.open_target.kind)
            session.record(*found)
            measurements += found
        return ChurnResult(self.cache, runs, tuple(measurements))

    def _measurements(self, pool: int, runs: Sequence[Run], num_differing: int, kind: str) -> list[Measurement]:
        """Counts beside what must hold; the others, and times, without a prediction."""
        first, count, length, outputs = runs[0], len(self.crowd.prompts), self.crowd.prompt_tokens, self.crowd.output_tokens
        group = (
            f"{self.cache.title}: {count} unique prompts of {length:,} tokens, {min(outputs):,} to {max(outputs):,} generated"
        )
        unique = theory.predict(theory.shared_prefix_hits, count, 0, length, self.cache.unit)
        found: list[Measurement] = []

        def add(name: str, unit: str, samples: Sequence[float], law: theory.Predicted | None = None, note: str = "") -> None:
            due = None if law is None else Prediction(*law)
            found.append(Measurement(name, unit, tuple(samples), group, f"pool for {pool:,}", due, note=note))

        add("hits", "tokens", [one.counters.hits for one in runs], unique)
        add("queries", "tokens", [one.counters.queries for one in runs], theory.predict(theory.queries, count, length))
        add("unaccounted", "tokens", [one.unaccounted for one in runs], theory.predict(theory.unaccounted_tokens, 1))
        if kind == "sim":
            add("differ", "outputs", [num_differing], note=NOT_JUDGED)
        else:
            add("differ", "outputs", [num_differing], theory.predict(theory.differing_outputs, "preemption"))
        add("preempted", "requests", [len(first.watch.preemptions)])
        add("looked_up", "tokens", [first.counters.preempted_queries])
        add("found", "tokens", [first.counters.preempted_hits])
        if first.survival is not None:
            add("survival", "ratio", [first.survival])
        add("naive_rate", "ratio", [first.naive_rate])
        add("computed_twice", "tokens", [first.num_computed_twice])
        add("time", "s", [one.seconds for one in runs], note=sim_times_note(kind))
        return found

    def _num_differing(self, session: LabSession, target: Target, runs: dict[int, list[Run]], pool: int) -> int:
        """Outputs in this pool that differ from the roomiest one's beyond a near tie."""
        roomiest = next(iter(runs))
        roomy, tight = runs[roomiest][0], runs[pool][0]
        if roomy.outputs == tight.outputs:
            return 0
        if target.info.dtype == "float32":
            return self._num_beyond_ties(target, roomy, tight)
        # Other batches round differently, and half precision may choose the other of two near ties: asked again in float32.
        exact = [
            session.open_target(**self.cache.engine_fields, num_gpu_blocks=tokens // self.cache.unit + 1, dtype="float32")
            for tokens in (roomiest, pool)
        ]
        try:
            return self._num_beyond_ties(exact[0], *(self.crowd.send(one) for one in exact))
        finally:
            for one in exact:
                one.close()

    def _num_beyond_ties(self, target: Target, roomy: Run, tight: Run) -> int:
        count = 0
        for prompt, first, second in zip(self.crowd.prompts, roomy.outputs, tight.outputs):
            if first != second:
                alone = target.complete(prompt, max_tokens=len(first), logprob_gaps=True)
                parted = theory.common_prefix(first, second)
                count += alone.top_logprob_gaps[parted] >= FLOAT32_NEAR_TIE
        return count
