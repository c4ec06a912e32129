"""Options of the caches: when blocks are published, in what units hits fall, who is freed first, by which policy leaves die."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import RADIX_EVICTION_POLICIES, EngineConfig
from engine.errors import ConfigError
from engine.kvcache.radix_tree import EVICTION_POLICIES
from engine.llm_engine import LLMEngine
from engine.model.simulated_runner import SimulatedRunner
from engine.request import SamplingParams
from labs import theory

ONE_TOKEN = SamplingParams(max_tokens=1, ignore_eos=True)


def open_engine(**fields):
    return LLMEngine(EngineConfig(**fields), SimulatedRunner())


def hits(engine, prompts, params=ONE_TOKEN):
    """Cached tokens of prompts sent one after the other."""
    return [engine.generate([prompt], params)[0].num_cached_tokens for prompt in prompts]


def ids(number, length):
    return [number * 10_000 + position for position in range(length)]


# When blocks are published


def test_twins_in_one_step_share_when_blocks_are_published_at_allocation_and_not_after_the_step():
    for fields, expected in (
        ({}, [0, 192, 192]),
        ({"publish_rule": "allocation"}, [0, 192, 192]),
        ({"publish_rule": "step"}, [0, 0, 0]),
        ({"prefix_cache": "radix"}, [0, 0, 0]),
        ({"prefix_cache": "radix", "publish_rule": "step"}, [0, 0, 0]),
    ):
        engine = open_engine(**fields)
        outputs = engine.generate([ids(1, 200)] * 3, ONE_TOKEN)
        assert [output.num_cached_tokens for output in outputs] == expected, fields


@pytest.mark.parametrize("rule", ["allocation", "step"])
def test_one_after_the_other_both_rules_find_the_same_outputs_included(rule):
    engine = open_engine(publish_rule=rule)
    (first,) = engine.generate([ids(1, 100)], SamplingParams(max_tokens=60, ignore_eos=True))
    turn = ids(1, 100) + first.output_token_ids + ids(2, 40)
    # The last output has no K/V: 159 tokens are computed, nine whole blocks.
    assert hits(engine, [turn, ids(1, 100)]) == [144, 96]


def test_after_the_step_a_chunk_is_findable_once_it_is_computed():
    engine = open_engine(publish_rule="step", max_num_batched_tokens=64)
    engine.add_request(ids(1, 200), ONE_TOKEN)
    engine.step()
    engine.add_request(ids(1, 200), ONE_TOKEN, request_id="twin")
    outputs = {}
    while engine.has_unfinished_requests:
        outputs |= {output.request_id: output for output in engine.step()}
    assert outputs["twin"].num_cached_tokens >= 64


def test_radix_has_no_blocks_to_publish_at_allocation():
    with pytest.raises(ConfigError, match="publish_rule is 'allocation'; accepted: auto or step"):
        EngineConfig(prefix_cache="radix", publish_rule="allocation")


# In what units hits fall


@pytest.mark.parametrize("length", [3784, 7542, 11292, 15019, 18770])
@pytest.mark.parametrize("use_eagle", [False, True])
def test_a_large_match_unit_and_a_drafter_follow_the_law(length, use_eagle):
    """Five lengths that users reported, with a unit of 2,144 tokens."""
    unit = 2_144
    fields = {"prefix_match_unit": unit, "use_eagle": use_eagle, "max_num_batched_tokens": 20_000, "num_gpu_blocks": 4_000}
    engine = LLMEngine(EngineConfig(**fields), SimulatedRunner("qwen3-8b"))
    law = theory.drafter_hits(length, unit) if use_eagle else theory.repeat(length, unit)
    assert hits(engine, [ids(1, length)] * 2) == [0, law]


@given(
    length=st.integers(1, 400),
    units=st.integers(1, 6),
    use_eagle=st.booleans(),
    cache=st.sampled_from([{"block_size": 8}, {"prefix_cache": "radix", "page_size": 8}, {"prefix_cache": "radix", "page_size": 1}]),
)
def test_hits_are_whole_match_units_and_a_drafter_gives_one_up(length, units, use_eagle, cache):
    unit = units * cache.get("block_size", cache.get("page_size"))
    engine = open_engine(prefix_match_unit=unit, use_eagle=use_eagle, **cache)
    law = theory.drafter_hits(length, unit) if use_eagle else theory.repeat(length, unit)
    assert hits(engine, [ids(1, length)] * 2) == [0, law]


def test_three_full_blocks_sent_again_with_a_drafter_reuse_one():
    assert hits(open_engine(use_eagle=True), [ids(1, 48)] * 2) == [0, 16]


@pytest.mark.parametrize("fields", [{"prefix_match_unit": 24}, {"prefix_match_unit": 8}, {"prefix_cache": "radix", "page_size": 16, "prefix_match_unit": 20}])
def test_a_match_unit_is_a_multiple_of_the_block(fields):
    with pytest.raises(ConfigError, match="prefix_match_unit is .*; accepted: a multiple of the block or page size, 16"):
        EngineConfig(**fields)


# Who is freed first


def test_two_prompts_in_turns_keep_over_half_with_tails_freed_first_and_nothing_with_heads_first():
    """Prompts of 2,001 tokens, 200 usable blocks, 20 requests: 53.3 % of the tokens; 0 % the other way round."""
    prompts = [ids(1, 2_001), ids(2, 2_001)] * 10
    rates = {}
    for heads_first in (False, True):
        found = hits(open_engine(num_gpu_blocks=201, free_heads_first=heads_first), prompts)
        rates[heads_first] = sum(found) / (20 * 2_001)
    assert round(rates[False], 3) == 0.533
    assert rates[True] == 0


@pytest.mark.parametrize("page_size", [1, 16])
def test_whole_leaves_die_in_a_radix_cache_of_the_same_size(page_size):
    prompts = [ids(1, 2_001), ids(2, 2_001)] * 10
    engine = open_engine(prefix_cache="radix", page_size=page_size, num_gpu_blocks=3_200 // page_size + 1)
    assert sum(hits(engine, prompts)) == 0


@pytest.mark.parametrize("fields", [{"prefix_cache": "radix"}, {"enable_prefix_caching": False}])
def test_the_order_of_freeing_means_nothing_elsewhere(fields):
    with pytest.raises(ConfigError, match="free_heads_first"):
        EngineConfig(free_heads_first=True, **fields)


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_radix_cache_stores_what_was_generated_when_the_request_ends_and_not_before(page_size):
    engine = open_engine(prefix_cache="radix", page_size=page_size)
    engine.add_request(ids(1, 20), SamplingParams(max_tokens=60, ignore_eos=True))
    for _ in range(50):
        engine.step()
    assert engine.manager.prefix_cache.num_cached_keys == 20 // page_size
    while engine.has_unfinished_requests:
        engine.step()
    assert engine.manager.prefix_cache.num_cached_keys == 79 // page_size


# By which policy leaves die


def test_the_engine_names_every_policy_of_the_tree():
    assert RADIX_EVICTION_POLICIES == EVICTION_POLICIES


@pytest.mark.parametrize(
    "policy, order, survivor",
    [("lru", [1, 2, 1, 3], 1), ("mru", [1, 2, 1, 3], 2), ("lfu", [1, 1, 2, 3], 1), ("fifo", [1, 2, 3], 2), ("filo", [1, 2, 3], 1)],
)
def test_an_eviction_policy_reaches_the_tree(policy, order, survivor):
    engine = open_engine(prefix_cache="radix", num_gpu_blocks=451, radix_eviction_policy=policy)
    hits(engine, [ids(number, 200) for number in order])  # 3 needs the room of one of the others
    cached = {number: engine.manager.get_computed_blocks(engine.make_request(ids(number, 200))).num_tokens for number in (1, 2)}
    assert (cached[survivor] > 0, cached[3 - survivor] > 0) == (True, False)
