"""lpm and dfs-weight: who is admitted first, by what the cache holds."""

from __future__ import annotations

import pytest

from engine.admission_order import MAX_SORTED_REQUESTS, admission_order
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kvcache.open_kv_cache import open_kv_cache
from engine.llm_engine import LLMEngine
from engine.model.simulated_runner import SimulatedRunner
from engine.request import Request, RequestStatus, SamplingParams

A, B, C = ([letter * 1_000 + position for position in range(200)] for letter in (1, 2, 3))


def open_cache(**fields):
    manager, hasher = open_kv_cache(EngineConfig(**{"prefix_cache": "radix", **fields}), 4_000, 8_192)
    return manager, lambda name, ids, **more: Request(name, ids, block_hasher=hasher, **more)


def store(manager, request):
    """Compute a prompt and end the request, as the scheduler would."""
    manager.allocate_slots(request, request.num_tokens)
    request.num_computed_tokens = request.num_tokens
    request.status = RequestStatus.RUNNING
    manager.publish_computed(request)
    manager.free(request)


def names(requests):
    return [request.request_id for request in requests]


@pytest.mark.parametrize("cache", ["radix", "hash"])
def test_lpm_admits_the_longest_cached_prefix_first(cache):
    manager, make = open_cache(prefix_cache=cache)
    store(manager, make("seed", A))
    waiting = [make("none", B), make("half", A[:100] + [7]), make("all", A + [7]), make("also none", C)]
    assert names(admission_order("lpm", waiting, manager)) == ["all", "half", "none", "also none"]
    assert names(admission_order("fcfs", waiting, manager)) == ["none", "half", "all", "also none"]


def test_of_those_that_share_what_is_not_cached_one_goes_ahead_and_the_others_last():
    manager, make = open_cache()
    waiting = [make("a1", A + [1]), make("a2", A + [2]), make("b", B), make("a3", A + [3]), make("short", A[:31] + [9])]
    assert names(admission_order("lpm", waiting, manager)) == ["a1", "b", "short", "a2", "a3"]


def test_a_salt_keeps_twins_from_waiting_for_each_other():
    manager, make = open_cache()
    waiting = [make("a1", A), make("salted", A, cache_salt="s"), make("a2", A)]
    assert names(admission_order("lpm", waiting, manager)) == ["a1", "salted", "a2"]


def test_a_cached_prefix_that_is_long_decides_over_twins():
    manager, make = open_cache()
    store(manager, make("seed", A[:33]))
    waiting = [make("a1", A + [1]), make("a2", A + [2])]
    assert names(admission_order("lpm", waiting, manager)) == ["a1", "a2"]


@pytest.mark.parametrize("shared, waits", [(31, False), (32, True)])
def test_from_32_shared_tokens_on_the_second_waits_for_the_first(shared, waits):
    manager, make = open_cache()
    waiting = [make("first", A[:shared] + [1] * 50), make("twin", A[:shared] + [2] * 50), make("other", B)]
    assert names(admission_order("lpm", waiting, manager)) == (["first", "other", "twin"] if waits else ["first", "twin", "other"])


@pytest.mark.parametrize("cached, waits", [(32, True), (33, False)])
def test_up_to_32_cached_tokens_do_not_keep_a_twin_from_waiting(cached, waits):
    manager, make = open_cache()
    store(manager, make("seed", A[:cached]))
    waiting = [make("first", A + [1]), make("twin", A + [2]), make("other", B)]
    assert names(admission_order("lpm", waiting, manager)) == (["first", "other", "twin"] if waits else ["first", "twin", "other"])


def test_without_a_cache_and_for_those_who_do_not_read_it_nobody_waits():
    manager, make = open_cache(enable_prefix_caching=False)
    waiting = [make("first", A + [1]), make("twin", A + [2]), make("other", B)]
    assert names(admission_order("lpm", waiting, manager)) == ["first", "twin", "other"]
    manager, make = open_cache()
    skipping = [
        Request(name, ids, SamplingParams(skip_reading_prefix_cache=True))
        for name, ids in (("first", A + [1]), ("twin", A + [2]), ("other", B))
    ]
    assert names(admission_order("lpm", skipping, manager)) == ["first", "twin", "other"]


def test_nobody_is_looked_up_while_nobody_can_be_admitted(monkeypatch):
    engine = LLMEngine(EngineConfig(prefix_cache="radix", max_num_seqs=1, policy="lpm"), SimulatedRunner())
    for number in range(3):
        engine.add_request([number] * 50, SamplingParams(max_tokens=5, ignore_eos=True))
    engine.step()
    monkeypatch.setattr("engine.scheduler.admission_order", lambda *_: pytest.fail("looked up in vain"))
    engine.step()


def test_a_long_queue_is_served_as_it_came():
    manager, make = open_cache()
    store(manager, make("seed", A))
    waiting = [make(str(number), [number] * 5) for number in range(MAX_SORTED_REQUESTS)] + [make("all", A + [7])]
    assert names(admission_order("lpm", waiting, manager))[-1] == "all"
    assert names(admission_order("lpm", waiting[1:], manager))[0] == "all"


def test_dfs_weight_walks_the_heaviest_subtree_first_and_a_nodes_own_requests_after_its_children():
    manager, make = open_cache()
    store(manager, make("seed a", A))
    store(manager, make("seed a2", A[:100] + B[:50]))
    store(manager, make("seed c", C))
    waiting = [
        make("c", C + [1]),
        make("none", [9, 9, 9]),
        make("a root", A[:100] + [1]),
        make("a deep 1", A + [1]),
        make("a other", A[:100] + B[:50] + [1]),
        make("a deep 2", A + [2]),
    ]
    order = names(admission_order("dfs-weight", waiting, manager))
    # Below A's first hundred tokens: four requests, two of them deep; then C with one; at last who matches nothing.
    assert order == ["a deep 1", "a deep 2", "a other", "a root", "c", "none"]


@pytest.mark.parametrize("fields", [{"prefix_cache": "hash"}, {"prefix_cache": "radix", "enable_prefix_caching": False}])
def test_dfs_weight_needs_a_tree(fields):
    with pytest.raises(ConfigError, match="dfs-weight with prefix_cache radix"):
        EngineConfig(policy="dfs-weight", **fields)


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight"])
def test_every_request_is_served_and_lpm_finds_what_fcfs_evicts(policy):
    """Two families in turns, with room for one: sorted, each family's requests follow each other."""
    config = EngineConfig(prefix_cache="radix", num_gpu_blocks=320, max_num_seqs=1, policy=policy)
    engine = LLMEngine(config, SimulatedRunner())
    prompts = [family + [number] for number in range(4) for family in (A, B)]
    outputs = engine.generate(prompts, SamplingParams(max_tokens=1, ignore_eos=True))
    hits = sum(output.num_cached_tokens for output in outputs)
    assert len(outputs) == 8
    assert hits == (0 if policy == "fcfs" else 6 * 200)
