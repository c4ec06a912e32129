"""Attention over paged K/V, reached through transformers' attention interface.

A model asks for attention by name, once per layer. Ours writes the step's keys and values into their slots and
lets each request's queries read that request's context. What belongs to the step (slots, ranges, masks) is
planned once, in an SdpaAttention object, cut into pieces (attention_pieces.py), and found through a context variable
while one forward runs: so any model works, whether or not it hands extra arguments down to its layers.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.errors import ModelNotSupported
from engine.model.attention_pieces import (
    CausalPiece,
    ChunkPiece,
    DecodeBatchPiece,
    DecodePiece,
    NativePiece,
    Piece,
    SharedPrefixPiece,
    aligned,
    chunk_mask,
)  # fmt: skip
from engine.model.kv_tensors import KVTensors, as_slots
from engine.model.model_input import TokenSpan
from engine.model.native_kernels import NativeKernels

ATTENTION_NAME = "labcli_paged"

# Queries of one chunk piece: bounds the mask, and the part of the context that the mask would throw away.
MAX_CHUNK_ROWS = 512
# On a CPU longer contexts are read one by one, in place: calls then cost less than copies.
CPU_BATCH_CONTEXT = 512
# Gathered tokens of one batch: bounds the memory of the copies.
CPU_BATCH_TOKENS = 65_536
# Requests that decode together over the same slots, and how many of those, before reading them once pays.
SHARED_PREFIX_REQUESTS = 4
SHARED_PREFIX_TOKENS = 64


class SdpaAttention:
    """The attention of one step with torch's scaled_dot_product_attention, planned once and run in every layer.

    write_slots  [T] int64, where the rows' K/V go
    spans        the requests, in row order; together they cover all T rows
    num_heads    query heads of every layer
    kernels      compiled ones, for single tokens; None: torch's own for all
    """

    def __init__(
        self,
        kv: KVTensors,
        write_slots: np.ndarray,
        spans: Sequence[TokenSpan],
        num_heads: int,
        num_kv_heads: int,
        kernels: NativeKernels | None = None,
    ) -> None:
        self.kv = kv
        self.kernels = kernels
        self.slot_ids = write_slots
        self.num_rows = len(write_slots)
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.write_slots = as_slots(write_slots, kv.device)
        self.longest_context = max(len(span.context_slots) for span in spans)
        self.layers_seen: list[int] = []
        self.pieces: list[Piece] = []
        self._out: Tensor | None = None  # all layers' outputs in turn
        decodes: list[TokenSpan] = []
        for span in spans:
            if span.start == 0:
                self.pieces.append(CausalPiece(slice(span.first_row, span.first_row + span.num_rows)))
            elif span.num_rows == 1:
                decodes.append(span)
            else:
                self._plan_chunk(span)
        self._plan_decodes(decodes)

    def forward(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float | None, stored: bool = False
    ) -> Tensor:
        """One layer: store the rows' K/V (unless they are `stored` already), then attend.

        query         [num_heads, T, head_dim]
        keys, values  [num_kv_heads, T, head_dim]
        returns       [T, num_heads, head_dim], valid until the next layer's
        """
        self.layers_seen.append(layer)
        if not stored:
            self.kv.write(layer, self.write_slots, keys.transpose(0, 1), values.transpose(0, 1))
        if len(self.pieces) == 1:
            return self.pieces[0].attend(query, keys, values, layer, scale)
        if self._out is None:
            self._out = query.new_empty((self.num_rows, query.shape[0], query.shape[-1]))
        for piece in self.pieces:
            self._out[piece.rows] = piece.attend(query, keys, values, layer, scale)
        return self._out

    def _plan_chunk(self, span: TokenSpan) -> None:
        for offset in range(0, span.num_rows, MAX_CHUNK_ROWS):
            num_rows = min(MAX_CHUNK_ROWS, span.num_rows - offset)
            first = span.first_row + offset
            slots = span.context_slots[: span.start + offset + num_rows]
            mask = chunk_mask(num_rows, len(slots), self.num_heads // self.num_kv_heads, self.kv)
            self.pieces.append(ChunkPiece(slice(first, first + num_rows), self.kv, as_slots(slots, self.kv.device), mask))

    def _plan_decodes(self, spans: list[TokenSpan]) -> None:
        """Requests over one prefix together; others in batches within a factor of two in length: at most half is padding."""
        if self.kernels is not None:
            if spans:
                self.pieces.append(self._native(spans, self.kernels))
            return
        on_cpu = self.kv.device.type == "cpu"
        if on_cpu and len(spans) >= SHARED_PREFIX_REQUESTS:
            spans = self._plan_shared_prefixes(spans)
        buckets: dict[int, list[TokenSpan]] = {}
        for span in spans:
            length = len(span.context_slots)
            bucket = -1 if on_cpu and length > CPU_BATCH_CONTEXT else length.bit_length()
            buckets.setdefault(bucket, []).append(span)
        for bucket, members in buckets.items():
            if bucket >= 0 and len(members) > 1:
                size = max(2, CPU_BATCH_TOKENS >> bucket) if on_cpu else len(members)
                self.pieces += [self._decode_batch(members[at : at + size]) for at in range(0, len(members), size)]
                continue
            for span in members:
                rows = slice(span.first_row, span.first_row + 1)
                self.pieces.append(DecodePiece(rows, self.kv, as_slots(span.context_slots, self.kv.device)))

    def _plan_shared_prefixes(self, spans: list[TokenSpan]) -> list[TokenSpan]:
        """Plans the requests whose contexts begin with the same slots; returns the others."""
        groups: dict[int, list[TokenSpan]] = {}
        for span in spans:
            groups.setdefault(int(span.context_slots[0]), []).append(span)
        others: list[TokenSpan] = []
        for members in groups.values():
            num_shared = _num_shared_slots(members) if len(members) >= SHARED_PREFIX_REQUESTS else 0
            if num_shared < SHARED_PREFIX_TOKENS:
                others += members
                continue
            prefix = as_slots(members[0].context_slots[:num_shared], self.kv.device)
            self.pieces.append(SharedPrefixPiece(self.kv, prefix, self._decode_batch(members, num_shared)))
        return others

    def _native(self, spans: list[TokenSpan], kernels: NativeKernels) -> NativePiece:
        row_ids = np.array([span.first_row for span in spans], dtype=np.int64)
        starts = np.cumsum([0, *(len(span.context_slots) for span in spans)], dtype=np.int64)
        slots = np.concatenate([span.context_slots for span in spans])
        rows = as_slots(row_ids, self.kv.device)
        return NativePiece(rows, self.kv, kernels, *map(torch.from_numpy, (row_ids, starts, slots)))

    def _decode_batch(self, spans: list[TokenSpan], num_skipped: int = 0) -> DecodeBatchPiece:
        """One batch over the contexts without their first `num_skipped` slots."""
        contexts = [span.context_slots[num_skipped:] for span in spans]
        longest = max(map(len, contexts))
        slots = np.zeros((len(spans), longest), dtype=np.int64)
        hidden = np.ones((len(spans), longest), dtype=bool)
        for index, context in enumerate(contexts):
            slots[index, : len(context)] = context
            hidden[index, : len(context)] = False
        device = self.kv.device
        mask = torch.zeros((len(spans), 1, 1, aligned(longest)), dtype=self.kv.dtype, device=device)[..., :longest]
        mask[:, 0, 0].masked_fill_(torch.from_numpy(hidden).to(device, non_blocking=True), float("-inf"))
        rows = as_slots(np.array([span.first_row for span in spans], dtype=np.int64), device)
        return DecodeBatchPiece(rows, self.kv, torch.from_numpy(slots).reshape(-1).to(device, non_blocking=True), mask)


def _num_shared_slots(spans: list[TokenSpan]) -> int:
    """Leading slots that all contexts have in common; at least one slot of each is left to itself."""
    first = spans[0].context_slots
    num_shared = min(len(span.context_slots) for span in spans) - 1
    for span in spans[1:]:
        differs = np.flatnonzero(span.context_slots[:num_shared] != first[:num_shared])
        if len(differs):
            num_shared = int(differs[0])
    return num_shared


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
