"""Attention over paged K/V, reached through transformers' attention interface.

A model asks for attention by name, once per layer. Ours writes the step's keys and values into their slots and
lets each request's queries read that request's context. What belongs to the step (slots, ranges, masks) is
planned once, in an SdpaAttention object, and found through a context variable while one forward runs: so any
model works, whether or not it hands extra arguments down to its layers.

    piece             its queries                  how it reads
    CausalPiece       a request's whole context    from this step's own keys and values, causal, nothing is gathered
    ChunkPiece        the next tokens of one       the context's slots, causal mask aligned to the lower right
    DecodePiece       one token of one request     the context's slots, no mask
    DecodeBatchPiece  one token of each of many    the contexts gathered into one padded batch

Grouped queries (G query heads share a K/V head) are packed as extra rows: [num_kv_heads, G * rows, head_dim]. Keys
and values are then never repeated, and every kernel accepts the mask.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Iterator, Protocol, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.errors import ModelNotSupported
from engine.model.kv_tensors import KVTensors, Slots, as_slots
from engine.model.model_input import TokenSpan

ATTENTION_NAME = "labcli_paged"

# Queries of one chunk piece: bounds the mask, and the part of the context that the mask would throw away.
MAX_CHUNK_ROWS = 512
# On a CPU a gathered batch pays only where calls cost more than copies.
CPU_BATCH_CONTEXT = 256
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
        batch, longest = self.mask.shape[0], self.mask.shape[-1]
        num_heads, num_kv_heads, head_dim = query.shape[0], keys.shape[0], query.shape[-1]
        context_keys, context_values = (
            gathered.view(batch, longest, num_kv_heads, head_dim).transpose(1, 2)
            for gathered in self.kv.read(layer, self.slots)
        )
        packed = query[:, self.rows].transpose(0, 1).reshape(batch, num_kv_heads, num_heads // num_kv_heads, head_dim)
        out = scaled_dot_product_attention(packed, context_keys, context_values, attn_mask=self.mask, scale=scale)
        return out.reshape(batch, num_heads, head_dim)


def _pack(query: Tensor, num_kv_heads: int) -> Tensor:
    """[num_heads, rows, head_dim] -> [1, num_kv_heads, G * rows, head_dim]; head h reads K/V head h // G."""
    return query.reshape(1, num_kv_heads, -1, query.shape[-1])


def _unpack(out: Tensor, num_heads: int) -> Tensor:
    """[1, num_kv_heads, G * rows, head_dim] -> [rows, num_heads, head_dim]."""
    return out.reshape(num_heads, -1, out.shape[-1]).transpose(0, 1)


