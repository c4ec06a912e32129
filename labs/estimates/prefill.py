"""What a prefill costs, cold and with a cached prefix: arithmetic, time, and the request rate that one GPU bears."""

from __future__ import annotations

from dataclasses import replace

from engine.cost_model import Gpu, ModelShape
from labs import theory
from labs.estimates.estimate import Estimate, figure, gpu_text, model_text
from labs.estimates.figure import Figure, counted, shown, shown_rate


def estimate_prefill(
    shape: ModelShape, gpu: Gpu, mfu: float, prompt_tokens: int, cached_tokens: int, requests_per_s: float | None = None
) -> Estimate:
    """What the cached tokens of a prompt save: FLOPs, seconds, and the request rate that one GPU bears."""
    cold, warm = (0, prompt_tokens), (cached_tokens, prompt_tokens)
    on_gpu = (shape, gpu, mfu)
    figures = [figure("flops_cold", "arithmetic, cold", "FLOP", theory.prefill_flops, shape, *cold)]
    if cached_tokens:
        figures += [
            figure("flops_warm", "arithmetic, with the cache", "FLOP", theory.prefill_flops, shape, *warm),
            figure("cold_over_warm", "arithmetic, cold over cached", "times", theory.cold_over_warm, shape, *warm),
            figure("redundant_share", "redundant when cold", "ratio", theory.redundant_share, shape, *warm),
        ]
    figures.append(figure("seconds_cold", "time, cold", "s", theory.prefill_seconds, *on_gpu, *cold))
    if cached_tokens:
        figures += [
            figure("seconds_warm", "time, with the cache", "s", theory.prefill_seconds, *on_gpu, *warm),
            figure("seconds_saved", "saved by the cache", "s", theory.saved_seconds, *on_gpu, cached_tokens),
        ]
    if requests_per_s is not None:
        figures += _rate_figures(on_gpu, prompt_tokens, cached_tokens, requests_per_s)
    saturation = theory.saturating_requests_per_s
    figures.append(figure("saturation_cold", "saturated, cold, from", "requests/s", saturation, *on_gpu, *cold))
    if cached_tokens:
        figures.append(figure("saturation_warm", "saturated, with the cache, from", "requests/s", saturation, *on_gpu, *warm))
    cached = f", {cached_tokens:,} of them cached" if cached_tokens else ""
    estimate = Estimate(
        title=f"Prefill of {counted(prompt_tokens, 'token')}{cached}: {shape.name} on {gpu.name}, MFU {mfu:g}",
        inputs={
            "model": shape.name, "model_source": shape.source, "gpu": gpu.name, "gpu_source": gpu.source, "mfu": mfu,
            "prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens, "requests_per_s": requests_per_s,
        },
        figures=tuple(figures),
        sources=(model_text(shape), gpu_text(gpu)),
    )  # fmt: skip
    verdict = [] if requests_per_s is None else [_rate_verdict(estimate, requests_per_s)]
    return replace(estimate, remarks=(*verdict, *_fit_remarks(shape, gpu, estimate)))


def _rate_figures(on_gpu: tuple[ModelShape, Gpu, float], prompt: int, cached: int, rate: float) -> list[Figure]:
    shape, gpu, mfu = on_gpu
    at = f"at {shown_rate(rate, 'requests')}"
    delivered = theory.achieved_flops_per_s(gpu, mfu)
    figures = []
    if cached:
        asked = (theory.redundant_flops_per_s, shape, cached, rate)
        figures.append(figure("redundant_flops_per_s", f"redundant {at}", "FLOP/s", *asked, of=delivered))
    figures += [
        figure("achieved_flops_per_s", "the GPU delivers", "FLOP/s", theory.achieved_flops_per_s, gpu, mfu),
        figure("load_cold", f"load {at}, cold", "ratio", theory.prefill_load, *on_gpu, 0, prompt, rate),
    ]
    if cached:
        warm = (*on_gpu, cached, prompt, rate)
        figures.append(figure("load_warm", f"load {at}, with the cache", "ratio", theory.prefill_load, *warm))
    return figures


def _rate_verdict(estimate: Estimate, rate: float) -> str:
    """Whether one GPU bears the rate, in words."""
    at = f"at {shown_rate(rate, 'requests')}"
    has_cache = bool(estimate.inputs["cached_tokens"])
    if has_cache and estimate["load_warm"] >= 1:
        return f"Saturated {at}, even with the cache: queues grow without end."
    if estimate["load_cold"] < 1:
        return f"Not saturated {at}{', even cold' if has_cache else ''}: prefills leave the GPU time to decode."
    if not has_cache:
        return f"Saturated {at}: queues grow without end."
    is_alone = estimate["redundant_flops_per_s"] >= estimate["achieved_flops_per_s"]
    why = "the redundant part alone asks more than the GPU delivers" if is_alone else "queues grow without end"
    cold, warm = (shown(estimate[f"saturation_{state}"], "requests/s") for state in ("cold", "warm"))
    return f"Saturated {at} when cold, from {cold} on: {why}. With the cache one GPU bears up to {warm}."


def _fit_remarks(shape: ModelShape, gpu: Gpu, estimate: Estimate) -> list[str]:
    """Where the arithmetic alone would mislead."""
    remarks = []
    fastest = "seconds_warm" if estimate.inputs["cached_tokens"] else "seconds_cold"
    reading_s = theory.weight_read_seconds(shape, gpu)
    if estimate[fastest] < reading_s:
        remarks.append(
            f"Reading the weights (bf16) takes {shown(reading_s, 's')} in any step, so that a short prefill takes that long "
            "unless it shares its step with others."
        )
    if theory.pool_bytes(gpu, 1.0, shape) <= 0:
        remarks.append(f"The weights (bf16) do not fit in one {gpu.name}: read the times as those of one GPU's arithmetic.")
    if estimate.inputs["prompt_tokens"] > shape.max_model_len:
        remarks.append(f"{shape.name} takes at most {counted(shape.max_model_len, 'token')}.")
    return remarks
