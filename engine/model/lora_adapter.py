"""LoraAdapter: a low-rank change of the products for q, k and v, as random numbers from a seed.

    W x  becomes  W x + scale · B (A x)        A [RANK, in], B [out, RANK], one pair a product and layer

K and V change with it, so a prefix computed with one adapter is wrong for every other: its name must say which.

No adapter files are read. The path of a LoRA names a seed, "seeded:7", and stands for the same numbers in every model of
one shape, wherever it runs: enough to see what an adapter does to a cache.

Source: LoRA, arXiv:2106.09685; scale = alpha / rank.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from engine.errors import RequestRefused

RANK = 8
ALPHA = 8.0  # scale 1: what SmolLM2 says changes, and is still made of words
ACCEPTED_PATHS = '"seeded:<n>", n a whole number from 0 to 2^63 − 1'


class QkvShape(NamedTuple):
    """Sizes of a model's products for q, k and v, the same in every layer."""

    num_layers: int
    hidden_size: int
    out_sizes: tuple[int, int, int]  # rows of q, k and v


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """The matrices of each layer, those of q, k and v in one.

    down  [num_layers] of [3 * RANK, hidden_size]: A of q, k and v, one below the other
    up    [num_layers] of [q + k + v, 3 * RANK]: scale · B of each, on the diagonal
    """

    shape: QkvShape
    down: list[Tensor]
    up: list[Tensor]

    def product(self, layer: int, rows: Tensor) -> Tensor:
        """What it adds to q, k and v side by side: [n, hidden_size] -> [n, q + k + v], in the dtype of `rows`."""
        return rows @ self.down[layer].to(rows.dtype).T @ self.up[layer].to(rows.dtype).T

    def matrices(self, layer: int, part: int) -> tuple[Tensor, Tensor]:
        """A [RANK, hidden_size] and scale · B [out, RANK] of q (part 0), k (1) or v (2)."""
        sizes, ranks = self.shape.out_sizes, slice(part * RANK, (part + 1) * RANK)
        first = sum(sizes[:part])
        return self.down[layer][ranks], self.up[layer][first : first + sizes[part], ranks]

    def product_of(self, layer: int, part: int, rows: Tensor) -> Tensor:
        """What it adds to q, k or v alone: [n, hidden_size] -> [n, out]."""
        down, up = self.matrices(layer, part)
        return rows @ down.to(rows.dtype).T @ up.to(rows.dtype).T


def seed_of(path: str) -> int:
    """The seed in a LoRA's path. Raises RequestRefused for a path of another form."""
    found = re.fullmatch(r"seeded:(\d{1,19})", path)
    if found is None or int(found[1]) >= 2**63:
        raise RequestRefused(f"a LoRA path {path!r}; accepted: {ACCEPTED_PATHS}")
    return int(found[1])


def seeded_adapter(seed: int, shape: QkvShape, dtype: torch.dtype, device: torch.device) -> LoraAdapter:
    """The adapter of a seed: drawn in float32 on the CPU, so that every machine draws the same, then cast."""
    generator = torch.Generator().manual_seed(seed)
    num_layers, hidden_size, out_sizes = shape
    down, up = [], []
    for _ in range(num_layers):
        down.append(torch.randn(3 * RANK, hidden_size, generator=generator) / math.sqrt(hidden_size))
        # Rows of unit length on average: the change is then as large as what comes in, times the scale.
        parts = [torch.randn(size, RANK, generator=generator) * (ALPHA / RANK / math.sqrt(RANK)) for size in out_sizes]
        up.append(torch.block_diag(*parts))
    return LoraAdapter(shape, *([matrix.to(device, dtype) for matrix in matrices] for matrices in (down, up)))
