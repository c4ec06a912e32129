"""The token tree on its own: matches, splits, name spaces, locks, eviction. Recorded scenarios are in tests/oracle."""

from __future__ import annotations

import itertools

import pytest

from engine.kvcache.cache_identity import Namespace
from engine.kvcache.radix_tree import EVICTION_POLICIES, RadixTree


def make_tree(page_size: int = 1, policy: str = "lru") -> RadixTree:
    return RadixTree(page_size, policy, clock=itertools.count().__next__)


def test_an_insert_is_found_and_a_part_of_it_too():
    tree = make_tree()
    assert tree.insert([1, 2, 3], [10, 11, 12])[0] == 0
    assert list(tree.match([1, 2, 3, 4]).slots) == [10, 11, 12]
    assert list(tree.match([1, 2, 9]).slots) == [10, 11]


def test_splits_keep_the_total_and_every_branch():
    tree = make_tree()
    for tokens in ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 5, 6]):
        tree.insert(tokens, range(len(tokens)))
    assert tree.total_size == 10
    lengths = [tree.match(tokens).num_tokens for tokens in ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6], [1, 2, 5, 6, 9])]
    assert lengths == [4, 8, 6, 4] and tree.total_size == 10


@pytest.mark.parametrize(("page_size", "length", "found"), [(1, 7, 7), (2, 7, 6), (4, 7, 4), (8, 7, 0)])
def test_only_whole_pages_are_stored_and_matched(page_size, length, found):
    tree = make_tree(page_size)
    tree.insert(range(length), range(length))
    assert tree.total_size == found and tree.match(range(length)).num_tokens == found


def test_a_page_that_differs_in_its_last_token_is_not_shared():
    tree = make_tree(4)
    tree.insert([1, 2, 3, 4, 5, 6, 7, 8], range(8))
    assert tree.match([1, 2, 3, 4, 5, 6, 7, 9]).num_tokens == 4
    assert tree.match([1, 2, 3, 9]).num_tokens == 0


def test_name_spaces_share_nothing():
    tree = make_tree()
    spaces = [Namespace(None, None), Namespace("a", None), Namespace(None, "a"), Namespace("a", "a")]
    for number, space in enumerate(spaces):
        assert tree.insert([1, 2], [number * 10, number * 10 + 1], space)[0] == 0
    assert [tree.match([1, 2], space).slots[0] for space in spaces] == [0, 10, 20, 30]
    assert tree.match([1, 2], Namespace("b", None)).num_tokens == 0


def test_a_locked_path_is_not_evicted_and_an_unlocked_one_is_by_whole_leaves():
    tree = make_tree()
    tree.insert([1, 2, 3, 4], range(4))
    tree.insert([5, 6, 7], range(4, 7))
    locked = tree.match([1, 2, 3, 4]).node
    assert tree.lock(locked) == -4 and (tree.evictable_size, tree.protected_size) == (3, 4)
    eviction = tree.evict(5)
    assert eviction.num_tokens == 3 and [list(node.tokens) for node in eviction.nodes] == [[5, 6, 7]]
    assert tree.unlock(locked) == 4
    assert tree.evict(1).num_tokens == 4 and tree.total_size == 0


def test_the_least_recently_used_leaf_dies_first():
    tree = make_tree()
    for start in (0, 10, 20):
        tree.insert([start, start + 1], [start, start + 1])
    tree.match([0, 1])
    assert [node.tokens[0] for node in tree.evict(4).nodes] == [10, 20]


def test_an_unknown_policy_is_named_with_the_accepted_ones():
    with pytest.raises(ValueError, match="'random'; accepted: lru, lfu"):
        make_tree(policy="random")
    assert "slru" in EVICTION_POLICIES
