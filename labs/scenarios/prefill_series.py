"""Prefill series: prompts with so many cached and so many new tokens, and what their first token should take.

On the simulated clock a time is predicted to the nanosecond; on a real one only the ratio of two, in a range that follows from
the model and the lengths, never from a time that was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from engine import cost_model
from engine.model.simulated_runner import STEP_OVERHEAD_S
from engine.model_shape import ModelShape
from labs import theory
from labs.caches import Cache
from labs.measure import sim_times_note
from labs.protocol import LabSession, Measurement, Prediction
from labs.targets.base import Completion, Target
from labs.workload import SharedPrefixWorkload, TokenIds

TIME_TOLERANCE_S = 1e-9  # what adding up a clock rounds away
RATIO_TOLERANCE = 1e-6
# Of real machines, on the side where a hit is worth less: a request's fixed cost was 0.05 s on two shared cores, which
# computed less than 0.2 TFLOP/s; 3 TFLOP/s is a server's CPU, 1 PFLOP/s more than one GPU does in 16 bit. All weights are
# read besides, at no less than a laptop's or an old GPU's rate.
SLOWEST_START_S = 0.05
SLOWEST_BYTES_PER_S = {"cpu": 50e9, "gpu": 300e9}
FASTEST_FLOPS_PER_S = {"cpu": 3e12, "gpu": 1e15}
LEAST_VISIBLE_RATIO = 1.2  # below, what is saved is less than what times differ by
HIGHEST_RATIO = 3


@dataclass(frozen=True)
class Arm:
    """Prompts of one kind: a start of the shared prompt, and new tokens behind it."""

    row: str
    start_tokens: int  # of the shared prompt
    new_tokens: int
    is_first: bool = False  # the first to send this start
    is_unrelated: bool = False  # begins like no other; start_tokens only give its length
    is_repeat: bool = False  # the last prompt that was not unrelated, again

    @property
    def prompt_tokens(self) -> int:
        return self.start_tokens + self.new_tokens

    @property
    def match_tokens(self) -> int:
        """In common with what was sent before."""
        if self.is_repeat:
            return self.prompt_tokens
        return 0 if self.is_first or self.is_unrelated else self.start_tokens

    def num_hits(self, unit: int) -> int:
        return theory.reuse(self.match_tokens, self.prompt_tokens, unit)


class PromptSource:
    """Prompts of any arm, never the same twice, unless a repeat is asked for."""

    def __init__(self, workload: SharedPrefixWorkload) -> None:
        self.canary_ids = workload.canary_ids
        self._shared = workload.shared_ids
        self._tails, self._unrelated = list(workload.tail_ids), iter(workload.unrelated_ids)
        self._last: TokenIds = ()

    def prompt(self, arm: Arm) -> TokenIds:
        if arm.is_unrelated:
            return next(self._unrelated)[: arm.prompt_tokens]
        if arm.is_repeat:
            return self._last
        next_id = self._shared[arm.start_tokens :][:1]
        # A tail that goes on as the shared prompt does would be a longer match.
        index = next(at for at, tail in enumerate(self._tails) if tail[:1] != next_id)
        self._last = (*self._shared[: arm.start_tokens], *self._tails.pop(index)[: arm.new_tokens])
        return self._last


class PrefillSeries:
    """Prompts of any arm sent to one cache, and what they found and took beside what they should."""

    def __init__(self, session: LabSession, target: Target, cache: Cache, shape: ModelShape, source: PromptSource) -> None:
        self.target, self.cache, self.shape = target, cache, shape
        self._session, self._source = session, source

    def send(self, arm: Arm) -> Completion:
        completion = self.target.complete(self._source.prompt(arm))
        self._session.progress(f"{self.cache.title}: {arm.row}")
        return completion

    def measure(self, arm: Arm, done: Sequence[Completion]) -> list[Measurement]:
        """Hits and times of an arm. Its requests tell what they found; on sim, the times must be those of the cost model."""
        law = Prediction(*theory.predict(theory.reuse, arm.match_tokens, arm.prompt_tokens, self.cache.unit))
        num_hits = arm.num_hits(self.cache.unit)
        cached = tuple(completion.num_cached_tokens or 0 for completion in done)
        # Of what was found, not of what should be: a line through predicted FLOPs would fit a cache that finds nothing.
        flops = [theory.prefill_flops(self.shape, min(found, arm.prompt_tokens - 1), arm.prompt_tokens) for found in cached]
        params = {"uncached_tokens": arm.prompt_tokens - num_hits, "cached_tokens": num_hits, "flops": flops}
        times = tuple(completion.ttft_s for completion in done)
        of_time = time_law(self.target, self.shape, num_hits, arm.prompt_tokens)
        note = sim_times_note(self.target.info.kind)
        found = [
            Measurement("hits", "tokens", cached, self.cache.title, arm.row, law, params),
            Measurement("ttft", "s", times, self.cache.title, arm.row, of_time, params, note),
        ]
        self._session.record(*found)
        return found


def time_law(target: Target, shape: ModelShape, num_hits: int, prompt_tokens: int) -> Prediction | None:
    """The time to first token of a request alone, on the simulated clock; None on a real one."""
    if target.info.kind != "sim":
        return None
    runner: Any = target.engine.runner
    budget = target.engine.config.max_num_batched_tokens
    settings = (runner.gpu, runner.mfu, STEP_OVERHEAD_S, num_hits, prompt_tokens, budget, runner.dtype_bytes)
    value, law = theory.predict(theory.simulated_ttft, shape, *settings)
    return Prediction(value, law, value - TIME_TOLERANCE_S, value + TIME_TOLERANCE_S)


def ratio_law(target: Target, shape: ModelShape, unit: int, warm: Arm) -> Prediction | None:
    """A prompt computed whole over one whose start is cached: on sim exactly; else in a range from the configuration alone.

    From what the slowest start and the fastest arithmetic of such a machine leave of the ratio, to HIGHEST_RATIO times that of
    the FLOPs: a slow spell of shared cores may fall on one of the two. None where little is left to see: there the cache may
    save nothing that a clock shows.
    """
    num_hits, length = warm.num_hits(unit), warm.prompt_tokens
    value, law = theory.predict(theory.cold_over_warm, shape, num_hits, length)
    cold_s, warm_s = (time_law(target, shape, found, length) for found in (0, num_hits))
    if cold_s is not None and warm_s is not None:
        exact = cold_s.value / warm_s.value
        text = f"{law}; of times, overhead and reading included: {exact:.4g}"
        return Prediction(exact, text, exact * (1 - RATIO_TOLERANCE), exact * (1 + RATIO_TOLERANCE))
    kind = "cpu" if target.info.device.startswith("cpu") else "gpu"
    weight_bytes = cost_model.weight_bytes(shape, 4 if target.info.dtype == "float32" else 2)
    start_s = SLOWEST_START_S + weight_bytes / SLOWEST_BYTES_PER_S[kind]
    least, why = theory.predict(
        theory.least_cold_over_warm, shape, num_hits, length, start_s, FASTEST_FLOPS_PER_S[kind]
    )
    if least < LEAST_VISIBLE_RATIO:
        return None
    return Prediction(value, f"{law}; at least {why}", least, HIGHEST_RATIO * value)


def saved_law(target: Target, shape: ModelShape, unit: int, warm: Arm) -> Prediction | None:
    """Seconds that a hit saves, on the simulated clock; None on a real one."""
    num_hits, length = warm.num_hits(unit), warm.prompt_tokens
    cold_s, warm_s = (time_law(target, shape, found, length) for found in (0, num_hits))
    if cold_s is None or warm_s is None:
        return None
    runner: Any = target.engine.runner
    text = theory.predict(theory.saved_seconds, shape, runner.gpu, runner.mfu, num_hits).law
    value = cold_s.value - warm_s.value
    return Prediction(value, f"{text} s; cold − warm = {value * 1e3:.1f} ms", value - TIME_TOLERANCE_S, value + TIME_TOLERANCE_S)
