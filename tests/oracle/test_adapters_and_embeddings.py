"""Seeded adapters against transformers with merged weights (W + scale·B·A), given embeddings against its inputs_embeds.

In float32 on a random two-layer model, by each of the three bodies: compiled, torch's operations, transformers' layers.
"""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.kvcache.cache_identity import LoRA
from engine.llm_engine import LLMEngine
from engine.model.lora_adapter import seeded_adapter
from engine.model.model_body import PROJECTIONS, TransformersBody
from engine.model.model_runner import ModelRunner
from engine.request import Request, SamplingParams
from tests.oracle.conftest import Pair
from tests.oracle.test_cache_changes_no_output import CACHES

NUM_OUTPUTS = 6
BODIES = ["compiled", "torch", "transformers"]


@pytest.fixture(params=BODIES)
def body(request, tiny, tiny_uncompiled) -> Pair:
    if request.param != "transformers":
        return tiny if request.param == "compiled" else tiny_uncompiled
    pair = Pair(copy.copy(tiny_uncompiled.loaded), tiny_uncompiled.reference)
    pair.loaded.__dict__["body"] = TransformersBody(pair.loaded.model)
    return pair


_merged: dict[int, Pair] = {}


def merged(pair: Pair, seed: int | None) -> Pair:
    """transformers' model with the adapter in its weights; itself without one."""
    if seed is None:
        return pair
    if seed not in _merged:
        adapter = seeded_adapter(seed, pair.loaded.body.qkv_shape, torch.float32, torch.device("cpu"))
        reference = copy.deepcopy(pair.reference)
        for index, layer in enumerate(reference.base_model.layers):
            for part, name in enumerate(PROJECTIONS):
                down, up = adapter.matrices(index, part)
                getattr(layer.self_attn, name).weight.data += up @ down
        _merged[seed] = Pair(pair.loaded, reference)
    return _merged[seed]


def lora(seed: int | None) -> LoRA | None:
    return None if seed is None else LoRA(f"adapter-{seed}", f"seeded:{seed}")


def ids(seed: int, length: int) -> list[int]:
    return [random.Random(seed * 1000 + index).randrange(512) for index in range(length)]


def embeddings(seed: int, length: int, hidden_size: int = 64) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal((length, hidden_size)).astype("<f4")


def add(driver, name: str, prompt: list[int], blocks: list[int], seed: int | None = None, embeds=None, **params) -> Request:
    params_of = driver.add(name, prompt, blocks, **params).sampling_params
    raw = None if embeds is None else [row.tobytes() for row in embeds]
    return Request(name, prompt, params_of, lora=lora(seed), prompt_embeds=raw)


@torch.inference_mode()
def generate_from(pair: Pair, embeds: np.ndarray) -> list[int]:
    given = torch.from_numpy(embeds.copy())[None]
    out = pair.reference.generate(
        inputs_embeds=given, attention_mask=torch.ones(given.shape[:2], dtype=torch.int64), do_sample=False,
        max_new_tokens=NUM_OUTPUTS, min_new_tokens=NUM_OUTPUTS, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return out[0].tolist()


def test_the_shapes_of_all_bodies_are_those_of_the_model(body):
    config = body.loaded.model.config
    kv = config.num_key_value_heads * config.head_dim
    assert body.loaded.body.qkv_shape == (2, 64, (config.num_attention_heads * config.head_dim, kv, kv))


@pytest.mark.parametrize("chunk", [1000, 7])
def test_an_adapter_gives_the_tokens_of_merged_weights(body, drive, chunk):
    prompt = ids(1, 60)
    for seed in (None, 3, 4):
        driver = drive(body.runner(20, 16))
        request = add(driver, "adapted", prompt, [5, 2, 9, 11, 4, 1], seed)
        driver.run(request, num_outputs=NUM_OUTPUTS, chunk=chunk)
        assert request.output_token_ids == merged(body, seed).generate(prompt, NUM_OUTPUTS)
    outputs = [merged(body, seed).generate(prompt, NUM_OUTPUTS) for seed in (None, 3, 4)]
    assert len(set(map(tuple, outputs))) == 3, "an adapter that changes nothing would prove nothing"


@pytest.mark.parametrize("tile_rows", [512, 9])
def test_a_step_of_two_adapters_and_none_leaves_every_request_as_if_alone(body, drive, monkeypatch, tile_rows):
    monkeypatch.setattr(body.loaded.body, "_tile_rows", tile_rows, raising=False)
    prompts, seeds = [ids(number, length) for number, length in enumerate((33, 20, 41, 17, 25))], (3, None, 4, 3, None)
    driver = drive(body.runner(60, 4))
    requests = [
        add(driver, str(number), prompt, list(range(1 + 11 * number, 12 + 11 * number)) + [56 + number] * 2, seed)
        for number, (prompt, seed) in enumerate(zip(prompts[:4], seeds))
    ]
    driver.step((requests[0], 33), (requests[1], 8))
    # A decode, a chunk, a whole prompt and a first chunk, of both adapters and none.
    driver.step((requests[0], 1), (requests[1], 8), (requests[2], 41), (requests[3], 5))
    driver.run(*requests, num_outputs=NUM_OUTPUTS, chunk=1000)
    for request, prompt, seed in zip(requests, prompts, seeds):
        assert request.output_token_ids == merged(body, seed).generate(prompt, NUM_OUTPUTS), request.request_id


@pytest.mark.parametrize("chunk", [1000, 16])
def test_logprobs_of_prompt_and_output_under_an_adapter_equal_those_of_merged_weights(body, drive, chunk):
    prompt = ids(7, 50)
    driver = drive(body.runner(20, 16))
    request = add(driver, "scored", prompt, [4, 2, 9, 1], 3, prompt_logprobs=0, logprobs=2)
    reports = {}
    while not request.num_output_tokens:
        output = driver.step((request, chunk))
        reports.update(output.prompt_logprobs.get("scored", {}))
    expected = merged(body, 3).logprobs(prompt)
    wanted = [expected[position - 1][prompt[position]].item() for position in range(1, 50)]
    assert [reports[position].logprob for position in range(1, 50)] == pytest.approx(wanted, abs=1e-4)
    assert [one.logprob for one in output.logprobs[0].top] == pytest.approx(expected[-1].topk(2).values.tolist(), abs=1e-4)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("chunk", [1000, 7])
def test_given_embeddings_give_the_tokens_of_inputs_embeds(body, drive, chunk, seed):
    embeds = embeddings(5, 40)
    driver = drive(body.runner(40, 4))
    request = add(driver, "embedded", [0] * 40, list(range(1, 13)), seed, embeds)
    other = add(driver, "tokens", ids(2, 30), list(range(13, 23)))
    driver.run(request, other, num_outputs=NUM_OUTPUTS, chunk=chunk)
    assert request.output_token_ids == generate_from(merged(body, seed), embeds)
    assert other.output_token_ids == body.generate(ids(2, 30), NUM_OUTPUTS)


def test_the_embeddings_of_tokens_say_what_the_tokens_say(body, drive):
    prompt = ids(3, 30)
    driver = drive(body.runner(20, 4))
    rows = [np.frombuffer(one, "<f4") for one in driver.runner.token_embeddings(prompt)]
    assert np.array_equal(rows, body.reference.get_input_embeddings().weight[prompt].detach().numpy())
    request = add(driver, "embedded", [9] * 30, list(range(1, 11)), None, rows)
    driver.run(request, num_outputs=NUM_OUTPUTS, chunk=1000)
    assert request.output_token_ids == body.generate(prompt, NUM_OUTPUTS)


def greedy() -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUTS, ignore_eos=True)


