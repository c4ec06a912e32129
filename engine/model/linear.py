"""Matrix products y = x Wᵀ + b with weights arranged once, for the dtype and the machine at hand.

    kind             where                                       weights kept
    PlainLinear      CUDA; whatever the others do not cover       [out, in]
    PackedLinear     CPU, float32; bfloat16 with instructions     oneDNN's own blocks
    WidenedLinear    CPU, bfloat16 without instructions           oneDNN's blocks in float32, and [out, in] in bfloat16

A CPU without bfloat16 instructions takes eight times as long for a bfloat16 product as for a float32 one. A product of
two bfloat16 numbers is exact in float32, and sums are kept in float32 either way: multiplying the same numbers in
float32 and rounding the result once is the same product.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from engine.model.machine import memory_limit_bytes, multiplies_bf16_fast

# Rows that the packed layout is chosen for; it serves any number.
TYPICAL_ROWS = 256
# Widened weights take three times the memory of the checkpoint's: allowed up to this share of the machine's.
WIDENED_MEMORY_SHARE = 0.4


class Linear(Protocol):
    """[n, in] -> [n, out], in the dtype of the model."""

    def __call__(self, rows: Tensor) -> Tensor: ...

    def product_dtype(self, num_rows: int) -> torch.dtype:
        """In which so many rows are multiplied."""
        ...

    def multiply(self, rows: Tensor) -> Tensor:
        """The product of rows that are in the product's dtype, in that dtype."""
        ...


class PlainLinear:
    """torch's own product."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, rows: Tensor) -> Tensor:
        return linear(rows, self.weight, self.bias)

    def product_dtype(self, num_rows: int) -> torch.dtype:
        return self.weight.dtype

    multiply = __call__


class PackedLinear:
    """oneDNN's product with weights in oneDNN's blocks: nothing is rearranged at a call."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
        self.bias = bias
        self._product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, rows: Tensor) -> Tensor:
        return self._product(rows, self.weight, self.bias, "none", [], "")

    def product_dtype(self, num_rows: int) -> torch.dtype:
        return self.weight.dtype

    multiply = __call__


class WidenedLinear:
    """bfloat16 rows and weights multiplied in float32; the result is rounded to bfloat16."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self._wide = PackedLinear(weight.float(), None if bias is None else bias.float())

    def __call__(self, rows: Tensor) -> Tensor:
        return self.multiply(rows.to(self.product_dtype(rows.shape[0]))).to(rows.dtype)

    def product_dtype(self, num_rows: int) -> torch.dtype:
        # One row is as fast as its weights can be read, and in bfloat16 these are half as many bytes.
        return torch.bfloat16 if num_rows == 1 else torch.float32

    def multiply(self, rows: Tensor) -> Tensor:
        return self._wide(rows) if rows.dtype is torch.float32 else linear(rows, self.weight, self.bias)


def linear_kind(dtype: torch.dtype, device: torch.device, num_weights: int = 0) -> type[PlainLinear | PackedLinear | WidenedLinear]:
    """Which product serves weights of this dtype and device.

    num_weights  of the whole model; too many for the machine's memory are not widened
    """
    if device.type != "cpu" or not _has_onednn():
        return PlainLinear
    if dtype is torch.float32:
        return PackedLinear
    if dtype is not torch.bfloat16:
        return PlainLinear
    if multiplies_bf16_fast(device):
        return PackedLinear if torch.ops.mkldnn._is_mkldnn_bf16_supported() else PlainLinear
    return WidenedLinear if 6 * num_weights <= WIDENED_MEMORY_SHARE * memory_limit_bytes() else PlainLinear


def _has_onednn() -> bool:
    # Both operators are torch's own, not part of its documented interface: looked up before they are used.
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    )
