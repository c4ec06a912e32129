"""Laws of cost and time, by engine/cost_model.py: FLOPs, seconds, saturation, queueing."""

from __future__ import annotations

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


def queueing_ttfts(arrivals_s: Iterable[float], seconds_each: float) -> list[float]:
    """Seconds from each arrival to its end, where one server takes equal requests in turn, first come, first served.

    A request starts when it is there and the one before it is done (Lindley 1952); above 1/seconds_each arrivals a second
    the queue grows with every request.
    """
    found, free_at = [], 0.0
    for arrival in arrivals_s:
        free_at = max(arrival, free_at) + seconds_each
        found.append(free_at - arrival)
    return found


@law("{requests_per_s}·FLOPs of the first {shared_tokens:,} tokens, {shape.name}")
def redundant_flops_per_s(shape: ModelShape, shared_tokens: int, requests_per_s: float) -> float:
    """FLOP/s spent on computing a shared prefix anew for each request; beside it stands peak · MFU."""
    return requests_per_s * prefill_flops(shape, 0, shared_tokens)


@law("{gpu.peak_flops_per_s:.4g}·{mfu} / FLOPs of tokens [{start:,}, {end:,}) of {shape.name}")
def saturating_requests_per_s(shape: ModelShape, gpu: Gpu, mfu: float, start: int, end: int) -> float:
    """The request rate at which prefills of tokens [start, end) alone fill the GPU; queues grow above it."""
    return 1 / prefill_seconds(shape, gpu, mfu, start, end)


@law("{requests_per_s}·FLOPs of tokens [{start:,}, {end:,}) of {shape.name} / ({gpu.peak_flops_per_s:.4g}·{mfu})")
def prefill_load(shape: ModelShape, gpu: Gpu, mfu: float, start: int, end: int, requests_per_s: float) -> float:
    """The share of a GPU's arithmetic that prefills of tokens [start, end) ask at a rate; from 1 on queues grow."""
    return requests_per_s * prefill_seconds(shape, gpu, mfu, start, end)


@law("{shape.num_parameters:,}·{dtype_bytes} bytes / {gpu.memory_bytes_per_s:.4g}")
def weight_read_seconds(shape: ModelShape, gpu: Gpu, dtype_bytes: int = 2) -> float:
    """Seconds that any step takes at least: every step reads the weights once, however few tokens it computes."""
    return cost_model.weight_bytes(shape, dtype_bytes) / gpu.memory_bytes_per_s
