"""The token tree and page names, with the numbers of SGLang's own unit tests: items 63 to 74 of tests/CONFORMANCE.md."""

from __future__ import annotations

import itertools

import pytest

from engine.config import EngineConfig
from engine.kvcache.cache_identity import Namespace
from engine.kvcache.kv_events import BlockRemoved, BlockStored
from engine.kvcache.open_kv_cache import open_kv_cache
from engine.kvcache.page_hash import event_page_hash, hash_pages
from engine.kvcache.radix_tree import RadixTree
from engine.request import FinishReason, Request, RequestStatus


def make_tree(page_size: int = 1) -> RadixTree:
    return RadixTree(page_size, clock=itertools.count().__next__)


def serve(manager, name: str, token_ids: list[int]) -> None:
    """One request from lookup to its end."""
    request = Request(name, token_ids)
    match = manager.get_computed_blocks(request)
    manager.allocate_slots(request, len(token_ids) - match.num_tokens, match)
    request.status, request.num_computed_tokens = RequestStatus.RUNNING, len(token_ids)
    manager.publish_computed(request)
    request.finish(FinishReason.LENGTH)
    manager.free(request)


def test_nodes_are_numbered_as_they_are_made_and_again_from_the_start_after_a_reset():
    tree = make_tree()
    made = [tree.insert([number], [number])[1].id for number in (5, 6, 7)]
    assert made == [tree.root.id + 1, tree.root.id + 2, tree.root.id + 3]
    first_root = tree.root.id
    tree.reset()
    assert tree.root.id == first_root and list(tree.nodes()) == []


def test_three_tokens_are_found_and_two_of_them_too():
    tree = make_tree()
    assert tree.insert([1, 2, 3], [10, 20, 30])[0] == 0
    assert (tree.total_size, tree.evictable_size, tree.protected_size) == (3, 3, 0)
    assert tree.match([1, 2, 3]).num_tokens == 3
    match = tree.match([1, 2, 5])
    assert match.num_tokens == 2 and list(match.slots) == [10, 20]
    assert tree.insert([1, 2, 3], [11, 21, 31])[0] == 3 and list(tree.match([1, 2, 3]).slots) == [10, 20, 30]


def test_without_caching_nothing_is_found():
    manager, hasher = open_kv_cache(EngineConfig(prefix_cache="radix", enable_prefix_caching=False), 11, 100)
    for name in ("one", "two"):
        request = Request(name, [1, 2, 3], block_hasher=hasher)
        assert manager.get_computed_blocks(request).num_tokens == 0
        manager.allocate_slots(request, 3)
        request.finish(FinishReason.LENGTH)
        manager.free(request)
    assert manager.prefix_cache.num_cached_keys == 0 and manager.num_available == 10


def test_sizes_add_up_and_a_reset_makes_them_nothing():
    tree = make_tree()
    assert tree.total_size == 0
    tree.insert([1, 2, 3], [1, 2, 3])
    assert tree.total_size == 3
    tree.insert([4, 5, 6], [4, 5, 6])
    assert tree.total_size == 6
    tree.lock(tree.match([1, 2, 3]).node)
    tree.reset()
    assert (tree.total_size, tree.evictable_size, tree.protected_size) == (0, 0, 0)
    assert tree.match([1, 2, 3]).num_tokens == 0


def test_three_name_spaces_are_disjoint_and_an_unknown_one_is_empty():
    tree = make_tree()
    spaces = [Namespace("key1", None), Namespace("key2", None), Namespace(None, None)]
    for number, space in enumerate(spaces):
        assert tree.insert([1, 2, 3], [number * 10 + offset for offset in range(3)], space)[0] == 0
    assert [list(tree.match([1, 2, 3], space).slots) for space in spaces] == [[0, 1, 2], [10, 11, 12], [20, 21, 22]]
    assert tree.match([1, 2, 3], Namespace("key3", None)).num_tokens == 0 and tree.total_size == 9


