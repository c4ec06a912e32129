"""Requests that decode over one prefix, read once for all, and by compiled kernels, against the definition."""

import numpy as np
import pytest
import torch

from engine.model import attention
from engine.model.attention import SdpaAttention
from engine.model.attention_pieces import DecodeBatchPiece, DecodePiece, NativePiece, SharedPrefixPiece
from engine.model.kv_tensors import KVTensors
from engine.model.model_input import TokenSpan
from engine.model.native_kernels import NativeKernels

CPU = torch.device("cpu")
HEADS, KV_HEADS, DIM, SCALE = 6, 2, 16, 0.3


def decode(num_shared, tails, num_strangers=0, *, in_order=True, dtype=torch.float32, kernels=None):
    """Requests with `num_shared` slots in common and tails of their own, then strangers; outputs and the definition's."""
    generator = torch.Generator().manual_seed(0)
    kv = KVTensors(1, 4000, 1, KV_HEADS, DIM, dtype, CPU)
    for tensor in kv.layer(0):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    order = np.arange(1, 4000) if in_order else np.random.RandomState(0).permutation(np.arange(1, 4000))
    shared, free = order[:num_shared], iter(order[num_shared:])
    contexts = [np.array([*shared, *(next(free) for _ in range(tail))]) for tail in tails]
    contexts += [np.array([next(free) for _ in range(70)]) for _ in range(num_strangers)]
    spans = [TokenSpan(row, 1, len(own) - 1, own) for row, own in enumerate(contexts)]
    query = torch.randn(len(spans), HEADS, DIM, generator=generator).to(dtype)
    keys, values = (torch.randn(len(spans), KV_HEADS, DIM, generator=generator).to(dtype) for _ in range(2))
    plan = SdpaAttention(kv, np.array([own[-1] for own in contexts]), spans, HEADS, KV_HEADS, kernels)
    got = plan.forward(0, *(one.transpose(0, 1) for one in (query, keys, values)), SCALE)
    wanted = []
    for row, own in enumerate(contexts):
        k, v = (tensor[torch.from_numpy(own)].double().repeat_interleave(HEADS // KV_HEADS, 1) for tensor in kv.layer(0))
        scores = torch.einsum("hd,khd->hk", query[row].double(), k) * SCALE
        wanted.append(torch.einsum("hk,khd->hd", scores.softmax(-1), v))
    return plan, got, torch.stack(wanted)


def kinds(plan):
    return [type(piece) for piece in plan.pieces]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("tails", [[1, 1, 1, 1], [3, 40, 1, 17, 5], [600, 2, 2, 9]])
def test_the_prefix_is_read_once_and_the_result_is_the_same(tails, in_order):
    plan, got, wanted = decode(200, tails, in_order=in_order)
    assert kinds(plan) == [SharedPrefixPiece]
    prefix = plan.pieces[0].prefix
    assert (prefix == slice(1, 201)) if in_order else (len(prefix) == 200)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_strangers_in_the_same_step_are_planned_as_ever():
    plan, got, wanted = decode(100, [5, 6, 7, 8], num_strangers=3)
    assert kinds(plan) == [SharedPrefixPiece, DecodeBatchPiece]
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_shared, tails", [(200, [5, 6, 7]), (20, [5, 6, 7, 8, 9])])
def test_few_requests_or_a_short_prefix_are_not_worth_it(num_shared, tails):
    plan, got, wanted = decode(num_shared, tails)
    assert set(kinds(plan)) <= {DecodeBatchPiece, DecodePiece}
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_equal_contexts_leave_one_slot_to_each(monkeypatch):
    monkeypatch.setattr(attention, "SHARED_PREFIX_TOKENS", 8)
    spans = [TokenSpan(row, 1, 9, np.arange(1, 11)) for row in range(4)]
    plan = SdpaAttention(KVTensors(1, 20, 1, KV_HEADS, DIM, torch.float32, CPU), np.full(4, 10), spans, HEADS, KV_HEADS)
    assert plan.pieces[0].prefix == slice(1, 10)


def test_a_long_gathered_batch_is_cut(monkeypatch):
    monkeypatch.setattr(attention, "CPU_BATCH_TOKENS", 256)
    plan, got, wanted = decode(10, [50] * 9)
    assert kinds(plan) == [DecodeBatchPiece] * 2 + [DecodeBatchPiece] and [len(piece.slots) // 60 for piece in plan.pieces] == [4, 4, 1]
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_half_precision_stays_within_its_rounding():
    _, got, wanted = decode(200, [3, 40, 1, 17, 5], dtype=torch.bfloat16)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), wanted, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_kernels_take_all_single_tokens_in_one_piece(dtype, tolerance):
    plan, got, wanted = decode(200, [3, 40, 1, 17, 5], num_strangers=3, in_order=False, dtype=dtype, kernels=NativeKernels(dtype))
    assert kinds(plan) == [NativePiece]
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)
