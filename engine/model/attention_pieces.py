"""Pieces of one step's attention: which rows, what they read, and the kernel call that computes them.

    piece              its queries                  how it reads
    CausalPiece        a request's whole context    from this step's own keys and values, causal, nothing is gathered
    ChunkPiece         the next tokens of one       the context's slots, causal mask aligned to the lower right
    DecodePiece        one token of one request     the context's slots, no mask
    DecodeBatchPiece   one token of each of many    the contexts gathered into one padded batch
    SharedPrefixPiece  one token of each of many    the prefix they share once for all, in place; the rest as a batch
    NativePiece        one token of each of many    each context's slots, in place, by a kernel compiled for this machine

Grouped queries (G query heads share a K/V head) are packed as extra rows: [num_kv_heads, G * rows, head_dim]. Keys
and values are then never repeated, and every kernel accepts the mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.model.kv_tensors import KVTensors, Slots
from engine.model.native_kernels import NativeKernels

# Mask rows start at multiples of this, which CUDA's memory-efficient kernel asks for.
MASK_ALIGNMENT = 16


class Piece(Protocol):
    """Some rows of the step that one kernel call computes."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float | None) -> Tensor:
        """Outputs [rows, num_heads, head_dim] of this piece.

        query         [num_heads, T, head_dim], all rows of the step
        keys, values  [num_kv_heads, T, head_dim], this step's own
        """
        ...


@dataclass(frozen=True, slots=True)
class CausalPiece:
    rows: slice

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float | None) -> Tensor:
        grouped = query.shape[0] != keys.shape[0]
        return scaled_dot_product_attention(
            query[None, :, self.rows], keys[None, :, self.rows], values[None, :, self.rows],
            is_causal=True, scale=scale, **({"enable_gqa": True} if grouped else {}),
        )[0].transpose(0, 1)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChunkPiece:
    rows: slice
    kv: KVTensors
    slots: Slots  # of the context up to the last of the rows
    mask: Tensor  # [G * rows, context], 0 where a row may look and -inf where it may not

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float | None) -> Tensor:
        context_keys, context_values = self.kv.read(layer, self.slots)
        packed = _pack(query[:, self.rows], keys.shape[0])
        out = scaled_dot_product_attention(
            packed, context_keys.transpose(0, 1)[None], context_values.transpose(0, 1)[None],
            attn_mask=self.mask, scale=scale,
        )  # fmt: skip
        return _unpack(out, query.shape[0])


@dataclass(frozen=True, slots=True)
class DecodePiece:
    rows: slice
    kv: KVTensors
    slots: Slots

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float | None) -> Tensor:
        context_keys, context_values = self.kv.read(layer, self.slots)
        out = scaled_dot_product_attention(
            _pack(query[:, self.rows], keys.shape[0]),
            context_keys.transpose(0, 1)[None], context_values.transpose(0, 1)[None], scale=scale,
        )  # fmt: skip
        return _unpack(out, query.shape[0])


