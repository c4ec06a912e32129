"""Attention with a Triton kernel that reads K/V in place through block ids; needs the package triton to be imported.

A step is cut into tiles: a few rows of one request, all in the same K/V head's group of query heads.

    program (tile, kv head, split)      queries of the tile  [M, head_dim], M = rows * padded group
        for N tokens of the context at a time:
            block id -> slots -> keys [head_dim, N], values [N, head_dim]
            scores, causal by position; softmax over what was seen so far, in float32 (FlashAttention's rule)

One token of a request is a short tile. Few requests would leave most of a GPU idle, so their contexts are split among
several programs, whose results a second kernel joins by the logs of their weights' sums. Several tokens make long
tiles, where K/V that are read once serve many queries.

The same kernel serves both kinds, as decode is an extension by one row. With TRITON_INTERPRET=1 set before the
import it runs on a CPU, for tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.model.flashinfer_attention import PageTable
from engine.model.kv_tensors import KVTensors, as_slots
from engine.model.model_input import TokenSpan
from engine.model.pinned_inputs import InputCopier

# Fewest rows of a matrix product on tensor cores.
MIN_PRODUCT_ROWS = 16
# Programs per processor of the GPU that splitting aims for.
PROGRAMS_PER_PROCESSOR = 2
MAX_SPLITS = 32
# Prompts without cached tokens from this length on are left to torch's own kernel: it reads no table.
MIN_WHOLE_PROMPT = 128
LOG2_E = 1.4426950408889634


@triton.jit
def _attend(
    query, keys, values, block_ids, tiles, out, partial, log_sums, scale,
    query_head_stride, query_row_stride,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr,
    GROUP: tl.constexpr, GROUP_PADDED: tl.constexpr, UNIT: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Outputs of one tile for one K/V head, from one of SPLITS parts of its context.

    tiles     [num_tiles, 4] int32: first row, rows, position of the first row, where the block ids begin
    out       [T, NUM_HEADS, HEAD_DIM], written where SPLITS is 1
    partial   [num_tiles, SPLITS, NUM_HEADS, HEAD_DIM] float32, written otherwise (tiles have one row then)
    log_sums  [num_tiles, SPLITS, NUM_HEADS] float32, log2 of the weights' sums
    scale     includes log2(e): powers of two are what the hardware computes
    """
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = tl.load(tiles + 4 * tile)
    num_rows = tl.load(tiles + 4 * tile + 1)
    position = tl.load(tiles + 4 * tile + 2)
    ids = block_ids + tl.load(tiles + 4 * tile + 3)

    index = tl.arange(0, M)
    row, member = index // GROUP_PADDED, index % GROUP_PADDED
    column = tl.arange(0, WIDTH)
    inside = column < HEAD_DIM
    head = kv_head * GROUP + member
    mine = ((row < num_rows) & (member < GROUP))[:, None] & inside[None, :]
    token = (first_row + row).to(tl.int64)
    q = tl.load(
        query + head[:, None] * query_head_stride + token[:, None] * query_row_stride + column[None, :], mask=mine, other=0.0
    )

    length = position + num_rows
    part = tl.cdiv(tl.cdiv(length, SPLITS), N) * N
    begin = split * part
    end = tl.minimum(begin + part, length)
    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    summed = tl.zeros([M, WIDTH], tl.float32)
    for start in range(begin, end, N):
        key = start + tl.arange(0, N)
        known = key < end
        block = tl.load(ids + key // UNIT, mask=known, other=0).to(tl.int64)
        place = ((block * UNIT + key % UNIT) * NUM_KV_HEADS + kv_head) * HEAD_DIM
        k = tl.load(keys + place[None, :] + column[:, None], mask=known[None, :] & inside[:, None], other=0.0)
        scores = tl.dot(q, k, input_precision=PRECISION) * scale
        # Every row sees the first token of its part, so no row's largest score stays at minus infinity.
        visible = known[None, :] & (key[None, :] <= position + row[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - larger[:, None])
        fade = tl.exp2(largest - larger)
        v = tl.load(values + place[:, None] + column[None, :], mask=known[:, None] & inside[None, :], other=0.0)
        total = total * fade + tl.sum(weights, 1)
        summed = summed * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        largest = larger

    # A part behind the end of a short context has seen nothing: its log is minus infinity, its weight 0.
    seen = tl.where(total > 0, total, 1.0)
    result = summed / seen[:, None]
    if SPLITS == 1:
        target = (token[:, None] * NUM_HEADS + head[:, None]) * HEAD_DIM + column[None, :]
        tl.store(out + target, result.to(out.dtype.element_ty), mask=mine)
    else:
        line = (tile * SPLITS + split) * NUM_HEADS + head
        tl.store(partial + line[:, None] * HEAD_DIM + column[None, :], result, mask=mine)
        tl.store(log_sums + line, largest + tl.log2(seen), mask=(row < num_rows) & (member < GROUP))


@triton.jit
def _join(
    partial, log_sums, tiles, out,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The mean of one row's parts, each weighted by the sum of its weights; see _attend for the shapes."""
    tile, head = tl.program_id(0), tl.program_id(1)
    line = (tile * SPLITS + tl.arange(0, SPLITS)) * NUM_HEADS + head
    column = tl.arange(0, WIDTH)
    inside = column < HEAD_DIM
    logs = tl.load(log_sums + line)
    weights = tl.exp2(logs - tl.max(logs, 0))
    weights = weights / tl.sum(weights, 0)
    parts = tl.load(partial + line[:, None] * HEAD_DIM + column[None, :], mask=inside[None, :], other=0.0)
    target = (tl.load(tiles + 4 * tile).to(tl.int64) * NUM_HEADS + head) * HEAD_DIM + column
    tl.store(out + target, tl.sum(parts * weights[:, None], 0).to(out.dtype.element_ty), mask=inside)


@dataclass(slots=True)
class _Launch:
    """Tiles of one kind, and over how many programs each context is split."""

    tiles: Tensor  # [num_tiles, 4] int32, see _attend
    block_ids: Tensor  # int32
    num_product_rows: int
    num_splits: int  # a power of two; above 1 only where tiles have one row
    partial: Tensor | None = None  # made in the first layer, used by all
    log_sums: Tensor | None = None

    def run(self, kv: KVTensors, layer: int, query: Tensor, out: Tensor, scale: float) -> None:
        """query [num_heads, T, head_dim], its last dimension dense; out [T, num_heads, head_dim]."""
        num_heads, _, head_dim = query.shape
        num_kv_heads, num_tiles = kv.keys.shape[2], self.tiles.shape[0]
        width = max(MIN_PRODUCT_ROWS, triton.next_power_of_2(head_dim))
        wide = kv.dtype is torch.float32
        if self.num_splits > 1 and self.partial is None:
            shape = (num_tiles, self.num_splits, num_heads)
            self.partial = torch.empty((*shape, head_dim), dtype=torch.float32, device=out.device)
            self.log_sums = torch.empty(shape, dtype=torch.float32, device=out.device)
        # Pointers that the kernel does not use must still be tensors.
        partial, log_sums = (out, out) if self.partial is None else (self.partial, self.log_sums)
        common = dict(NUM_HEADS=num_heads, HEAD_DIM=head_dim, WIDTH=width, SPLITS=self.num_splits)
        _attend[(num_tiles, num_kv_heads, self.num_splits)](
            query, kv.keys[layer], kv.values[layer], self.block_ids, self.tiles, out, partial, log_sums, scale * LOG2_E,
            query.stride(0), query.stride(1), **common,
            NUM_KV_HEADS=num_kv_heads, GROUP=num_heads // num_kv_heads, GROUP_PADDED=_padded_group(num_heads, num_kv_heads),
            UNIT=kv.unit_size, M=self.num_product_rows, N=32 if wide or width > 128 else 64,
            # Products of float32 would be rounded to tf32 otherwise, three digits of them.
            PRECISION="ieee" if wide else "tf32", num_warps=8 if self.num_product_rows >= 128 else 4, num_stages=3,
        )  # fmt: skip
        if self.num_splits > 1:
            _join[(num_tiles, num_heads)](partial, log_sums, self.tiles, out, **common)


class TritonAttention:
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
        self._out: Tensor | None = None  # all layers' outputs in turn
        self._whole_prompts: list[slice] = []
        self._launches: list[_Launch] = []
        # torch has a fused kernel for grouped heads in half precision only.
        min_whole = MIN_WHOLE_PROMPT if kv.dtype is not torch.float32 else self.num_rows + 1
        table = PageTable.of(spans, kv.unit_size)
        short: list[tuple[int, int, int, int]] = []
        long: list[tuple[int, int, int, int]] = []
        product_rows = _product_rows(kv, num_heads, num_kv_heads)
        tile_rows = product_rows // _padded_group(num_heads, num_kv_heads)
        for span, ids_begin in zip(spans, table.block_indptr.tolist()):
            if span.num_rows == 1:
                short.append((span.first_row, 1, span.start, ids_begin))
            elif span.start == 0 and span.num_rows >= min_whole:
                self._whole_prompts.append(slice(span.first_row, span.first_row + span.num_rows))
            else:
                for offset in range(0, span.num_rows, tile_rows):
                    num_rows = min(tile_rows, span.num_rows - offset)
                    long.append((span.first_row + offset, num_rows, span.start + offset, ids_begin))
        if short or long:
            block_ids = torch.from_numpy(table.block_ids).to(kv.device, non_blocking=True)
        if short:
            num_splits = min(_num_splits(len(short), kv), triton.next_power_of_2(-(-self.longest_context // 128)))
            rows = max(MIN_PRODUCT_ROWS, _padded_group(num_heads, num_kv_heads))
            self._launches.append(_Launch(_on_device(short, kv), block_ids, rows, num_splits))
        if long:
            self._launches.append(_Launch(_on_device(long, kv), block_ids, product_rows, 1))

    def forward(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float | None) -> Tensor:
        """One layer: store the rows' K/V, then attend.

        query         [num_heads, T, head_dim]
        keys, values  [num_kv_heads, T, head_dim]
        returns       [T, num_heads, head_dim], valid until the next layer's
        """
        self.layers_seen.append(layer)
        self.kv.write(layer, self._write_slots, keys.transpose(0, 1), values.transpose(0, 1))
        if self._out is None:
            self._out = query.new_empty((self.num_rows, query.shape[0], query.shape[-1]))
        _run(self._launches, self.kv, layer, query, self._out, scale)
        for rows in self._whole_prompts:
            self._out[rows] = scaled_dot_product_attention(
                query[None, :, rows], keys[None, :, rows], values[None, :, rows],
                is_causal=True, scale=scale, enable_gqa=query.shape[0] != keys.shape[0],
            )[0].transpose(0, 1)  # fmt: skip
        return self._out


class TritonDecode:
    """The attention of steps in which `batch_size` requests compute one token each, for a CUDA graph.

    All that differs between two such steps lies in buffers that stay where they are; `load` fills them. How far
    contexts are split depends on the batch size alone: a graph launches the same programs each time.

    max_blocks  block ids of the longest context
    copier      brings the step's arrays to the device
    """

    def __init__(
        self, kv: KVTensors, batch_size: int, max_blocks: int, num_heads: int, num_kv_heads: int, copier: InputCopier
    ) -> None:
        self.kv = kv
        self.num_rows = batch_size
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.longest_context = max_blocks * kv.unit_size
        self.layers_seen: list[int] = []
        self._copier = copier
        self._write_slots = torch.zeros(batch_size, dtype=torch.int64, device=kv.device)
        self._out: Tensor | None = None
        self._launch = _Launch(
            tiles=torch.zeros((batch_size, 4), dtype=torch.int32, device=kv.device),
            block_ids=torch.zeros(batch_size * max_blocks, dtype=torch.int32, device=kv.device),
            num_product_rows=max(MIN_PRODUCT_ROWS, _padded_group(num_heads, num_kv_heads)),
            num_splits=_num_splits(batch_size, kv),
        )

    def load(self, write_slots: np.ndarray, spans: Sequence[TokenSpan]) -> None:
        """Make the next forward, or replay, that of these requests.

        write_slots  [batch_size] int64
        spans        batch_size of them, one row each
        """
        table = PageTable.of(spans, self.kv.unit_size)
        tiles = np.ones((len(spans), 4), dtype=np.int32)
        tiles[:, 0] = table.row_indptr[:-1]
        tiles[:, 2] = table.lengths - 1
        tiles[:, 3] = table.block_indptr[:-1]
        self._copier.copy(write_slots, out=self._write_slots)
        self._copier.copy(tiles, out=self._launch.tiles)
        self._copier.copy(table.block_ids, out=self._launch.block_ids[: len(table.block_ids)])

    def forward(self, layer: int, query: Tensor, keys: Tensor, values: Tensor, scale: float | None) -> Tensor:
        """One layer, as TritonAttention.forward."""
        self.layers_seen.append(layer)
        self.kv.write(layer, self._write_slots, keys.transpose(0, 1), values.transpose(0, 1))
        if self._out is None:
            self._out = query.new_empty((self.num_rows, query.shape[0], query.shape[-1]))
        _run([self._launch], self.kv, layer, query, self._out, scale)
        return self._out


def _run(launches: list[_Launch], kv: KVTensors, layer: int, query: Tensor, out: Tensor, scale: float | None) -> None:
    if query.stride(-1) != 1:
        query = query.contiguous()
    for launch in launches:
        launch.run(kv, layer, query, out, query.shape[-1] ** -0.5 if scale is None else scale)


def _on_device(tiles: list[tuple[int, int, int, int]], kv: KVTensors) -> Tensor:
    return torch.tensor(tiles, dtype=torch.int32).to(kv.device, non_blocking=True)


def _padded_group(num_heads: int, num_kv_heads: int) -> int:
    """Query heads of one K/V head, up to a power of two."""
    return triton.next_power_of_2(num_heads // num_kv_heads)


def _product_rows(kv: KVTensors, num_heads: int, num_kv_heads: int) -> int:
    """Query rows, times padded group, of a long tile: as many as fit a processor's registers and shared memory."""
    wide = kv.dtype is torch.float32 or kv.keys.shape[-1] > 128
    return max(32 if wide else 128, _padded_group(num_heads, num_kv_heads))


def _num_splits(num_tiles: int, kv: KVTensors) -> int:
    """Parts of each context, a power of two, so that the processors have work."""
    wanted = PROGRAMS_PER_PROCESSOR * _num_processors(kv.device) // (num_tiles * kv.keys.shape[2])
    return min(MAX_SPLITS, 1 << max(wanted, 1).bit_length() - 1)


@lru_cache
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 16  # the interpreter's: enough for tests to split
    return torch.cuda.get_device_properties(device).multi_processor_count
