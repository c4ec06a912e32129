"""CUDA graphs of decode steps: all kernels of a step launched at once.

A decode step of a small batch is hundreds of short kernels; launching them one by one from Python takes longer than
running them. A graph records the launches once, with the addresses they read, and replays them. So its inputs lie in
buffers that stay where they are, and its batch size is fixed: a step is padded to the next size that was recorded.

    requests of the step    1  2  3  4  5 … 8  9 … 16  17 … 24
    size replayed           1  2  4     8      16      24      …

A padding row computes token 0 at position 0 and stores its K/V in the null block, which no request reads. Steps of
any other kind (prompts, chunks, rows that nobody samples, adapters) are refused, and run kernel by kernel.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Protocol, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.model.kv_tensors import KVTensors
from engine.model.model_body import ModelBody
from engine.model.model_input import ModelInput, TokenSpan

logger = logging.getLogger(__name__)

Replay = Callable[[], Any]


class ReplayableAttention(Protocol):
    """Attention over buffers that stay where they are: FlashInferDecode, TritonDecode."""

    def load(self, write_slots: np.ndarray, spans: Sequence[TokenSpan]) -> None:
        """Make the next forward, or replay, that of these requests; see TritonDecode.load."""
        ...


def batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Sizes worth a graph: 1, 2, 4, then every 8, up to the first that holds max_num_seqs requests."""
    sizes = [1, 2, 4]
    while sizes[-1] < max_num_seqs:
        sizes.append(sizes[-1] // 8 * 8 + 8)
    return tuple(size for index, size in enumerate(sizes) if index == 0 or sizes[index - 1] < max_num_seqs)


def padded_size(step: ModelInput, sizes: Sequence[int]) -> int | None:
    """The size this step is replayed with; None if it is none that a graph computes."""
    num_requests = len(step.spans)
    if step.prompt_rows or step.is_changed or len(step.sampling) != num_requests or any(span.num_rows != 1 for span in step.spans):
        return None
    return next((size for size in sizes if size >= num_requests), None)


def padded(step: ModelInput, size: int) -> tuple[np.ndarray, list[TokenSpan]]:
    """Write slots [size] int64 and `size` spans: the step's, then padding in slot 0 of the null block."""
    num_requests = len(step.spans)
    write_slots = np.zeros(size, dtype=np.int64)
    write_slots[:num_requests] = step.write_slots
    return write_slots, [*step.spans, *(_padding(row) for row in range(num_requests, size))]


def _padding(row: int) -> TokenSpan:
    return TokenSpan(row, 1, 0, np.zeros(1, dtype=np.int64))


def record_cuda_graph(run: Callable[[], Tensor], pool: Any) -> tuple[Replay, Tensor]:
    """Run once for real, so that kernels are compiled and memory is there, then record.

    pool     memory that graphs share, as they never run at the same time
    returns  what replays the graph, and the tensor its output is in afterwards
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = run()
    return graph.replay, out


class _Recorded:
    """One batch size: its buffers and its graph."""

    def __init__(
        self, size: int, body: ModelBody, attention: Any, record: Callable[[Any], Any], device: torch.device
    ) -> None:
        self._size, self._attention = size, attention
        self._input_ids = torch.zeros(size, dtype=torch.int64, device=device)
        self._positions = torch.zeros(size, dtype=torch.int64, device=device)
        attention.load(np.zeros(size, dtype=np.int64), [_padding(row) for row in range(size)])
        self._replay, self._hidden = record(lambda: body(self._input_ids, self._positions, attention))

    def run(self, step: ModelInput) -> Tensor:
        num_requests = len(step.spans)
        # Left-over ids and positions in padding rows are harmless: any token may be computed there.
        self._input_ids[:num_requests].copy_(step.input_ids, non_blocking=True)
        self._positions[:num_requests].copy_(step.positions, non_blocking=True)
        self._attention.load(*padded(step, self._size))
        self._replay()
        return self._hidden[:num_requests]


class DecodeGraphs:
    """The decode steps of one model, recorded by batch size.

    body            of the model; reads nothing back from the GPU on its way
    kv              storage that the graphs write
    make_attention  (batch size, block ids of the longest context) -> attention over fixed buffers
    max_num_seqs    most requests of a step
    max_model_len   tokens of the longest request
    record          how a run is recorded; tests have one that needs no GPU
    """

    def __init__(
        self,
        body: ModelBody,
        kv: KVTensors,
        make_attention: Callable[[int, int], ReplayableAttention],
        max_num_seqs: int,
        max_model_len: int,
        record: Callable[[Callable[[], Tensor], Any], tuple[Replay, Tensor]] = record_cuda_graph,
    ) -> None:
        self.sizes = batch_sizes(max_num_seqs)
        self._body, self._kv, self._make_attention, self._record = body, kv, make_attention, record
        # No context has more blocks than its tokens fill, or than the pool has.
        self._max_blocks = min(-(-max_model_len // kv.unit_size), kv.num_slots // kv.unit_size)
        self._pool = torch.cuda.graph_pool_handle() if kv.device.type == "cuda" else None
        self._recorded: dict[int, _Recorded] = {}
        self._failed = False

    @torch.inference_mode()
    def record_all(self) -> None:
        """Record every size now, so that no step waits for it; largest first, as smaller ones fit its memory."""
        for size in reversed(self.sizes):
            self._of_size(size)

    def run(self, step: ModelInput) -> Tensor | None:
        """Hidden states [n, hidden_size] of a step's n rows, valid until the next run; None: run it without a graph."""
        size = padded_size(step, self.sizes)
        recorded = None if size is None else self._of_size(size)
        return None if recorded is None else recorded.run(step)

    def _of_size(self, size: int) -> _Recorded | None:
        if size not in self._recorded and not self._failed:
            try:
                self._recorded[size] = _Recorded(
                    size, self._body, self._make_attention(size, self._max_blocks),
                    lambda run: self._record(run, self._pool), self._kv.device,
                )  # fmt: skip
            except RuntimeError as error:
                # A layer that cannot be recorded computes the same without a graph, only slower.
                self._failed = True
                logger.info("decode steps run without CUDA graphs: %s", str(error).strip().splitlines()[0])
        return self._recorded.get(size)