def engine_of(pair: Pair, **fields) -> LLMEngine:
    config = EngineConfig(dtype="float32", device="cpu", max_num_batched_tokens=48, **fields)
    return LLMEngine(config, ModelRunner(pair.loaded, config), pair.loaded.tokenizer)


def identities() -> list[dict]:
    """Of one prompt of 60 tokens; each comes again, and the last two share their first 40 embeddings."""
    one, two = embeddings(1, 60), embeddings(2, 60)
    two[:40] = one[:40]
    embedded = [{"prompt_embeds": [row.tobytes() for row in rows]} for rows in (one, two)]
    return [{}, {"lora": lora(3)}, {"lora": lora(4)}, *embedded, {"lora": lora(3), **embedded[0]}]


@pytest.mark.parametrize("cache", list(CACHES)[1:])
def test_a_cache_changes_no_output_of_adapters_and_embeddings(tiny, cache):
    prompt = ids(1, 60)
    plain = engine_of(tiny, **CACHES["off"])
    expected = [plain.generate([prompt], greedy(), **fields)[0].output_token_ids for fields in identities()]
    assert len(set(map(tuple, expected))) == len(expected)
    engine = engine_of(tiny, **CACHES[cache])
    cold, warm = ([engine.generate([prompt], greedy(), **fields)[0] for fields in identities()] for _ in range(2))
    assert [output.output_token_ids for output in cold + warm] == expected * 2
    unit = engine.config.unit_size
    assert [output.num_cached_tokens for output in cold] == [0, 0, 0, 0, 40 // unit * unit, 0]
    assert [output.num_cached_tokens for output in warm] == [59 // unit * unit] * 6
    together = engine_of(tiny, **CACHES[cache]).generate([prompt] * 6, greedy(), fields_by_prompt=identities())
    assert [output.output_token_ids for output in together] == expected


@pytest.mark.parametrize("cache", list(CACHES)[1:])
@pytest.mark.parametrize(("part", "first", "second"), [("lora", 1, 2), ("lora", 1, 0), ("embeddings", 3, 4)])
def test_a_key_without_that_part_gives_the_answer_to_another_request(tiny, cache, part, first, second):
    prompt = ids(1, 60)
    right, wrong = engine_of(tiny, **CACHES[cache]), engine_of(tiny, **CACHES[cache], leave_out_of_key=part)
    answers = []
    for engine in (right, wrong):
        for fields in (identities()[first], identities()[second]):
            output = engine.generate([prompt], greedy(), **fields)[0]
        answers.append(output.output_token_ids)
    assert output.num_cached_tokens == 59 // engine.config.unit_size * engine.config.unit_size
    assert answers[0] != answers[1]
