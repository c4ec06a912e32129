"""What a pool of K/V blocks holds: blocks, tokens, requests at once, and the bytes of the blocks' keys."""

from __future__ import annotations

from typing import Any

from engine.cost_model import Gpu, ModelShape
from labs import theory
from labs.estimates.collision import HASH_BITS
from labs.estimates.estimate import Estimate, Granularity, figure, gpu_text, model_text
from labs.estimates.figure import Figure, counted, shown


def estimate_pool(
    shape: ModelShape,
    granularity: Granularity,
    kv_dtype_bytes: int,
    algorithm: str,
    max_model_len: int,
    *,
    memory_bytes: float | None = None,
    gpu: Gpu | None = None,
    utilization: float = 1.0,
    weight_dtype_bytes: int = 2,
) -> Estimate:
    """Blocks, tokens and requests of a pool: of `memory_bytes`, or of what a GPU has left beside the weights.

    Raises ValueError for a pool without room for one block.
    """
    unit, nouns = granularity.size, f"{granularity.noun}s"
    figures: list[Figure] = []
    sources = [model_text(shape)]
    inputs: dict[str, Any] = {"model": shape.name, "model_source": shape.source}
    if gpu is not None:
        of_gpu = (theory.pool_bytes, gpu, utilization, shape, weight_dtype_bytes)
        found = figure("pool_bytes", "left beside the weights", "bytes", *of_gpu)
        figures.append(found)
        memory_bytes = found.value
        sources.append(gpu_text(gpu))
        inputs |= {"gpu": gpu.name, "gpu_source": gpu.source}
        inputs |= {"utilization": utilization, "weight_dtype_bytes": weight_dtype_bytes}
    else:
        inputs["memory_bytes"] = memory_bytes
    in_memory = (theory.pool_blocks, memory_bytes, shape, unit, kv_dtype_bytes)
    blocks = figure("blocks", f"{nouns}, the null {granularity.noun} among them", nouns, *in_memory)
    usable = theory.usable_blocks(int(blocks.value))
    figures += [
        figure("kv_bytes_per_token", "K/V of one token", "bytes", theory.kv_bytes_per_token, shape, kv_dtype_bytes),
        blocks,
        figure("usable_blocks", "usable", nouns, theory.usable_blocks, blocks.value),
        figure("tokens", "tokens", "tokens", theory.pool_tokens, usable, unit),
        figure(
            "concurrent_requests", f"requests of {counted(max_model_len, 'token')} at once", "requests",
            theory.concurrent_requests, usable, max_model_len, unit,
        ),
        figure("key_bytes", f"keys of all blocks, {algorithm}", "bytes", theory.key_bytes, usable, HASH_BITS[algorithm]),
    ]  # fmt: skip
    size = f"one {gpu.name} at {utilization:g}" if gpu is not None else shown(memory_bytes or 0, "bytes")
    return Estimate(
        title=f"A pool of {size}: {shape.name}, {granularity.text}",
        inputs={
            **inputs, "unit": unit, "kv_dtype_bytes": kv_dtype_bytes, "algorithm": algorithm, "max_model_len": max_model_len,
        },
        figures=tuple(figures),
        remarks=tuple(_remarks(usable, max_model_len, unit, gpu is not None)),
        sources=tuple(sources),
    )  # fmt: skip


def _remarks(num_usable: int, max_model_len: int, unit: int, is_gpu: bool) -> list[str]:
    remarks = ["The null block stands for positions that no block holds; it never holds tokens."]
    if theory.concurrent_requests(num_usable, max_model_len, unit) == 0:
        remarks.append(f"Not even one request of {counted(max_model_len, 'token')} fits: a server would refuse to start.")
    else:
        remarks.append("Requests that share a prefix share its blocks: then more of them fit.")
    if unit >= max_model_len:
        fills = "No block can ever fill: it holds" if unit > max_model_len else "No block can ever be reused: it holds"
        remarks.append(
            f"{fills} {counted(unit, 'token')}, a request at most {max_model_len:,}, and a hit takes a full block and one token "
            "behind it. Prefix caching would be on and find nothing, for every request: make the block smaller."
        )
    if is_gpu:
        remarks.append(
            "An upper bound: activations, captured graphs and the driver take their part. A server prints what is left; "
            "give it with --memory."
        )
    return remarks
