"""Adapters from seeds: which paths name one, what is drawn, what rows it changes, and what a runner refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.errors import RequestRefused
from engine.kvcache.cache_identity import LoRA, MultimodalItem
from engine.llm_engine import LLMEngine
from engine.model import model_runner
from engine.model.lora_adapter import RANK, QkvShape, seed_of, seeded_adapter
from engine.model.model_body import TransformersBody
from engine.model.model_runner import ModelRunner
from engine.model.row_changes import RowChanges
from engine.request import SamplingParams

CPU = torch.device("cpu")
SHAPE = QkvShape(2, 64, (48, 16, 16))
PROMPT = list(range(40, 60))


@pytest.fixture
def engine(tiny):
    return LLMEngine(EngineConfig(device="cpu"), ModelRunner(tiny, EngineConfig()))


def embeds(length=len(PROMPT), size=64, value=0.5):
    return [np.full(size, value, dtype="<f4").tobytes()] * length


def test_a_path_names_a_seed():
    assert (seed_of("seeded:0"), seed_of("seeded:42"), seed_of(f"seeded:{2**63 - 1}")) == (0, 42, 2**63 - 1)


@pytest.mark.parametrize(
    "path",
    ["", "/adapters/sql", "seeded:", "seeded:-1", "seeded:1.5", "seeded:1 ", f"seeded:{2**63}", "seed:1", "seeded:" + "1" * 40],
)
def test_other_paths_are_refused_with_the_form_that_is_accepted(path):
    with pytest.raises(RequestRefused, match='accepted: "seeded:<n>"'):
        seed_of(path)


def test_a_seed_draws_the_same_adapter_again_and_another_seed_another():
    one, again, other = (seeded_adapter(seed, SHAPE, torch.float32, CPU) for seed in (1, 1, 2))
    assert torch.equal(one.down[1], again.down[1]) and torch.equal(one.up[1], again.up[1])
    assert not torch.equal(one.down[1], other.down[1]) and not torch.equal(one.down[0], one.down[1])
    half = seeded_adapter(1, SHAPE, torch.bfloat16, CPU)
    assert torch.equal(half.up[0], one.up[0].bfloat16())


def test_the_product_of_all_three_is_that_of_each_of_low_rank():
    adapter, rows = seeded_adapter(5, SHAPE, torch.float32, CPU), torch.randn(7, 64)
    parts = [adapter.product_of(1, part, rows) for part in range(3)]
    torch.testing.assert_close(adapter.product(1, rows), torch.cat(parts, -1))
    for part, size in enumerate(SHAPE.out_sizes):
        down, up = adapter.matrices(1, part)
        assert down.shape == (RANK, 64) and up.shape == (size, RANK)
        assert torch.linalg.matrix_rank(up @ down) == RANK
        torch.testing.assert_close(parts[part], rows @ (up @ down).T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("first_row, length", [(0, 12), (0, 3), (4, 4), (6, 6), (10, 2)])
def test_only_the_rows_of_an_adapter_change_whatever_part_of_the_step_is_at_hand(first_row, length):
    one, two = (seeded_adapter(seed, SHAPE, torch.float32, CPU) for seed in (1, 2))
    changes = RowChanges(adapters=[(1, 5, one), (7, 8, two), (11, 12, one)])
    normed, qkv = torch.randn(12, 64), torch.zeros(12, 80)
    wanted = torch.zeros(12, 80)
    for rows, adapter in ((slice(1, 5), one), (slice(7, 8), two), (slice(11, 12), one)):
        wanted[rows] = adapter.product(0, normed[rows])
    tile = slice(first_row, first_row + length)
    changes.adapt(0, normed[tile], qkv[tile], first_row)
    outside = [row for row in range(12) if not first_row <= row < first_row + length]
    torch.testing.assert_close(qkv[tile], wanted[tile])
    assert not qkv[outside].any()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lora": LoRA("sql", "/adapters/sql")}, 'LoRA path .*; accepted: "seeded:<n>"'),
        ({"mm_items": [MultimodalItem("cat", 2, 5)]}, "images, which the model does not read; accepted: cache_salt"),
        ({"prompt_embeds": embeds(3)}, "3 prompt embeddings of 256 bytes; accepted: one for each of the prompt's 20 positions, 64"),
        ({"prompt_embeds": embeds(size=63)}, r"20 prompt embeddings of 252 bytes; accepted: .* \(256 bytes\)"),
        ({"prompt_embeds": []}, "0 prompt embeddings of no bytes; accepted"),
        ({"prompt_embeds": embeds(value=float("nan"))}, "prompt embeddings that are not finite; accepted"),
    ],
)  # fmt: skip
def test_what_the_model_cannot_be_given_is_refused(engine, fields, message):
    with pytest.raises(RequestRefused, match=message):
        engine.generate([PROMPT], SamplingParams(max_tokens=1), **fields)
    assert not engine.has_unfinished_requests


def test_what_it_can_be_given_is_served_and_changes_the_answer(engine):
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    fields = [{}, {"lora": LoRA("a", "seeded:1")}, {"lora": LoRA("a", "seeded:2")}, {"prompt_embeds": embeds()}]
    answers = [tuple(engine.generate([PROMPT], params, **one)[0].output_token_ids) for one in fields]
    assert len(set(answers)) == 4
    # A name is no weight: the same numbers under another name.
    assert tuple(engine.generate([PROMPT], params, lora=LoRA("b", "seeded:1"))[0].output_token_ids) == answers[1]


def test_layers_with_other_products_have_no_shape_for_an_adapter():
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", n_embd=64, n_layer=2, n_head=4, vocab_size=300))
    assert TransformersBody(model).qkv_shape is None


def test_a_runner_whose_model_takes_no_adapter_says_so(engine):
    class Other:
        qkv_shape = None

    engine.runner._body = Other()
    with pytest.raises(RequestRefused, match="a LoRA adapter, for a model whose layers have no q_proj"):
        engine.generate([PROMPT], lora=LoRA("a", "seeded:1"))


def test_a_runner_draws_an_adapter_once_and_keeps_a_bounded_number(engine, monkeypatch):
    drawn = []
    monkeypatch.setattr(model_runner, "MAX_ADAPTERS", 2)
    monkeypatch.setattr(model_runner, "seeded_adapter", lambda seed, *rest: drawn.append(seed) or seeded_adapter(seed, *rest))
    for seed in (1, 2, 1, 3, 1, 2):
        engine.generate([PROMPT], SamplingParams(max_tokens=3, ignore_eos=True), lora=LoRA("a", f"seeded:{seed}"))
    assert drawn == [1, 2, 3, 2] and len(engine.runner._adapters) == 2


def test_a_step_without_adapters_and_embeddings_has_no_changes(engine, monkeypatch):
    seen, body = [], engine.runner._body
    engine.runner._body = lambda *arguments: seen.append(arguments[4]) or body(*arguments)
    engine.generate([PROMPT], SamplingParams(max_tokens=2, ignore_eos=True), cache_salt="s")
    engine.generate([PROMPT], SamplingParams(max_tokens=2, ignore_eos=True), prompt_embeds=embeds())
    # Behind the prompt, tokens are embedded as ever.
    assert [one is None for one in seen] == [True, True, False, True]
