"""Laws of cost and time, by engine/cost_model.py: FLOPs, seconds, saturation, queueing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable

from engine import cost_model
from engine.cost_model import Gpu, ModelShape
from labs.laws.law import check, law


@law(
    "Σ 2·{shape.num_parameters:,} + 4·{shape.num_layers}·{shape.num_heads}·{shape.head_dim}·s "
    "over positions s in [{start:,}, {end:,})"
)
def prefill_flops(shape: ModelShape, start: int, end: int) -> int:
    """FLOPs of a prompt's tokens [start, end), those before `start` being cached."""
    return cost_model.prefill_flops(shape, start, end)


@law("FLOPs of tokens [{start:,}, {end:,}) of {shape.name} / ({gpu.peak_flops_per_s:.4g}·{mfu})")
def prefill_seconds(shape: ModelShape, gpu: Gpu, mfu: float, start: int, end: int) -> float:
    """Seconds of a prompt's tokens [start, end): FLOPs / (peak · MFU)."""
    return cost_model.prefill_seconds(shape, gpu, mfu, start, end)


@law("FLOPs of {prompt_tokens:,} tokens / FLOPs of those after the first {cached_tokens:,}, {shape.name}")
def cold_over_warm(shape: ModelShape, cached_tokens: int, prompt_tokens: int) -> float:
    """How many times cheaper a prefill is when its first tokens are cached; at least one token is not."""
    check(0 <= cached_tokens < prompt_tokens, "cached_tokens", cached_tokens, f"a whole number below {prompt_tokens}")
    return prefill_flops(shape, 0, prompt_tokens) / prefill_flops(shape, cached_tokens, prompt_tokens)


@law("1 − FLOPs of the tokens after the first {cached_tokens:,} / FLOPs of all {prompt_tokens:,}, {shape.name}")
def redundant_share(shape: ModelShape, cached_tokens: int, prompt_tokens: int) -> float:
    """The share of a prefill's FLOPs that goes into tokens which could be cached."""
    return 1 - 1 / cold_over_warm(shape, cached_tokens, prompt_tokens)


@law("FLOPs of the first {cached_tokens:,} tokens of {shape.name} / ({gpu.peak_flops_per_s:.4g}·{mfu})")
def saved_seconds(shape: ModelShape, gpu: Gpu, mfu: float, cached_tokens: int) -> float:
    """Seconds of prefill that cached tokens save each request."""
    return prefill_seconds(shape, gpu, mfu, 0, cached_tokens)


@law("{gpu.peak_flops_per_s:.4g}·{mfu}")
def achieved_flops_per_s(gpu: Gpu, mfu: float) -> float:
    """FLOP/s a GPU really delivers: peak · MFU."""
    return cost_model.achieved_flops_per_s(gpu, mfu)


@law(
    "{overhead_s} s + max(FLOPs / ({gpu.peak_flops_per_s:.4g}·{mfu}), bytes read / {gpu.memory_bytes_per_s:.4g}) "
    "of tokens [{cached_tokens:,}, {prompt_tokens:,}), {shape.name}"
)
def simulated_ttft(
    shape: ModelShape, gpu: Gpu, mfu: float, overhead_s: float, cached_tokens: int, prompt_tokens: int, token_budget: int,
    dtype_bytes: int = 2,
) -> float:  # fmt: skip
    """Seconds to the first token of a request alone on a simulated GPU: its steps, each with a fixed overhead.

    A step computes at most `token_budget` tokens, and takes the longer of its arithmetic and its reading (the roofline).
    """
    check(0 <= cached_tokens < prompt_tokens, "cached_tokens", cached_tokens, f"a whole number below {prompt_tokens}")
    seconds = 0.0
    for start in range(cached_tokens, prompt_tokens, token_budget):
        end = min(start + token_budget, prompt_tokens)
        seconds += overhead_s + cost_model.step_seconds(shape, gpu, mfu, [(start, end)], dtype_bytes)
    return seconds


@dataclass(frozen=True)
class StepCost:
    """What a step of a simulated engine may compute, and what it costs."""

    shape: ModelShape
    gpu: Gpu
    mfu: float
    overhead_s: float  # of every step
    token_budget: int  # most tokens of a step
    max_requests: int  # most requests of a step
    dtype_bytes: int = 2

    def seconds(self, ranges: list[tuple[int, int]]) -> float:
        return self.overhead_s + cost_model.step_seconds(self.shape, self.gpu, self.mfu, ranges, self.dtype_bytes)


