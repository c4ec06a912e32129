"""Attention with FlashInfer's kernels, which read K/V in place through block ids.

One layer's storage [num_slots, num_kv_heads, head_dim], seen as pages [num_blocks, unit_size, num_kv_heads, head_dim],
is FlashInfer's layout "NHD": nothing is copied or gathered. What the kernels are told about a step is a PageTable:

    contexts        r0: 35 tokens     r1: 20 tokens        unit_size = 16
    block_ids       │ 7  2  9       │ 7  4       │         block r0 shares with r1 stands in both lists
    block_indptr    0               3            5
    last_page_len     3               4                    tokens of the last block that exist

The package is imported when the first step is planned, never with this module. It may compile its kernels then.
Source: FlashInfer 0.6 and 0.7, BatchPrefillWithPagedKVCacheWrapper and BatchDecodeWithPagedKVCacheWrapper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from engine.model.kv_tensors import KVTensors, as_slots
from engine.model.model_input import TokenSpan
from engine.model.pinned_inputs import InputCopier

# For partial results of contexts that several programs share; vLLM takes as much.
WORKSPACE_BYTES = 384 * 1024**2


@dataclass(frozen=True, slots=True)
class PageTable:
    """The block ids of a step's n requests, one list behind the other."""

    row_indptr: np.ndarray  # [n + 1] int32, where each request's rows begin
    block_indptr: np.ndarray  # [n + 1] int32, where each request's block ids begin
    block_ids: np.ndarray  # [total] int32
    lengths: np.ndarray  # [n] int32, tokens of each context, this step's included
    unit_size: int

    @classmethod
    def of(cls, spans: Sequence[TokenSpan], unit_size: int) -> PageTable:
        """The table of at least one span; spans come in row order and cover all rows."""
        blocks = [span.context_slots[::unit_size] // unit_size for span in spans]
        return cls(
            row_indptr=_indptr([span.num_rows for span in spans]),
            block_indptr=_indptr([len(ids) for ids in blocks]),
            block_ids=np.concatenate(blocks).astype(np.int32),
            lengths=np.array([len(span.context_slots) for span in spans], dtype=np.int32),
            unit_size=unit_size,
        )

    @property
    def last_page_len(self) -> np.ndarray:
        """[n] int32, 1 to unit_size: tokens in each context's last block."""
        return (self.lengths - 1) % self.unit_size + 1


def _indptr(counts: list[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


class FlashInferAttention:
    """The attention of one step, planned once and run in every layer.

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
        self.longest_context = max(len(span.context_slots) for span in spans)
        self.layers_seen: list[int] = []
        self._write_slots = as_slots(write_slots, kv.device)
        self._table = PageTable.of(spans, kv.unit_size)
        self._decodes = all(span.num_rows == 1 for span in spans)
        # Planned in the first layer: only there the scale is known.
        self._planned_scale: tuple[float | None] | None = None

    def forward(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float | None) -> Tensor:
        """One layer: store the rows' K/V, then attend.

        query         [num_heads, T, head_dim]
        keys, values  [num_kv_heads, T, head_dim]
        returns       [T, num_heads, head_dim]
        """
        self.layers_seen.append(layer)
        self.kv.write(layer, self._write_slots, keys.transpose(0, 1), values.transpose(0, 1))
        wrappers = _wrappers_of(self.kv)
        if self._planned_scale != (scale,):
            _plan(wrappers.decode if self._decodes else wrappers.prefill, self._table, self, self._decodes, scale)
            self._planned_scale = (scale,)
        wrapper = wrappers.decode if self._decodes else wrappers.prefill
        return wrapper.run(query.transpose(0, 1).contiguous(), _pages(self.kv, layer))


class FlashInferDecode:
    """The attention of steps in which `batch_size` requests compute one token each, for a CUDA graph.

    All that differs between two such steps lies in buffers that stay where they are; `load` fills them.

    max_blocks  block ids of the longest context
    copier      brings the step's arrays to the device
    """

    def __init__(
        self, kv: KVTensors, batch_size: int, max_blocks: int, num_heads: int, num_kv_heads: int, copier: InputCopier
    ) -> None:
        import flashinfer

        def buffer(size: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=kv.device)

        self.kv = kv
        self.num_rows = batch_size
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.longest_context = max_blocks * kv.unit_size
        self.layers_seen: list[int] = []
        self._copier = copier
        self._write_slots = buffer(batch_size, torch.int64)
        self._table: PageTable | None = None
        self._planned_scale: tuple[float | None] | None = None
        self._wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            _wrappers_of(kv).workspace, "NHD", use_cuda_graph=True, use_tensor_cores=True, backend="fa2",
            paged_kv_indptr_buffer=buffer(batch_size + 1), paged_kv_indices_buffer=buffer(batch_size * max_blocks),
            paged_kv_last_page_len_buffer=buffer(batch_size),
        )  # fmt: skip

    def load(self, write_slots: np.ndarray, spans: Sequence[TokenSpan]) -> None:
        """Make the next forward, or replay, that of these requests.

        write_slots  [batch_size] int64
        spans        batch_size of them, one row each
        """
        self._copier.copy(write_slots, out=self._write_slots)
        self._table = PageTable.of(spans, self.kv.unit_size)
        if self._planned_scale is not None:
            _plan(self._wrapper, self._table, self, True, self._planned_scale[0])

    def forward(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float | None) -> Tensor:
        """One layer, as FlashInferAttention.forward. The first call plans, so it must not be the one that is captured."""
        self.layers_seen.append(layer)
        if self._planned_scale != (scale,):
            assert self._table is not None, "load comes before forward"
            _plan(self._wrapper, self._table, self, True, scale)
            self._planned_scale = (scale,)
        self.kv.write(layer, self._write_slots, keys.transpose(0, 1), values.transpose(0, 1))
        return self._wrapper.run(query.transpose(0, 1).contiguous(), _pages(self.kv, layer))


@dataclass(frozen=True, slots=True)
class _Wrappers:
    workspace: Tensor
    prefill: Any
    decode: Any


# Made once for each storage, and gone with it.
_WRAPPERS: WeakKeyDictionary[KVTensors, _Wrappers] = WeakKeyDictionary()


def _wrappers_of(kv: KVTensors) -> _Wrappers:
    if kv not in _WRAPPERS:
        import flashinfer

        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=kv.device)
        _WRAPPERS[kv] = _Wrappers(
            workspace,
            flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD"),
            # With tensor cores any number of query heads per K/V head is served; fa2 splits long contexts.
            flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True, backend="fa2"),
        )
    return _WRAPPERS[kv]


def _plan(wrapper: Any, table: PageTable, step: Any, decodes: bool, scale: float | None) -> None:
    """Tell a wrapper about a step. Index arrays are handed over on the host, where FlashInfer plans."""
    kv = step.kv
    pages = [torch.from_numpy(part) for part in (table.block_indptr, table.block_ids, table.last_page_len)]
    shape = (step.num_heads, step.num_kv_heads, kv.keys.shape[-1], kv.unit_size)
    options: dict[str, Any] = dict(q_data_type=kv.dtype, kv_data_type=kv.dtype, sm_scale=scale)
    if decodes:
        wrapper.plan(*pages, *shape, **options)
    else:
        wrapper.plan(torch.from_numpy(table.row_indptr), *pages, *shape, causal=True, **options)


def _pages(kv: KVTensors, layer: int) -> tuple[Tensor, Tensor]:
    """Views of one layer's keys and values, each [num_blocks, unit_size, num_kv_heads, head_dim]."""
    shape = (-1, kv.unit_size, *kv.keys.shape[2:])
    return kv.keys[layer].view(shape), kv.values[layer].view(shape)
