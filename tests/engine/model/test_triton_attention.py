"""The Triton kernel against the definition of attention: interpreted on a CPU, compiled where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.model.kv_tensors import KVTensors, slots_of
from engine.model.model_input import TokenSpan
from engine.model.pinned_inputs import InputCopier

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
SCALE = 0.3


# Triton decides between compiling and interpreting when it is first imported, and torch may import it: interpreted
# tests need a process that was started for them.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(scope="module")
def kernels():
    """The module under test."""
    if DEVICE.type == "cpu" and not INTERPRETED:
        pytest.skip("runs in the process of test_everything_below_holds_in_the_interpreter")
    pytest.importorskip("triton")
    from engine.model import triton_attention

    return triton_attention


def test_everything_below_holds_in_the_interpreter():
    if INTERPRETED or DEVICE.type != "cpu" or find_spec("triton") is None:
        pytest.skip("needs the package triton, and no GPU")
    if np.lib.NumpyVersion(np.__version__) >= "2.4.0" and tuple(map(int, version("triton").split(".")[:2])) < (3, 7):
        pytest.skip("the interpreter of this Triton reads whole numbers in a way that numpy 2.4 no longer allows")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=600,
        cwd=Path(__file__).resolve().parents[3],
    )  # fmt: skip
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-5000:] + done.stderr[-2000:]


class Case:
    """Requests with random K/V over shuffled blocks, and what attention over them is, in float64."""

    def __init__(self, heads, head_dim, unit_size, requests, dtype=torch.float32):
        self.num_heads, self.num_kv_heads = heads
        generator = torch.Generator().manual_seed(0)
        num_blocks = sum(-(-(start + rows) // unit_size) for start, rows in requests) + 1
        self.kv = KVTensors(2, num_blocks, unit_size, self.num_kv_heads, head_dim, dtype, DEVICE)
        free = (torch.randperm(num_blocks - 1, generator=generator) + 1).numpy()

        def random(*shape):
            return torch.randn(shape, generator=generator).to(dtype)

        self.spans, write, parts, expected, row = [], [], [], [], 0
        for start, num_rows in requests:
            length = start + num_rows
            num_request_blocks = -(-length // unit_size)
            slots, free = slots_of(free[:num_request_blocks], unit_size, length), free[num_request_blocks:]
            q = random(num_rows, self.num_heads, head_dim)
            k, v = random(length, self.num_kv_heads, head_dim), random(length, self.num_kv_heads, head_dim)
            if start:
                self.kv.write(1, torch.from_numpy(slots[:start]).to(DEVICE), k[:start].to(DEVICE), v[:start].to(DEVICE))
            self.spans.append(TokenSpan(row, num_rows, start, slots))
            write.append(slots[start:])
            parts.append((q, k[start:], v[start:]))
            expected.append(self._definition(q, k, v, start))
            row += num_rows
        self.write_slots = np.concatenate(write)
        self.flat = [torch.cat(tensors).transpose(0, 1).to(DEVICE) for tensors in zip(*parts)]
        self.expected = torch.cat(expected)

    def _definition(self, q, k, v, start):
        k, v = (tensor.double().repeat_interleave(self.num_heads // self.num_kv_heads, dim=1) for tensor in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.double(), k) * SCALE
        hidden = torch.arange(k.shape[0])[None] > torch.arange(start, start + q.shape[0])[:, None]
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)

    def step(self, kernels):
        return kernels.TritonAttention(self.kv, self.write_slots, self.spans, self.num_heads, self.num_kv_heads)

    def check(self, outputs, tolerance=2e-5):
        assert outputs.shape == self.expected.shape
        torch.testing.assert_close(outputs.cpu().double(), self.expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("unit_size", [1, 16])
def test_a_step_of_all_kinds_equals_the_definition(kernels, heads, unit_size):
    case = Case(heads, 8, unit_size, [(30, 1), (0, 12), (140, 1), (40, 19), (0, 1), (16, 16)])
    step = case.step(kernels)
    case.check(step.forward(1, *case.flat, SCALE))
    assert (step.num_rows, step.longest_context, step.layers_seen) == (50, 141, [1])


def test_head_sizes_need_not_be_powers_of_two(kernels):
    case = Case((2, 1), 24, 16, [(30, 1), (20, 5)])
    case.check(case.step(kernels).forward(1, *case.flat, SCALE))


def test_a_long_context_is_split_and_joined(kernels):
    case = Case((4, 2), 16, 16, [(700, 1)])
    step = case.step(kernels)
    assert step._launches[0].num_splits > 1
    case.check(step.forward(1, *case.flat, SCALE))


def test_many_requests_are_not_split(kernels):
    assert kernels._num_splits(10_000, Case((4, 2), 16, 16, [(3, 1)]).kv) == 1


# Triton's interpreter keeps bfloat16 as whole numbers and multiplies those: compiled kernels only.
COMPILED_ONLY = pytest.mark.skipif(DEVICE.type == "cpu", reason="the interpreter does not multiply bfloat16")


@pytest.mark.parametrize("dtype", [pytest.param(torch.bfloat16, marks=COMPILED_ONLY), torch.float16])
def test_half_precision_stays_within_its_rounding(kernels, dtype, monkeypatch):
    monkeypatch.setattr(kernels, "MIN_WHOLE_PROMPT", 32)
    case = Case((6, 2), 16, 16, [(30, 1), (0, 40), (0, 12), (40, 19)], dtype)
    step = case.step(kernels)
    assert step._whole_prompts == [slice(1, 41)]
    outputs = step.forward(1, *case.flat, SCALE)
    assert outputs.dtype == dtype
    case.check(outputs, tolerance=0.03)


def test_no_scale_is_one_over_the_root_of_the_head_size(kernels):
    case = Case((2, 2), 16, 16, [(20, 3)])
    without = case.step(kernels).forward(1, *case.flat, None).clone()
    torch.testing.assert_close(without, case.step(kernels).forward(1, *case.flat, 0.25))


def test_a_decode_over_fixed_buffers_equals_the_definition_whatever_was_loaded_before(kernels):
    for requests in ([(300, 1), (9, 1), (0, 1)], [(16, 1), (2, 1), (130, 1)]):
        case = Case((6, 2), 16, 16, requests)
        decode = kernels.TritonDecode(case.kv, 3, 60, 6, 2, InputCopier(DEVICE))
        others = [TokenSpan(row, 1, 99, np.arange(16, 116)) for row in range(3)]
        padding = [TokenSpan(row, 1, 0, np.zeros(1, dtype=np.int64)) for row in range(3)]
        for spans in (padding, others):
            decode.load(np.zeros(3, dtype=np.int64), spans)
            decode.forward(1, *case.flat, SCALE)
        decode.load(case.write_slots, case.spans)
        case.check(decode.forward(1, *case.flat, SCALE))
