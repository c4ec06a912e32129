"""Paged attention against the definition, softmax(q k^T * scale) v over each token's own past, in float64."""

import numpy as np
import pytest
import torch

from engine.errors import ModelNotSupported
from engine.model import attention
from engine.model.attention import (
    CausalPiece,
    ChunkPiece,
    DecodeBatchPiece,
    DecodePiece,
    SdpaAttention,
    _paged_attention,
    attention_step,
)  # fmt: skip
from engine.model.kv_tensors import KVTensors
from engine.model.model_input import TokenSpan

CPU = torch.device("cpu")
HEAD_DIM, SCALE = 8, 0.3


class Case:
    """Requests with random K/V over shuffled slots; `step` computes the last tokens of each in one go."""

    def __init__(self, num_heads, num_kv_heads, dtype=torch.float32):
        self.num_heads, self.num_kv_heads, self.dtype = num_heads, num_kv_heads, dtype
        self.kv = KVTensors(2, 1500, 1, num_kv_heads, HEAD_DIM, dtype, CPU)
        self.generator = torch.Generator().manual_seed(0)
        self.free = (torch.randperm(1499, generator=self.generator) + 1).numpy()

    def random(self, *shape):
        return torch.randn(shape, generator=self.generator).to(self.dtype)

    def step(self, *requests, in_order=False):
        """requests: (tokens before the step, tokens in it). Returns (outputs, expected) [T, num_heads, HEAD_DIM]."""
        spans, write, queries, keys, values, expected, row = [], [], [], [], [], [], 0
        for start, num_rows in requests:
            length = start + num_rows
            slots, self.free = self.free[:length].astype(np.int64), self.free[length:]
            slots = np.sort(slots)[0] + np.arange(length) if in_order else slots
            q = self.random(num_rows, self.num_heads, HEAD_DIM)
            k, v = self.random(length, self.num_kv_heads, HEAD_DIM), self.random(length, self.num_kv_heads, HEAD_DIM)
            if start:
                self.kv.write(1, torch.from_numpy(slots[:start]), k[:start], v[:start])
            spans.append(TokenSpan(row, num_rows, start, slots))
            write.append(slots[start:])
            queries.append(q)
            keys.append(k[start:])
            values.append(v[start:])
            expected.append(self.definition(q, k, v, start))
            row += num_rows
        plan = SdpaAttention(self.kv, np.concatenate(write), spans, self.num_heads, self.num_kv_heads)
        flat = [torch.cat(parts).transpose(0, 1) for parts in (queries, keys, values)]
        return plan, plan.forward(1, *flat, SCALE), torch.cat(expected)

    def definition(self, q, k, v, start):
        groups = self.num_heads // self.num_kv_heads
        k, v = (tensor.double().repeat_interleave(groups, dim=1) for tensor in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.double(), k) * SCALE
        hidden = torch.arange(k.shape[0])[None] > torch.arange(start, start + q.shape[0])[:, None]
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


HEADS = pytest.mark.parametrize("heads", [(4, 4), (6, 2), (3, 1)])


def assert_close(outputs, expected, tolerance=1e-5):
    assert outputs.shape == expected.shape
    torch.testing.assert_close(outputs.double(), expected, atol=tolerance, rtol=tolerance)


@HEADS
@pytest.mark.parametrize(
    "request_shape, piece",
    [((0, 37), CausalPiece), ((0, 1), CausalPiece), ((21, 5), ChunkPiece), ((1, 2), ChunkPiece), ((33, 1), DecodePiece)],
)
@pytest.mark.parametrize("in_order", [True, False])
def test_one_request_of_each_kind_equals_the_definition(heads, request_shape, piece, in_order):
    plan, outputs, expected = Case(*heads).step(request_shape, in_order=in_order)
    assert [type(kind) for kind in plan.pieces] == [piece]
    assert_close(outputs, expected)


@HEADS
def test_requests_of_all_kinds_in_one_step_do_not_see_each_other(heads):
    plan, outputs, expected = Case(*heads).step((30, 1), (0, 12), (17, 1), (40, 9), (300, 1), (25, 1), (0, 1))
    assert {type(kind) for kind in plan.pieces} == {CausalPiece, ChunkPiece, DecodePiece, DecodeBatchPiece}
    assert_close(outputs, expected)


def test_long_contexts_decoded_in_one_batch_equal_the_definition(monkeypatch):
    monkeypatch.setattr(attention, "CPU_BATCH_CONTEXT", 10_000)
    plan, outputs, expected = Case(6, 2).step((400, 1), (300, 1), (270, 1), (3, 1))
    assert [type(kind) for kind in plan.pieces] == [DecodeBatchPiece, DecodePiece]
    assert_close(outputs, expected)


def test_a_long_chunk_is_cut_into_pieces_that_each_see_only_their_past(monkeypatch):
    monkeypatch.setattr(attention, "MAX_CHUNK_ROWS", 16)
    plan, outputs, expected = Case(4, 2).step((50, 41), (0, 3))
    assert [piece.mask.shape[-1] for piece in plan.pieces[:3]] == [66, 82, 91]
    assert_close(outputs, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_within_its_rounding(dtype):
    _, outputs, expected = Case(6, 2, dtype).step((30, 1), (17, 1), (0, 12), (40, 9))
    assert outputs.dtype == dtype
    assert_close(outputs, expected, tolerance=0.03)


def test_keys_and_values_are_stored_in_the_slots_of_their_tokens():
    case = Case(4, 2)
    kv, slots = case.kv, np.array([40, 7, 19])
    keys, values = case.random(2, 3, HEAD_DIM), case.random(2, 3, HEAD_DIM)
    SdpaAttention(kv, slots, [TokenSpan(0, 3, 0, slots)], 4, 2).forward(0, case.random(4, 3, HEAD_DIM), keys, values, None)
    assert torch.equal(kv.keys[0, slots], keys.transpose(0, 1))
    assert torch.equal(kv.values[0, slots], values.transpose(0, 1))
    assert kv.keys.any(dim=-1).any(dim=-1).sum() == 3


class Layer(torch.nn.Module):
    layer_idx, is_causal = 0, True


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"is_causal": False}, "not causal"),
        ({"sliding_window": 2}, "last 2 tokens"),
        ({"softcap": 50.0}, "softcap"),
        ({"s_aux": torch.zeros(4)}, "s_aux"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"attention_mask": torch.zeros(1, 1, 3, 3)}, "mask of its own"),
        ({"value": torch.zeros(1, 2, 3, HEAD_DIM // 2)}, "heads"),
    ],
)
def test_a_layer_that_asks_for_more_than_causal_attention_is_refused(changes, reason):
    case, slots = Case(4, 2), np.array([1, 2, 3])
    arguments = dict(
        query=torch.zeros(1, 4, 3, HEAD_DIM), key=torch.zeros(1, 2, 3, HEAD_DIM), value=torch.zeros(1, 2, 3, HEAD_DIM),
        attention_mask=None, scaling=SCALE, dropout=0.0, sliding_window=3,
    )  # fmt: skip
    with attention_step(SdpaAttention(case.kv, slots, [TokenSpan(0, 3, 0, slots)], 4, 2)):
        outputs, weights = _paged_attention(Layer(), **arguments)
        assert outputs.shape == (1, 3, 4, HEAD_DIM) and weights is None
        with pytest.raises(ModelNotSupported, match=reason):
            _paged_attention(Layer(), **{**arguments, **changes})


def test_attention_outside_a_step_is_a_mistake():
    with pytest.raises(LookupError):
        _paged_attention(Layer(), *(torch.zeros(1, 2, 3, HEAD_DIM),) * 3, None)