def batched_ttfts(arrivals_s: Iterable[float], cached_tokens: int, prompt_tokens: int, cost: StepCost) -> list[float]:
    """Seconds from each arrival to its first token, where a step serves all that wait, first come, first served.

    A step takes requests in order until its budget or its seats are used up; one that did not fit whole goes on in the next.
    Whoever comes while a step runs waits for its end, and all requests that a step ends are answered at its end. Prompts are
    equally long and have the same number of cached tokens. Above the rate that fills the GPU, the queue grows with every
    request (Lindley 1952).
    """
    arrivals = list(arrivals_s)
    done = [cached_tokens] * len(arrivals)  # computed tokens
    found = [0.0] * len(arrivals)
    first, now = 0, 0.0  # all before `first` are answered
    while first < len(arrivals):
        now = max(now, arrivals[first])
        budget, ranges = cost.token_budget, {}
        for index in range(first, min(first + cost.max_requests, len(arrivals))):
            if arrivals[index] > now or budget == 0:
                break
            num_tokens = min(budget, prompt_tokens - done[index])
            ranges[index] = (done[index], done[index] + num_tokens)
            budget -= num_tokens
        now += cost.seconds(list(ranges.values()))
        for index, (_, end) in ranges.items():
            done[index] = end
            if end == prompt_tokens:
                found[index] = now - arrivals[index]
                first = index + 1
    return found


@law(
    "({start_s:.3g} s + FLOPs of {prompt_tokens:,} tokens / {flops_per_s:.4g}) / ({start_s:.3g} s + 2·FLOPs of those after the "
    "first {cached_tokens:,} / {flops_per_s:.4g}), {shape.name}"
)
def least_cold_over_warm(
    shape: ModelShape, cached_tokens: int, prompt_tokens: int, start_s: float, flops_per_s: float
) -> float:
    """How many times longer a prefill takes at least without its cached tokens, on any machine of a kind.

    start_s      more than a request costs there whatever it computes
    flops_per_s  more than the machine computes; the few tokens of the rest fill it half as well

    A larger start and faster arithmetic both bring the ratio nearer to 1.
    """
    cold, warm = (prefill_flops(shape, start, prompt_tokens) / flops_per_s for start in (0, cached_tokens))
    return (start_s + cold) / (start_s + 2 * warm)


@law("{requests_per_s:.10g}·FLOPs of the first {shared_tokens:,} tokens, {shape.name}")
def redundant_flops_per_s(shape: ModelShape, shared_tokens: int, requests_per_s: float) -> float:
    """FLOP/s spent on computing a shared prefix anew for each request; beside it stands peak · MFU."""
    return requests_per_s * prefill_flops(shape, 0, shared_tokens)


@law("{gpu.peak_flops_per_s:.4g}·{mfu} / FLOPs of tokens [{start:,}, {end:,}) of {shape.name}")
def saturating_requests_per_s(shape: ModelShape, gpu: Gpu, mfu: float, start: int, end: int) -> float:
    """The request rate at which prefills of tokens [start, end) alone fill the GPU; queues grow above it."""
    return 1 / prefill_seconds(shape, gpu, mfu, start, end)


@law("{requests_per_s:.10g}·FLOPs of tokens [{start:,}, {end:,}) of {shape.name} / ({gpu.peak_flops_per_s:.4g}·{mfu})")
def prefill_load(shape: ModelShape, gpu: Gpu, mfu: float, start: int, end: int, requests_per_s: float) -> float:
    """The share of a GPU's arithmetic that prefills of tokens [start, end) ask at a rate; from 1 on queues grow."""
    return requests_per_s * prefill_seconds(shape, gpu, mfu, start, end)


@law("{shape.num_parameters:,}·{dtype_bytes} bytes / {gpu.memory_bytes_per_s:.4g}")
def weight_read_seconds(shape: ModelShape, gpu: Gpu, dtype_bytes: int = 2) -> float:
    """Seconds that any step takes at least: every step reads the weights once, however few tokens it computes."""
    return cost_model.weight_bytes(shape, dtype_bytes) / gpu.memory_bytes_per_s