@dataclass(frozen=True, slots=True)
class DecodeBatchPiece:
    rows: slice | Tensor
    kv: KVTensors
    slots: Tensor  # [batch * longest], contexts padded with slot 0
    mask: Tensor  # [batch, 1, 1, longest], -inf over the padding

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float | None) -> Tensor:
        packed, context_keys, context_values = self.gather(query, keys.shape[0], layer)
        out = scaled_dot_product_attention(packed, context_keys, context_values, attn_mask=self.mask, scale=scale)
        return out.reshape(-1, query.shape[0], query.shape[-1])

    def gather(self, query: Tensor, num_kv_heads: int, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [batch, num_kv_heads, G, head_dim], keys and values [batch, num_kv_heads, longest, head_dim]."""
        batch, longest = self.mask.shape[0], self.mask.shape[-1]
        num_heads, head_dim = query.shape[0], query.shape[-1]
        context_keys, context_values = (
            gathered.view(batch, longest, num_kv_heads, head_dim).transpose(1, 2)
            for gathered in self.kv.read(layer, self.slots)
        )
        packed = query[:, self.rows].transpose(0, 1).reshape(batch, num_kv_heads, num_heads // num_kv_heads, head_dim)
        return packed, context_keys, context_values


@dataclass(frozen=True, slots=True)
class SharedPrefixPiece:
    """Attention over a context in two parts, each with the log of its weights' sum, joined by those (FlashAttention's
    rule): softmax over the whole is the mean of the parts' outputs, weighted by exp(log-sum).

    On a CPU only: the operator that returns the log-sums has another name elsewhere.
    """

    kv: KVTensors
    prefix: Slots  # what all rows share
    rest: DecodeBatchPiece  # the rows, and the slots behind the prefix

    @property
    def rows(self) -> slice | Tensor:
        return self.rest.rows

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float | None) -> Tensor:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        num_heads, num_kv_heads, head_dim = query.shape[0], keys.shape[0], query.shape[-1]
        prefix_keys, prefix_values = self.kv.read(layer, self.prefix)
        of_prefix, prefix_sum = flash(
            _pack(query[:, self.rows], num_kv_heads),
            prefix_keys.transpose(0, 1)[None], prefix_values.transpose(0, 1)[None], scale=scale,
        )  # fmt: skip
        packed, rest_keys, rest_values = self.rest.gather(query, num_kv_heads, layer)
        batch, groups = packed.shape[0], packed.shape[2]
        of_rest, rest_sum = flash(
            packed, rest_keys, rest_values,
            attn_mask=self.rest.mask.expand(batch, num_kv_heads, groups, -1), scale=scale,
        )  # fmt: skip
        of_prefix = of_prefix.view(num_kv_heads, groups, batch, head_dim).permute(2, 0, 1, 3)
        prefix_sum = prefix_sum.view(num_kv_heads, groups, batch).permute(2, 0, 1)
        weight = torch.sigmoid(prefix_sum - rest_sum)[..., None].to(of_rest.dtype)
        return torch.lerp(of_rest, of_prefix, weight).reshape(batch, num_heads, head_dim)


@dataclass(frozen=True, slots=True)
class NativePiece:
    rows: slice | Tensor
    kv: KVTensors
    kernels: NativeKernels
    row_ids: Tensor  # [batch] int64, the same rows
    starts: Tensor  # [batch + 1] int64, where each context begins in `slots`
    slots: Tensor  # int64, all contexts one after the other

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, layer: int, scale: float | None) -> Tensor:
        by_row = query.transpose(0, 1)
        if by_row.stride()[1:] != (by_row.shape[2], 1):
            by_row = by_row.contiguous()
        out = query.new_empty((self.row_ids.shape[0], *by_row.shape[1:]))
        pool_keys, pool_values = self.kv.layer(layer)
        scale = by_row.shape[2] ** -0.5 if scale is None else scale
        self.kernels.attend(by_row, pool_keys, pool_values, self.row_ids, self.starts, self.slots, out, scale)
        return out


def _pack(query: Tensor, num_kv_heads: int) -> Tensor:
    """[num_heads, rows, head_dim] -> [1, num_kv_heads, G * rows, head_dim]; head h reads K/V head h // G."""
    return query.reshape(1, num_kv_heads, -1, query.shape[-1])


def _unpack(out: Tensor, num_heads: int) -> Tensor:
    """[1, num_kv_heads, G * rows, head_dim] -> [rows, num_heads, head_dim]."""
    return out.reshape(num_heads, -1, out.shape[-1]).transpose(0, 1)


def chunk_mask(num_rows: int, num_context: int, num_groups: int, kv: KVTensors) -> Tensor:
    """[num_groups * num_rows, num_context]: the last row sees all, each row before it one token less."""
    mask = torch.full((num_rows, aligned(num_context)), float("-inf"), dtype=kv.dtype, device=kv.device)
    mask.triu_(num_context - num_rows + 1)
    return mask.repeat(num_groups, 1)[:, :num_context]


def aligned(length: int) -> int:
    """The next multiple of MASK_ALIGNMENT."""
    return -(-length // MASK_ALIGNMENT) * MASK_ALIGNMENT
