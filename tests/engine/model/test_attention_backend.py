"""The order of backends, every reason for passing one over, and FlashInfer's view of a step."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine.errors import ConfigError
from engine.model import attention_backend, flashinfer_attention
from engine.model.attention import SdpaAttention
from engine.model.attention_backend import choose, describe, refusal_of, trial_error
from engine.model.flashinfer_attention import FlashInferAttention, FlashInferDecode, PageTable
from engine.model.kv_tensors import KVTensors, slots_of
from engine.model.model_input import TokenSpan
from engine.model.pinned_inputs import InputCopier

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
LLAMA = (torch.bfloat16, 128, 32, 8)


@pytest.fixture
def installed(monkeypatch):
    """Says which packages there are; backends work, unless a failure is named."""

    def say(*packages, failures=(), compiler=True):
        monkeypatch.setattr(attention_backend, "find_spec", lambda name: True if name in packages else None)
        monkeypatch.setattr(attention_backend, "_has_cuda_compiler", lambda: compiler)
        monkeypatch.setattr(
            attention_backend, "_trial_failure", lambda name, *shape: "no cc1plus" if name in failures else None
        )
        monkeypatch.setattr(
            attention_backend, "_choice", lambda name, reason: attention_backend.AttentionChoice(name, name, None, reason)
        )

    return say


def test_on_a_cpu_it_is_sdpa():
    assert choose(CPU, *LLAMA).step_class is SdpaAttention
    assert describe(CPU, *LLAMA) == "sdpa: on a CPU"
    assert describe(CPU, *LLAMA, name="sdpa") == "sdpa: asked for by name"


@pytest.mark.parametrize(
    "packages, failures, expected",
    [
        (("flashinfer", "triton"), (), "flashinfer: reads K/V in place through block ids"),
        (("triton",), (), "triton: reads K/V in place through block ids; no flashinfer: not installed"),
        (("flashinfer", "triton"), ("flashinfer",), "triton: reads K/V in place through block ids; no flashinfer: no cc1plus"),
        (("triton",), ("triton",), "sdpa: no flashinfer: not installed; no triton: no cc1plus"),
        ((), (), "sdpa: no flashinfer: not installed; no triton: not installed"),
    ],
)
def test_on_cuda_the_first_that_works_is_chosen_and_the_others_are_explained(installed, packages, failures, expected):
    installed(*packages, failures=failures)
    assert describe(CUDA, *LLAMA) == expected


@pytest.mark.parametrize(
    "shape, reason",
    [
        ((torch.float32, 128, 32, 8), "dtype float32; accepted: float16, bfloat16"),
        ((torch.bfloat16, 80, 32, 8), "head size 80; accepted: 64, 128, 256"),
        ((torch.bfloat16, 128, 32, 5), "32 query heads do not divide among 5 K/V heads"),
        (LLAMA, None),
    ],
)
def test_flashinfer_is_for_the_shapes_that_it_has_kernels_for(installed, shape, reason):
    installed("flashinfer")
    assert refusal_of("flashinfer", CUDA, *shape) == reason


def test_flashinfer_needs_its_kernels_or_a_compiler(installed):
    installed("flashinfer", compiler=False)
    assert "nvcc" in refusal_of("flashinfer", CUDA, *LLAMA)
    installed("flashinfer", "flashinfer_jit_cache", compiler=False)
    assert refusal_of("flashinfer", CUDA, *LLAMA) is None


def test_triton_takes_any_head_size_up_to_its_limit(installed):
    installed("triton")
    assert refusal_of("triton", CUDA, torch.float32, 80, 32, 8) is None
    assert "head size 512" in refusal_of("triton", CUDA, torch.float32, 512, 8, 8)


@pytest.mark.parametrize("device, name", [(CPU, "flashinfer"), (CPU, "triton"), (CUDA, "triton"), (CUDA, "paged")])
def test_a_backend_that_cannot_be_had_is_refused_by_name(installed, device, name):
    installed()
    with pytest.raises(ConfigError, match=f"attention_backend is '{name}'; accepted: auto, sdpa") as caught:
        choose(device, *LLAMA, name=name)
    assert caught.value.field == "attention_backend"


def test_the_trial_finds_a_backend_that_reads_wrong_tokens():
    class Forgetful(SdpaAttention):
        def forward(self, layer, query, keys, values, scale):
            return super().forward(layer, query, keys.roll(1, 1), values, scale)

    assert trial_error(SdpaAttention, CPU, torch.float32, 16, 4, 2) == 0
    assert trial_error(Forgetful, CPU, torch.float32, 16, 4, 2) > 0.1


def test_a_backend_that_raises_in_its_trial_is_passed_over(monkeypatch):
    def fail(*arguments):
        raise OSError("ptxas not found\nand more")

    monkeypatch.setattr(attention_backend, "trial_error", fail)
    assert attention_backend._trial_failure("sdpa", CPU, *LLAMA) == "it does not run here (ptxas not found)"


# FlashInfer's view of a step


def span(first_row, num_rows, start, blocks, unit_size):
    return TokenSpan(first_row, num_rows, start, slots_of(blocks, unit_size, start + num_rows))


@pytest.mark.parametrize(
    "unit_size, blocks, indptr, last_page_len",
    [(16, [[7, 2, 9], [7, 4]], [0, 3, 5], [3, 16]), (1, [list(range(40, 75)), list(range(32))], [0, 35, 67], [1, 1])],
)
def test_a_page_table_holds_block_ids_and_not_slots(unit_size, blocks, indptr, last_page_len):
    table = PageTable.of([span(0, 5, 30, blocks[0], unit_size), span(5, 1, 31, blocks[1], unit_size)], unit_size)
    assert table.block_ids.tolist() == blocks[0] + blocks[1]
    assert table.block_indptr.tolist() == indptr and table.row_indptr.tolist() == [0, 5, 6]
    assert table.lengths.tolist() == [35, 32] and table.last_page_len.tolist() == last_page_len
    arrays = (table.block_ids, table.block_indptr, table.row_indptr, table.lengths, table.last_page_len)
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}


class FakeWrapper:
    """FlashInfer's wrappers, by the definition, for one K/V head per query head."""

    made = []

    def __init__(self, workspace, layout, use_cuda_graph=False, use_tensor_cores=False, backend="auto", **buffers):
        assert layout == "NHD"
        self.use_cuda_graph, self.buffers, self.num_plans = use_cuda_graph, buffers, 0
        self.made.append(self)

    def run(self, q, pages):
        keys, values = pages
        assert keys.shape[1] == self.page_size and q.is_contiguous()
        out = torch.empty_like(q)
        for index, (first, last) in enumerate(zip(self.rows, self.rows[1:])):
            ids = self.ids[self.indptr[index] : self.indptr[index + 1]].long()
            length = (len(ids) - 1) * self.page_size + int(self.last[index])
            k, v = (part[ids].flatten(0, 1)[:length] for part in (keys, values))
            hidden = torch.arange(length)[None] > torch.arange(length - (last - first), length)[:, None]
            scores = torch.einsum("qhd,khd->hqk", q[first:last], k) * self.scale
            out[first:last] = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)
        return out

    def _plan(self, rows, pages, page_size, scale):
        self.rows, self.page_size, self.scale = rows.tolist(), page_size, scale
        self.indptr, self.ids, self.last = pages
        self.num_plans += 1


