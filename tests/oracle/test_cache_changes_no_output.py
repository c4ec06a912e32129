"""Greedy tokens with the hash cache, the radix cache and no cache are equal, token for token, and equal transformers'.

In float32, on a random two-layer model and on SmolLM2: over shared, repeated, salted, multi-turn, chunked and preempted
requests. A cache that served a wrong block would change the tokens; each case also asserts that it did serve some.
"""

from __future__ import annotations

import random

import pytest

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.model.model_runner import ModelRunner
from engine.request import SamplingParams
from tests.broken_rules import name_blocks_without_their_parents

CACHES = {
    "off": {"enable_prefix_caching": False},
    "hash": {"prefix_cache": "hash", "block_size": 16},
    "radix page 1": {"prefix_cache": "radix", "page_size": 1},
    "radix page 16": {"prefix_cache": "radix", "page_size": 16},
}


def open_engine(pair, cache: str, pool_tokens: int = 8192, **fields) -> LLMEngine:
    fields |= CACHES[cache]
    unit = fields.get("page_size", 16)
    config = EngineConfig(dtype="float32", device="cpu", num_gpu_blocks=-(-pool_tokens // unit) + 1, **fields)
    return LLMEngine(config, ModelRunner(pair.loaded, config), pair.loaded.tokenizer)


_expected: dict[tuple, list[list[int]]] = {}


def without_cache(pair, prompts, max_tokens: int = 6) -> list[list[int]]:
    """What the engine says with caching off; computed once for each model and workload."""
    key = (id(pair), max_tokens, tuple(map(tuple, prompts)))
    if key not in _expected:
        engine = open_engine(pair, "off")
        distinct = {tuple(prompt): engine.generate([prompt], greedy(max_tokens))[0].output_token_ids for prompt in map(tuple, prompts)}
        _expected[key] = [distinct[tuple(prompt)] for prompt in prompts]
    return _expected[key]


def greedy(max_tokens: int = 6) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def prompts_of(pair, seed: int, *lengths: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(pair.loaded.vocab_size) for _ in range(length)] for length in lengths]


def shared_prompts(pair) -> list[list[int]]:
    system, *tails = prompts_of(pair, 1, 80, 9, 21, 5)
    return [system + tail for tail in tails] + [system]


def one_by_one(engine: LLMEngine, prompts, **fields) -> tuple[list[list[int]], int]:
    outputs = [engine.generate([prompt], greedy(), **fields)[0] for prompt in prompts]
    return [output.output_token_ids for output in outputs], sum(output.num_cached_tokens for output in outputs)


@pytest.mark.parametrize("cache", CACHES)
def test_shared_and_repeated_prompts_say_what_transformers_says(pair, cache):
    prompts = shared_prompts(pair)
    tokens, cached = one_by_one(open_engine(pair, cache), prompts + prompts)
    assert tokens == [pair.generate(prompt, 6) for prompt in prompts] * 2
    assert (cached > 0) is (cache != "off")


@pytest.mark.parametrize("cache", list(CACHES)[1:])
def test_all_prompts_at_once_say_the_same(pair, cache):
    prompts = shared_prompts(pair) * 2
    expected = without_cache(pair, prompts)
    outputs = open_engine(pair, cache).generate(prompts, greedy())
    assert [output.output_token_ids for output in outputs] == expected


@pytest.mark.parametrize("budget", [7, 64, 2048])
@pytest.mark.parametrize("cache", list(CACHES)[1:])
def test_chunks_of_any_size_say_the_same(pair, cache, budget):
    prompts = shared_prompts(pair)[:2] * 2
    expected = without_cache(pair, prompts)
    engine = open_engine(pair, cache, max_num_batched_tokens=budget)
    assert [output.output_token_ids for output in engine.generate(prompts, greedy())] == expected
    tokens, cached = one_by_one(engine, prompts)
    assert tokens == expected and cached > 0


@pytest.mark.parametrize("cache", list(CACHES)[1:])
def test_a_conversation_reuses_its_own_answers_and_says_the_same(pair, cache):
    def converse(engine: LLMEngine) -> tuple[list[list[int]], list[int]]:
        history, answers, cached = prompts_of(pair, 2, 30)[0], [], []
        for turn in prompts_of(pair, 3, 7, 12, 5):
            output = engine.generate([history], greedy(12))[0]
            answers.append(output.output_token_ids)
            cached.append(output.num_cached_tokens)
            history = history + output.output_token_ids + turn
        return answers, cached

    if (key := (id(pair), "conversation")) not in _expected:
        _expected[key] = converse(open_engine(pair, "off"))[0]
    expected = _expected[key]
    answers, cached = converse(open_engine(pair, cache))
    assert answers == expected
    # The second turn finds the first's prompt and answer, but for the last token, in whole blocks.
    assert cached[1] == (41 if cache == "radix page 1" else 32)


@pytest.mark.parametrize("cache", CACHES)
def test_preempted_requests_say_the_same(pair, cache):
    prompts = prompts_of(pair, 4, 40, 41, 42)
    expected = without_cache(pair, prompts, 16)
    engine = open_engine(pair, cache, pool_tokens=144)
    outputs = engine.generate(prompts, greedy(16))
    assert [output.output_token_ids for output in outputs] == expected
    # With the cache off nothing is looked up, so nothing is counted.
    assert engine.take_stats().preempted_requests > 0 or cache == "off"


@pytest.mark.parametrize("cache", list(CACHES)[1:])
def test_salts_never_share_and_never_change_the_answer(pair, cache):
    prompt = shared_prompts(pair)[0]
    engine = open_engine(pair, cache)
    outputs = [engine.generate([prompt], greedy(), cache_salt=salt)[0] for salt in (None, "a", "b", "a", None)]
    assert [output.num_cached_tokens > 0 for output in outputs] == [False, False, False, True, True]
    assert len({tuple(output.output_token_ids) for output in outputs}) == 1


def test_a_cache_that_leaves_the_parent_out_of_the_name_gives_a_wrong_answer(tiny, monkeypatch):
    """The rule this file guards, broken on purpose: equal blocks behind different pasts must not be shared."""
    from engine.kvcache import block_hash

    first, second, tail = prompts_of(tiny, 5, 16, 16, 20)
    expected, _ = one_by_one(open_engine(tiny, "off"), [second + tail])
    monkeypatch.setattr(block_hash.BlockHasher, "extend", name_blocks_without_their_parents)
    engine = open_engine(tiny, "hash")
    one_by_one(engine, [first + tail, second + prompts_of(tiny, 6, 3)[0]])
    tokens, cached = one_by_one(engine, [second + tail])
    assert cached == 32 and tokens != expected