class SdpaAttention:
    """The attention of one step with torch's scaled_dot_product_attention, planned once and run in every layer.

    write_slots  [T] int64, where the rows' K/V go
    spans        the requests, in row order; together they cover all T rows
    num_heads    query heads of every layer
    """

    def __init__(
        self, kv: KVTensors, write_slots: np.ndarray, spans: Sequence[TokenSpan], num_heads: int, num_kv_heads: int
    ) -> None:
        self.kv = kv
        self.num_rows = len(write_slots)
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.write_slots = as_slots(write_slots, kv.device)
        self.longest_context = max(len(span.context_slots) for span in spans)
        self.layers_seen: list[int] = []
        self.pieces: list[Piece] = []
        decodes: list[TokenSpan] = []
        for span in spans:
            if span.start == 0:
                self.pieces.append(CausalPiece(slice(span.first_row, span.first_row + span.num_rows)))
            elif span.num_rows == 1:
                decodes.append(span)
            else:
                self._plan_chunk(span)
        self._plan_decodes(decodes)

    def forward(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float | None) -> Tensor:
        """One layer: store the rows' K/V, then attend.

        query         [num_heads, T, head_dim]
        keys, values  [num_kv_heads, T, head_dim]
        returns       [T, num_heads, head_dim]
        """
        self.layers_seen.append(layer)
        self.kv.write(layer, self.write_slots, keys.transpose(0, 1), values.transpose(0, 1))
        if len(self.pieces) == 1:
            return self.pieces[0].attend(query, keys, values, layer, scale)
        out = query.new_empty((self.num_rows, query.shape[0], query.shape[-1]))
        for piece in self.pieces:
            out[piece.rows] = piece.attend(query, keys, values, layer, scale)
        return out

    def _plan_chunk(self, span: TokenSpan) -> None:
        for offset in range(0, span.num_rows, MAX_CHUNK_ROWS):
            num_rows = min(MAX_CHUNK_ROWS, span.num_rows - offset)
            first = span.first_row + offset
            slots = span.context_slots[: span.start + offset + num_rows]
            mask = _chunk_mask(num_rows, len(slots), self.num_heads // self.num_kv_heads, self.kv)
            self.pieces.append(ChunkPiece(slice(first, first + num_rows), self.kv, as_slots(slots, self.kv.device), mask))

    def _plan_decodes(self, spans: list[TokenSpan]) -> None:
        """Batches of contexts within a factor of two in length, so that at most half of one is padding."""
        buckets: dict[int, list[TokenSpan]] = {}
        on_cpu = self.kv.device.type == "cpu"
        for span in spans:
            length = len(span.context_slots)
            bucket = -1 if on_cpu and length > CPU_BATCH_CONTEXT else length.bit_length()
            buckets.setdefault(bucket, []).append(span)
        for bucket, members in buckets.items():
            if bucket >= 0 and len(members) > 1:
                self.pieces.append(self._decode_batch(members))
                continue
            for span in members:
                rows = slice(span.first_row, span.first_row + 1)
                self.pieces.append(DecodePiece(rows, self.kv, as_slots(span.context_slots, self.kv.device)))

    def _decode_batch(self, spans: list[TokenSpan]) -> DecodeBatchPiece:
        longest = max(len(span.context_slots) for span in spans)
        slots = np.zeros((len(spans), longest), dtype=np.int64)
        hidden = np.ones((len(spans), longest), dtype=bool)
        for index, span in enumerate(spans):
            slots[index, : len(span.context_slots)] = span.context_slots
            hidden[index, : len(span.context_slots)] = False
        device = self.kv.device
        mask = torch.zeros((len(spans), 1, 1, _aligned(longest)), dtype=self.kv.dtype, device=device)[..., :longest]
        mask[:, 0, 0].masked_fill_(torch.from_numpy(hidden).to(device, non_blocking=True), float("-inf"))
        rows = as_slots(np.array([span.first_row for span in spans], dtype=np.int64), device)
        return DecodeBatchPiece(rows, self.kv, torch.from_numpy(slots).reshape(-1).to(device, non_blocking=True), mask)


def _chunk_mask(num_rows: int, num_context: int, num_groups: int, kv: KVTensors) -> Tensor:
    """[num_groups * num_rows, num_context]: the last row sees all, each row before it one token less."""
    mask = torch.full((num_rows, _aligned(num_context)), float("-inf"), dtype=kv.dtype, device=kv.device)
    mask.triu_(num_context - num_rows + 1)
    return mask.repeat(num_groups, 1)[:, :num_context]


def _aligned(length: int) -> int:
    return -(-length // MASK_ALIGNMENT) * MASK_ALIGNMENT


_current_step: ContextVar[SdpaAttention] = ContextVar("paged_attention_step")


@contextmanager
def attention_step(step: SdpaAttention) -> Iterator[SdpaAttention]:
    """While inside, the registered attention computes `step`."""
    token = _current_step.set(step)
    try:
        yield step
    finally:
        _current_step.reset(token)


def register_attention() -> str:
    """Make our attention known to transformers; returns the name to load models with."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, _paged_attention)
    return ATTENTION_NAME


def _paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """What transformers calls, once a layer.

    query       [1, num_heads, T, head_dim]
    key, value  [1, num_kv_heads, T, head_dim]
    returns     [1, T, num_heads, head_dim], and no attention weights

    Raises ModelNotSupported when a layer asks for something that is not plain causal attention.
    """
    step = _current_step.get()
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    extras = [name for name in ("softcap", "s_aux", "position_bias", "head_mask") if kwargs.get(name) is not None]
    if not causal:
        raise ModelNotSupported("its attention is not causal: a token reads tokens after it, whose K/V change")
    if sliding_window is not None and sliding_window < step.longest_context:
        raise ModelNotSupported(f"a layer reads only the last {sliding_window} tokens (sliding window)")
    if extras or attention_mask is not None:
        reason = ", ".join(extras) or "a mask of its own"
        raise ModelNotSupported(f"its attention uses {reason}, which the paged attention does not compute")
    layer = getattr(module, "layer_idx", None)
    expected = (1, step.num_kv_heads, step.num_rows, query.shape[-1])
    if layer is None or query.shape[1] != step.num_heads or key.shape != expected or value.shape != expected:
        raise ModelNotSupported("its layers do not all have the heads that its config promises")
    return step.forward(layer, query[0], key[0], value[0], scaling)[None], None
