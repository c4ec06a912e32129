"""Free queue, blocks and the map from names, with the numbers of vLLM's own unit tests: items 20 to 29 of tests/CONFORMANCE.md."""

from __future__ import annotations

import pytest

from engine.kvcache.block_hash import BlockHasher
from engine.kvcache.block_pool import BlockPool, FreeBlockQueue
from engine.kvcache.prefix_cache import HashPrefixCache
from engine.request import Request

HASHER = BlockHasher("sha256", 4, "0")


def cache_with(*tables, token_ids=range(8)):
    """A cache in which every table of two blocks holds the same tokens, published in this order."""
    cache = HashPrefixCache(BlockPool(11), 4)
    request = Request("r", token_ids, block_hasher=HASHER)
    for table in tables:
        cache.publish(request, table, 0, len(table))
    return cache, request.block_hashes


# Blocks


def test_a_new_block_has_no_user_and_no_name_and_is_named_once():
    pool = BlockPool(11)
    cache = HashPrefixCache(pool, 4)
    assert pool.ref_counts == [0] * 11 and cache.name_of_block == {}
    request = Request("r", range(8), block_hasher=HASHER)
    cache.publish(request, [1, 2], 0, 1)
    assert cache.name_of_block == {1: request.block_hashes[0]}
    with pytest.raises(AssertionError, match="a block is named once"):
        cache.publish(request, [1, 2], 0, 1)
    cache.forget([1])
    assert cache.name_of_block == {} and cache.num_cached_keys == 0


# The free queue


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_queue_starts_with_what_it_is_given(length):
    queue = FreeBlockQueue(range(length))
    assert len(queue) == length and queue.all_ids() == list(range(length))


def test_a_queue_pops_in_front_removes_in_the_middle_and_appends_behind():
    queue = FreeBlockQueue(range(5))
    assert queue.popleft() == 0 and len(queue) == 4 and 0 not in queue
    queue.remove(2)
    assert queue.all_ids() == [1, 3, 4]
    queue.append(0)
    assert queue.all_ids() == [1, 3, 4, 0]
    assert [queue.popleft() for _ in range(4)] == [1, 3, 4, 0] and len(queue) == 0
    with pytest.raises(ValueError, match="^No free blocks available$"):
        queue.popleft()


def test_blocks_appended_together_stand_behind_in_their_order():
    queue = FreeBlockQueue()
    for block_ids, expected in (([], []), ([0], [0]), ([4, 5], [0, 4, 5]), ([1, 2, 3], [0, 4, 5, 1, 2, 3])):
        queue.append_n(block_ids)
        assert queue.all_ids() == expected and len(queue) == len(expected)


def test_blocks_prepended_together_keep_their_order_and_go_before_earlier_ones():
    queue = FreeBlockQueue([9])
    for block_ids, expected in (([], [9]), ([0], [0, 9]), ([4, 5], [4, 5, 0, 9]), ([1, 2, 3], [1, 2, 3, 4, 5, 0, 9])):
        queue.prepend_n(block_ids)
        assert queue.all_ids() == expected and len(queue) == len(expected)


def test_several_blocks_are_popped_in_order_and_more_than_there_are_not_at_all():
    queue = FreeBlockQueue([1, 3, 5, 4, 0, 2])
    assert queue.popleft_n(0) == [] and len(queue) == 6
    assert queue.popleft_n(1) == [1] and queue.popleft_n(2) == [3, 5]
    with pytest.raises(ValueError):
        queue.popleft_n(4)
    assert queue.popleft_n(3) == [4, 0, 2] and queue.all_ids() == []


def test_a_drained_queue_is_filled_again():
    queue = FreeBlockQueue(range(4))
    assert queue.popleft_n(4) == [0, 1, 2, 3] and len(queue) == 0
    queue.append_n([3, 1])
    queue.prepend_n([2])
    assert queue.all_ids() == [2, 3, 1] and queue.popleft_n(3) == [2, 3, 1]


def test_all_free_blocks_are_told_front_first_after_every_change():
    queue = FreeBlockQueue(range(5))
    assert queue.all_ids() == [0, 1, 2, 3, 4]
    queue.popleft()
    assert queue.all_ids() == [1, 2, 3, 4]
    queue.remove(3)
    assert queue.all_ids() == [1, 2, 4]
    queue.append(0)
    assert queue.all_ids() == [1, 2, 4, 0]


# From a name to its blocks


def test_forgetting_another_block_leaves_a_names_only_block():
    cache, names = cache_with([1, 2])
    assert [cache.find(name) for name in names] == [1, 2] and cache.find(b"unknown") is None
    cache.forget([3])
    assert [cache.find(name) for name in names] == [1, 2]
    cache.forget([1])
    assert [cache.find(name) for name in names] == [None, 2] and cache.num_cached_keys == 1


def test_of_several_blocks_with_one_name_the_first_is_served_and_then_the_next():
    cache, names = cache_with([10, 2], [4, 3], [7, 5])
    assert cache.num_cached_keys == 2
    served = []
    for lost in (10, 4, 7):
        served.append(cache.find(names[0]))
        cache.forget([lost])
    assert served == [10, 4, 7] and cache.find(names[0]) is None and cache.num_cached_keys == 1


@pytest.mark.parametrize("lost, kept", [(1, 3), (3, 1)])
def test_evicting_one_of_two_duplicates_leaves_the_other(lost, kept):
    cache, names = cache_with([1, 2], [3, 4])
    cache.forget([lost])
    assert cache.find(names[0]) == kept and cache.num_cached_keys == 2
    assert set(cache.name_of_block) == {1, 2, 3, 4} - {lost}
    cache.forget([kept])
    assert cache.find(names[0]) is None and cache.find(names[1]) == 2
