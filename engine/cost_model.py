"""Cost model: FLOPs, bytes and seconds of a step, from a model's shape and a GPU's data sheet.

A transformer's forward pass of one token costs two FLOPs per parameter (a multiply and an add), plus attention
over the tokens before it: position s multiplies s keys and sums s values, in every layer and query head. So
the cost of a prompt's tokens [start, end) is a sum over positions, and the tokens found in the prefix cache are
exactly the terms left out of it.

A step also has to read the weights and the K/V of its requests from memory. Whichever of the two takes longer,
arithmetic or reading, decides its time (the roofline): prefill is mostly arithmetic, decode mostly reading.
"""

from __future__ import annotations

from typing import Iterable

from engine.errors import ConfigError
from engine.gpus import GPUS, Gpu, gpu_by_name
from engine.known_models import MODELS, model_shape
from engine.model_shape import ModelShape

# The tables are read here by everyone who computes a cost.
__all__ = [
    "GPUS", "MODELS", "Gpu", "ModelShape", "achieved_flops_per_s", "gpu_by_name", "kv_bytes_per_token", "model_shape",
    "pool_blocks", "prefill_flops", "prefill_seconds", "step_seconds", "weight_bytes",
]  # fmt: skip


def prefill_flops(shape: ModelShape, start: int, end: int) -> int:
    """FLOPs of computing a request's tokens [start, end); those before `start` have K/V already.

        sum over positions s in [start, end) of  2·P + 4·L·h·d_h·s

    P parameters, L layers, h query heads, d_h head dimension. The attention term is 2 FLOPs for each of d_h
    multiply-adds, once for the scores and once for the values. With n = end − start positions, their sum is
    n·(start + end − 1)/2, so the whole needs no loop. A decode step is the range of one token.

    Returns a whole number. Raises ConfigError unless 0 <= start <= end.
    Source: the usual count of matrix-multiply FLOPs (Kaplan et al. 2020, arXiv:2001.08361, table 1), inference only.
    """
    if not 0 <= start <= end:
        raise ConfigError("start", start, f"a whole number from 0 to end, which is {end}")
    num_tokens = end - start
    sum_of_positions = num_tokens * (start + end - 1) // 2
    attention_flops_per_position = 4 * shape.num_layers * shape.num_heads * shape.head_dim
    return num_tokens * 2 * shape.num_parameters + attention_flops_per_position * sum_of_positions


def achieved_flops_per_s(gpu: Gpu, mfu: float) -> float:
    """FLOP/s a GPU really delivers: peak · MFU (model FLOPs utilisation, a share of peak above 0, up to 1).

    Source of the term: Chowdhery et al. 2022, PaLM, arXiv:2204.02311, appendix B.
    """
    if not 0 < mfu <= 1:
        raise ConfigError("mfu", mfu, "a number above 0, up to 1")
    return gpu.peak_flops_per_s * mfu


def prefill_seconds(shape: ModelShape, gpu: Gpu, mfu: float, start: int, end: int) -> float:
    """Seconds of arithmetic for a request's tokens [start, end): FLOPs / (peak · MFU)."""
    return prefill_flops(shape, start, end) / achieved_flops_per_s(gpu, mfu)


def kv_bytes_per_token(shape: ModelShape, dtype_bytes: int = 2) -> int:
    """Bytes of one token's keys and values over all layers: 2 · L · kv_heads · d_h · dtype bytes."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * dtype_bytes


def weight_bytes(shape: ModelShape, dtype_bytes: int = 2) -> int:
    """Bytes of the weights, all in one dtype."""
    return shape.num_parameters * dtype_bytes


def pool_blocks(pool_bytes: float, shape: ModelShape, block_size: int, dtype_bytes: int = 2) -> int:
    """Whole blocks of `block_size` tokens that fit in `pool_bytes`; one of them becomes the null block."""
    return int(pool_bytes // (kv_bytes_per_token(shape, dtype_bytes) * block_size))


def step_seconds(
    shape: ModelShape, gpu: Gpu, mfu: float, ranges: Iterable[tuple[int, int]], dtype_bytes: int = 2
) -> float:
    """Seconds of one step that computes tokens [start, end) of each request in `ranges`; 0.0 for none.

        max( sum of FLOPs / (peak · MFU),  (weight bytes + K/V bytes of every [0, end)) / memory bandwidth )

    The weights are read once for the whole batch; each request's K/V once, however many of its tokens are
    computed. Writing new K/V, activations and launch times are left out: they are small beside these.
    Source: roofline model, Williams et al. 2009, doi:10.1145/1498765.1498785.
    """
    num_flops = 0
    num_kv_tokens = 0
    for start, end in ranges:
        num_flops += prefill_flops(shape, start, end)
        num_kv_tokens += end
    if num_flops == 0:
        return 0.0
    read_bytes = weight_bytes(shape, dtype_bytes) + num_kv_tokens * kv_bytes_per_token(shape, dtype_bytes)
    return max(num_flops / achieved_flops_per_s(gpu, mfu), read_bytes / gpu.memory_bytes_per_s)