def test_a_lock_moves_three_tokens_and_unlocking_brings_them_back():
    tree = make_tree()
    tree.insert([1, 2, 3], [10, 20, 30])
    node = tree.match([1, 2, 3]).node
    assert tree.lock(node) == -3 and (tree.evictable_size, tree.protected_size) == (0, 3)
    assert tree.lock(node) == 0 and (tree.evictable_size, tree.protected_size) == (0, 3)
    assert tree.unlock(node) == 0 and (tree.evictable_size, tree.protected_size) == (0, 3)
    assert tree.unlock(node) == 3 and (tree.evictable_size, tree.protected_size) == (3, 0)


def test_making_room_gives_at_least_what_is_asked_back_to_the_pool():
    manager, _ = open_kv_cache(EngineConfig(prefix_cache="radix"), 11, 100)
    serve(manager, "short", [1, 2])
    serve(manager, "long", [3, 4, 5])
    assert (manager.pool.num_free, manager.prefix_cache.num_evictable, manager.prefix_cache.tree.total_size) == (5, 5, 5)
    manager.prefix_cache.make_room(3)  # the older leaf is too small, so both go
    assert manager.pool.num_free == 10 and manager.prefix_cache.tree.total_size == 0


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_matches_are_whole_pages_wherever_the_prompts_part(page_size):
    for common in range(13):
        tree = make_tree(page_size)  # a new one each time: a match splits the node it ends in
        tree.insert(range(12), range(12))
        assert tree.match([*range(common), 90, 91, 92, 93]).num_tokens == common // page_size * page_size
        assert tree.total_size == 12


def test_all_slots_are_in_the_nodes_once():
    tree = make_tree()
    tree.insert([1, 2], [10, 20])
    tree.insert([3, 4], [30, 40])
    tree.insert([1, 2, 5], [11, 21, 50])
    tree.match([3])  # splits a node
    assert sorted(slot for node in tree.nodes() for slot in node.slots) == [10, 20, 30, 40, 50]


# Page names


def test_there_is_one_name_a_page_and_each_depends_on_the_one_before():
    names = hash_pages([1, 2, 3, 4, 5, 6, 7, 8], 4)
    assert len(names) == 2 and hash_pages([1, 2, 3, 4], 4) == names[:1]
    assert hash_pages([5, 6, 7, 8], 4)[0] != names[1] and hash_pages([5, 6, 7, 8], 4, seed=names[0])[0] == names[1]


def test_equal_pages_at_different_positions_have_different_names():
    assert len(set(hash_pages([1, 2] * 5, 2))) == 5 and len(set(hash_pages([7] * 12, 4))) == 3


def test_a_split_node_keeps_the_names_of_its_pages_in_two_parts():
    manager, _ = open_kv_cache(EngineConfig(prefix_cache="radix", page_size=2, enable_kv_cache_events=True), 6, 100)
    serve(manager, "whole", [1, 2, 3, 4, 5, 6, 7, 8])
    serve(manager, "branch", [1, 2, 3, 4, 9])  # splits after two pages
    serve(manager, "other", [20] * 10)  # takes all five pages
    names = tuple(event_page_hash(name) for name in hash_pages([1, 2, 3, 4, 5, 6, 7, 8], 2))
    stored, *removed = manager.take_kv_events()[:3]
    assert stored.block_hashes == names
    assert [event.block_hashes for event in removed] == [names[2:], names[:2]]  # the leaf first


def test_evicted_pages_are_told_by_the_names_they_were_stored_under():
    manager, _ = open_kv_cache(EngineConfig(prefix_cache="radix", page_size=2, enable_kv_cache_events=True), 6, 100)
    serve(manager, "one", [1, 2, 3, 4, 5, 6])
    manager.allocate_slots(Request("two", [9] * 10), 10)
    events = manager.take_kv_events()
    stored = [name for event in events if isinstance(event, BlockStored) for name in event.block_hashes]
    removed = [name for event in events if isinstance(event, BlockRemoved) for name in event.block_hashes]
    assert len(stored) == 3 and sorted(stored) == sorted(removed)
