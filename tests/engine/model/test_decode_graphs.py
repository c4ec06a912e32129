"""Which steps are replayed, with what padding, and that a replayed step computes what it would alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.kvcache.cache_identity import LoRA
from engine.model.attention import SdpaAttention
from engine.model.decode_graphs import DecodeGraphs, batch_sizes, padded, padded_size
from engine.model.kv_tensors import KVTensors, slots_of
from engine.model.loader import load_model
from engine.model.model_input import AdapterRows, EmbeddingRows, ModelInput, PromptRows, TokenSpan

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "max_num_seqs, sizes",
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 4)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 16)), (32, (1, 2, 4, 8, 16, 24, 32))],
)
def test_sizes_end_where_the_largest_step_fits(max_num_seqs, sizes):
    assert batch_sizes(max_num_seqs) == sizes


def step_of(*requests, num_sampling=None, prompt_rows=(), unit_size=16):
    """requests: (tokens before the step, tokens in it); each has ten blocks of its own."""
    spans, write, row = [], [], 0
    for index, (start, num_rows) in enumerate(requests):
        slots = slots_of(np.arange(1 + 10 * index, 11 + 10 * index), unit_size, start + num_rows)
        spans.append(TokenSpan(row, num_rows, start, slots))
        write.append(slots[start:])
        row += num_rows
    num_sampling = len(requests) if num_sampling is None else num_sampling
    positions = [torch.arange(span.start, span.start + span.num_rows) for span in spans]
    return ModelInput(
        input_ids=torch.arange(row) * 13 % 500, positions=torch.cat(positions), write_slots=np.concatenate(write),
        spans=spans, sampling=list(range(num_sampling)), sample_rows=torch.arange(num_sampling), prompt_rows=list(prompt_rows),
    )  # fmt: skip


SIZES = (1, 2, 4, 8)


@pytest.mark.parametrize("num_requests, size", [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, None)])
def test_a_decode_step_is_padded_to_the_next_size(num_requests, size):
    assert padded_size(step_of(*[(5, 1)] * num_requests), SIZES) == size


@pytest.mark.parametrize(
    "step",
    [
        step_of((5, 1), (0, 3)),
        step_of((5, 2)),
        step_of((5, 1), (6, 1), num_sampling=1),
        step_of((5, 1), prompt_rows=[PromptRows("r", 1, 0, 6, [3])]),
        replace(step_of((5, 1), (6, 1)), adapter_rows=[AdapterRows(1, 2, LoRA("a", "seeded:1"))]),
        replace(step_of((5, 1)), embedding_rows=[EmbeddingRows(0, torch.zeros(1, 64))]),
    ],
    ids=["a prompt beside it", "two rows", "a row nobody samples", "prompt log-probabilities", "an adapter", "an embedding"],
)
def test_other_steps_are_refused(step):
    assert padded_size(step, SIZES) is None


def test_padding_lies_in_the_null_block():
    write_slots, spans = padded(step_of((20, 1), (3, 1), (7, 1)), 4)
    assert write_slots.tolist() == [16 + 20, 176 + 3, 336 + 7, 0]
    assert [(span.first_row, span.num_rows) for span in spans] == [(row, 1) for row in range(4)]
    assert spans[3].start == 0 and spans[3].context_slots.tolist() == [0]


class SdpaDecode:
    """What a graph needs of attention, by planning anew at each load."""

    def __init__(self, kv, loaded):
        self.kv, self.loaded = kv, loaded

    def load(self, write_slots, spans):
        self.step = SdpaAttention(self.kv, write_slots, spans, self.loaded.num_heads, self.loaded.num_kv_heads)

    def forward(self, *arguments):
        return self.step.forward(*arguments)


class Recorder:
    """A graph's stand-in: runs the same function again, into the same output."""

    def __init__(self):
        self.num_recorded = 0

    def __call__(self, run, pool):
        self.num_recorded += 1
        out = run().clone()
        return lambda: out.copy_(run()), out


@pytest.fixture(scope="module")
def loaded():
    return load_model(EngineConfig(model="synthetic:tiny", dtype="float32", device="cpu", compile=False))


def storage(loaded):
    kv = KVTensors(loaded.num_layers, 91, 16, loaded.num_kv_heads, loaded.head_dim, loaded.dtype, CPU)
    kv.keys.normal_(generator=torch.Generator().manual_seed(1))
    kv.values.normal_(generator=torch.Generator().manual_seed(2))
    return kv


@torch.inference_mode()
def test_replayed_steps_equal_the_same_steps_alone(loaded):
    kv, alone, recorder = storage(loaded), storage(loaded), Recorder()
    graphs = DecodeGraphs(loaded.body, kv, lambda size, max_blocks: SdpaDecode(kv, loaded), 8, 160, recorder)
    for requests in ([(20, 1)], [(30, 1), (2, 1), (159, 1)], [(8, 1)] * 5, [(31, 1), (3, 1), (40, 1)], [(21, 1)]):
        step = step_of(*requests)
        attention = SdpaAttention(alone, step.write_slots, step.spans, loaded.num_heads, loaded.num_kv_heads)
        expected = loaded.body(step.input_ids, step.positions, attention)
        torch.testing.assert_close(graphs.run(step), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(kv.keys[:, 16:], alone.keys[:, 16:], atol=1e-4, rtol=1e-4)
    assert recorder.num_recorded == 3
    assert graphs.run(step_of((0, 4))) is None and graphs.run(step_of(*[(4, 1)] * 9)) is None


def test_all_sizes_can_be_recorded_in_advance(loaded):
    kv, recorder, made = storage(loaded), Recorder(), []

    def make_attention(size, max_blocks):
        made.append((size, max_blocks))
        return SdpaDecode(kv, loaded)

    DecodeGraphs(loaded.body, kv, make_attention, 4, 8192, recorder).record_all()
    # The pool has 91 blocks: no context has more, however long the model allows.
    assert made == [(4, 91), (2, 91), (1, 91)]


def test_what_cannot_be_recorded_runs_without_graphs(loaded):
    kv, attempts = storage(loaded), []

    def fail(run, pool):
        attempts.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    graphs = DecodeGraphs(loaded.body, kv, lambda size, max_blocks: SdpaDecode(kv, loaded), 8, 160, fail)
    assert graphs.run(step_of((20, 1))) is None and graphs.run(step_of((20, 1), (3, 1))) is None
    assert len(attempts) == 1
