"""Laws of the K/V pool: bytes, blocks, tokens, keys."""

from __future__ import annotations

from engine import cost_model
from engine.cost_model import Gpu, ModelShape
from labs.laws.law import check, law


@law("{gpu.memory_bytes:.4g}·{utilization} − {shape.num_parameters:,}·{weight_dtype_bytes} bytes")
def pool_bytes(gpu: Gpu, utilization: float, shape: ModelShape, weight_dtype_bytes: int = 2) -> float:
    """Bytes a GPU has left for K/V beside the weights; not above 0 where they do not fit.

    An upper bound: activations, captured graphs and the driver take their part as well.
    """
    check(0 < utilization <= 1, "utilization", utilization, "a number above 0, up to 1")
    return gpu.memory_bytes * utilization - cost_model.weight_bytes(shape, weight_dtype_bytes)


@law("2·{shape.num_layers}·{shape.num_kv_heads}·{shape.head_dim}·{dtype_bytes}")
def kv_bytes_per_token(shape: ModelShape, dtype_bytes: int = 2) -> int:
    """Bytes of one token's keys and values over all layers."""
    return cost_model.kv_bytes_per_token(shape, dtype_bytes)


@law("⌊{pool_bytes:.6g} bytes / (2·{shape.num_layers}·{shape.num_kv_heads}·{shape.head_dim}·{dtype_bytes}·{unit})⌋")
def pool_blocks(pool_bytes: float, shape: ModelShape, unit: int, dtype_bytes: int = 2) -> int:
    """Blocks that fit in a pool of `pool_bytes`, the null block, which holds nothing, included."""
    return cost_model.pool_blocks(pool_bytes, shape, unit, dtype_bytes)


@law("{num_blocks:,} − 1")
def usable_blocks(num_blocks: int) -> int:
    """Blocks of a pool that can hold tokens: all but the null block."""
    check(num_blocks >= 1, "num_blocks", num_blocks, "a whole number from 1")
    return num_blocks - 1


@law("{num_usable:,}·{unit}")
def pool_tokens(num_usable: int, unit: int) -> int:
    """Tokens that a pool's usable blocks hold, cached or in use."""
    return num_usable * unit


@law("⌊{num_usable:,}/⌈{request_tokens:,}/{unit}⌉⌋")
def concurrent_requests(num_usable: int, request_tokens: int, unit: int) -> int:
    """Requests of a length that fit at once when they share nothing; each fills whole blocks."""
    check(request_tokens >= 1, "request_tokens", request_tokens, "a whole number from 1")
    return num_usable // -(-request_tokens // unit)


@law("{num_blocks:,}·({hash_bits}/8 + 4)")
def key_bytes(num_blocks: int, hash_bits: int) -> int:
    """Bytes of the keys of n cached blocks: each block's digest and four bytes for its group of layers.

    The bytes of the keys alone; the objects and the table that hold them take more.
    """
    return num_blocks * (hash_bits // 8 + 4)
