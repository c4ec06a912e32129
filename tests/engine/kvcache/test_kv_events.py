"""KV events: what both caches tell of storing, removing and clearing."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.kvcache.block_hash import event_block_hash
from engine.kvcache.cache_identity import CacheIdentity, LoRA, MultimodalItem
from engine.kvcache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, untagged_extra_keys
from engine.kvcache.open_kv_cache import open_kv_cache
from engine.kvcache.page_hash import event_page_hash, hash_pages
from engine.llm_engine import LLMEngine
from engine.model.simulated_runner import SimulatedRunner
from engine.request import FinishReason, Request, RequestStatus, SamplingParams


def open_cache(num_blocks=11, **fields):
    manager, hasher = open_kv_cache(EngineConfig(enable_kv_cache_events=True, **fields), num_blocks, 8_192)
    return manager, lambda name, ids, **more: Request(name, ids, block_hasher=hasher, **more)


def compute(manager, request, num_tokens=None):
    manager.allocate_slots(request, num_tokens or request.num_uncomputed_tokens)
    request.num_computed_tokens += num_tokens or request.num_uncomputed_tokens
    request.status = RequestStatus.RUNNING
    manager.publish_computed(request)


def finish(manager, request):
    request.finish(FinishReason.LENGTH)
    manager.free(request)


def test_one_stored_event_names_all_new_blocks_and_a_later_one_their_parent():
    manager, make = open_cache(block_size=4)
    request = make("r", list(range(14)))
    compute(manager, request, 9)
    compute(manager, request)
    first, second = manager.take_kv_events()
    names = [event_block_hash(name) for name in request.block_hashes]
    assert first == BlockStored(tuple(names[:2]), None, tuple(range(8)), 4, None, (None, None))
    assert second == BlockStored(tuple(names[2:3]), names[1], tuple(range(8, 12)), 4, None, (None,))
    assert manager.take_kv_events() == []


def test_a_block_that_is_overwritten_is_removed_before_the_new_one_is_stored():
    manager, make = open_cache(num_blocks=4, block_size=4)
    old = make("old", list(range(12)))
    compute(manager, old)
    finish(manager, old)
    manager.take_kv_events()
    new = make("new", list(range(100, 108)))
    compute(manager, new)
    names = [event_block_hash(name) for name in old.block_hashes]
    events = manager.take_kv_events()
    # Tail first: the head of the old prompt survives.
    assert events[:2] == [BlockRemoved((names[2],)), BlockRemoved((names[1],))]
    assert [type(event) for event in events[2:]] == [BlockStored]


def test_a_removed_name_may_still_be_served_by_a_twin():
    manager, make = open_cache(num_blocks=6, block_size=4)
    for name in ("one", "two"):
        request = make(name, list(range(8)))
        match = manager.get_computed_blocks(request)
        manager.allocate_slots(request, 8 - match.num_tokens, match)
        request.num_computed_tokens = 8
        finish(manager, request)
    assert manager.prefix_cache.num_cached_keys == 2 and len(manager.prefix_cache.name_of_block) == 3
    manager.take_kv_events()
    compute(manager, make("three", list(range(50, 62))))
    removed = [event for event in manager.take_kv_events() if isinstance(event, BlockRemoved)]
    assert len(removed) == 1 and manager.prefix_cache.num_cached_keys >= 2


@pytest.mark.parametrize("fields", [{"block_size": 4}, {"prefix_cache": "radix", "page_size": 4}])
def test_a_reset_is_told_once_and_a_refused_one_not(fields):
    manager, make = open_cache(**fields)
    request = make("r", list(range(9)))
    compute(manager, request)
    manager.take_kv_events()
    assert not manager.reset_prefix_cache() and manager.take_kv_events() == []
    finish(manager, request)
    manager.take_kv_events()
    assert manager.reset_prefix_cache() and manager.take_kv_events() == [AllBlocksCleared()]


def test_events_carry_keys_without_tags_and_keep_them_out_of_sight():
    manager, make = open_cache(block_size=4)
    identity = dict(lora=LoRA("adapter", "/adapters/1"), mm_items=(MultimodalItem("image", 2, 4),), cache_salt="secret")
    compute(manager, make("r", list(range(9)), **identity))
    (event,) = manager.take_kv_events()
    assert event.lora_name == "adapter"
    assert event.extra_keys == (("adapter", ("image", 2), "secret"), ("adapter", ("image", -2)))
    assert "secret" not in repr(event) and "token_ids" not in repr(event)


def test_untagged_keys_of_nothing_are_nothing():
    assert untagged_extra_keys([]) is None
    assert untagged_extra_keys([None, None]) == (None, None)
    keys = CacheIdentity(prompt_embeds=(b"a", b"b")).extra_keys(0, 2)
    assert untagged_extra_keys([keys]) == ((keys[0][1],),)


def test_reused_blocks_can_be_reported_without_changing_anything():
    manager, make = open_cache(block_size=4)
    request = make("r", list(range(12)))
    compute(manager, request)
    manager.take_kv_events()
    before = (dict(manager.prefix_cache.name_of_block), manager.pool.ref_counts[:])
    manager.prefix_cache.report_reused(request, 2)
    manager.prefix_cache.report_reused(request, 0)
    (event,) = manager.take_kv_events()
    assert (len(event.block_hashes), event.parent_block_hash, event.token_ids) == (2, None, tuple(range(8)))
    assert before == (dict(manager.prefix_cache.name_of_block), manager.pool.ref_counts[:])
    silent, make = open_kv_cache(EngineConfig(), 11, 8_192)[0], None
    silent.prefix_cache.report_reused(request, 2)
    assert silent.take_kv_events() == []


def test_pages_are_stored_and_removed_by_sglangs_names():
    manager, make = open_cache(num_blocks=9, prefix_cache="radix", page_size=4)
    ids = list(range(18))
    first = make("first", ids)
    compute(manager, first)
    finish(manager, first)
    names = [event_page_hash(one) for one in hash_pages(ids[:16], 4)]
    assert manager.take_kv_events() == [BlockStored(tuple(names), None, tuple(ids[:16]), 4)]
    branch = make("branch", ids[:8] + [90, 91, 92, 93, 94])
    match = manager.get_computed_blocks(branch)
    manager.allocate_slots(branch, 5, match)
    branch.num_computed_tokens, branch.status = 13, RequestStatus.RUNNING
    manager.publish_computed(branch)
    (stored,) = manager.take_kv_events()
    assert (stored.parent_block_hash, stored.token_ids) == (names[1], (90, 91, 92, 93))
    assert stored.block_hashes == (event_page_hash(hash_pages(ids[:8] + [90, 91, 92, 93], 4)[2]),)
    finish(manager, branch)
    compute(manager, make("third", [70] * 20))
    removed = [event for event in manager.take_kv_events() if isinstance(event, BlockRemoved)]
    assert removed[0] == BlockRemoved((names[2], names[3]))  # the lower half of the split node, least recently used


def test_salted_pages_have_names_of_their_own():
    manager, make = open_cache(num_blocks=40, prefix_cache="radix", page_size=4)
    for name, salt in (("a", None), ("b", "s"), ("c", "t")):
        request = make(name, list(range(5)), cache_salt=salt)
        compute(manager, request)
        finish(manager, request)
    events = [event for event in manager.take_kv_events() if isinstance(event, BlockStored)]
    assert len({event.block_hashes for event in events}) == 3
    assert [event.extra_keys for event in events] == [None, (("s",),), (("t",),)]


def test_a_long_prompt_in_chunks_is_named_once_and_not_again_with_each(monkeypatch):
    from engine.kvcache import radix_cache

    named = []
    original = radix_cache.hash_pages
    monkeypatch.setattr(radix_cache, "hash_pages", lambda ids, *rest, **more: named.append(len(ids)) or original(ids, *rest, **more))
    manager, make = open_cache(num_blocks=300, prefix_cache="radix", page_size=4)
    request = make("r", list(range(1_000)))
    for _ in range(10):
        compute(manager, request, 100)
    stored = [event for event in manager.take_kv_events() if isinstance(event, BlockStored)]
    assert sum(named) == 1_000
    whole = [event_page_hash(one) for one in hash_pages(list(range(1_000)), 4)]
    assert [name for event in stored for name in event.block_hashes] == whole


def test_followers_learn_that_a_broken_engine_started_over(monkeypatch):
    engine = LLMEngine(EngineConfig(enable_kv_cache_events=True), SimulatedRunner())
    engine.generate([list(range(100))], SamplingParams(max_tokens=1, ignore_eos=True))
    engine.add_request(list(range(50)))
    monkeypatch.setattr(engine.scheduler, "schedule", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert [type(event).__name__ for event in engine.take_kv_events()] == ["BlockStored", "AllBlocksCleared"]


def test_an_engine_hands_out_what_happened_and_keeps_nothing_unless_asked():
    prompt = list(range(100))
    for asked in (True, False):
        engine = LLMEngine(EngineConfig(enable_kv_cache_events=asked), SimulatedRunner())
        engine.generate([prompt, prompt], SamplingParams(max_tokens=1, ignore_eos=True))
        assert [type(event).__name__ for event in engine.take_kv_events()] == (["BlockStored"] if asked else [])