class FakePrefill(FakeWrapper):
    def plan(
        self, qo_indptr, indptr, indices, last, heads, kv_heads, head_dim, page_size,
        *, causal, sm_scale, q_data_type, kv_data_type,
    ):  # fmt: skip
        assert causal
        self._plan(qo_indptr, (indptr, indices, last), page_size, sm_scale)


class FakeDecode(FakeWrapper):
    def plan(self, indptr, indices, last, heads, kv_heads, head_dim, page_size, *, sm_scale, q_data_type, kv_data_type):
        if self.use_cuda_graph:
            assert len(indptr) == len(self.buffers["paged_kv_indptr_buffer"])
            assert len(indices) <= len(self.buffers["paged_kv_indices_buffer"])
        self._plan(torch.arange(len(last) + 1), (indptr, indices, last), page_size, sm_scale)


@pytest.fixture
def flashinfer(monkeypatch):
    monkeypatch.setattr(flashinfer_attention, "WORKSPACE_BYTES", 16)
    monkeypatch.setattr(FakeWrapper, "made", [])
    module = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=FakePrefill, BatchDecodeWithPagedKVCacheWrapper=FakeDecode)
    monkeypatch.setitem(sys.modules, "flashinfer", module)


def heads(num_rows, generator):
    return [torch.randn((2, num_rows, 8), generator=generator) for _ in range(3)]


@pytest.mark.parametrize("unit_size", [1, 16])
@pytest.mark.parametrize("requests", [((20, 1), (3, 1)), ((20, 1), (0, 9), (17, 4))])
def test_flashinfer_is_planned_once_a_step_and_told_what_sdpa_reads(flashinfer, unit_size, requests):
    generator = torch.Generator().manual_seed(0)
    storages = [KVTensors(2, 200, unit_size, 2, 8, torch.float32, CPU) for _ in range(2)]
    for _ in range(2):
        spans, blocks, row = [], list(range(199, 0, -1)), 0
        for start, num_rows in requests:
            spans.append(span(row, num_rows, start, blocks[: -(-(start + num_rows) // unit_size)], unit_size))
            blocks, row = blocks[40:], row + num_rows
        write = np.concatenate([one.context_slots[one.start :] for one in spans])
        expected, step = (kind(kv, write, spans, 2, 2) for kind, kv in zip((SdpaAttention, FlashInferAttention), storages))
        for layer in range(2):
            flat = heads(row, generator)
            torch.testing.assert_close(step.forward(layer, *flat, 0.3), expected.forward(layer, *flat, 0.3))
        assert step.layers_seen == [0, 1] and step.num_rows == row and step.longest_context == expected.longest_context
    assert len(FakeWrapper.made) == 2 and sorted(one.num_plans for one in FakeWrapper.made) == [0, 2]


def test_flashinfer_for_a_graph_is_planned_at_each_load_and_never_between(flashinfer):
    generator = torch.Generator().manual_seed(0)
    storages = [KVTensors(1, 20, 16, 2, 8, torch.float32, CPU) for _ in range(2)]
    decode = FlashInferDecode(storages[1], 2, 10, 2, 2, InputCopier(CPU))
    for blocks in ([[3, 4], [9]], [[5, 1], [2]]):
        spans = [span(0, 1, 20, blocks[0], 16), span(1, 1, 4, blocks[1], 16)]
        write, flat = np.array([one.context_slots[-1] for one in spans]), heads(2, generator)
        decode.load(write, spans)
        expected = SdpaAttention(storages[0], write, spans, 2, 2).forward(0, *flat, 0.3)
        for _ in range(2):
            torch.testing.assert_close(decode.forward(0, *flat, 0.3), expected)
    assert decode._wrapper.num_plans == 2
