"""The pool's order of eviction, reference counts, and what it refuses."""

from __future__ import annotations

import pytest

from engine.kvcache.block_pool import BlockPool, FreeBlockQueue


def test_the_null_block_is_never_handed_out():
    pool = BlockPool(5)
    assert pool.take(4) == [1, 2, 3, 4]
    assert pool.num_free == 0 and pool.num_usable == 4


def split(table, content):
    """A table's blocks without and with content, each tail first."""
    order = list(reversed(table))
    return [block for block in order if block not in content], [block for block in order if block in content]


def test_blocks_without_content_go_to_the_front_and_those_with_content_to_the_back():
    # vLLM's test_prefill: two requests share blocks 1-3 and have partial tails 4 and 5.
    pool = BlockPool(11)
    first = pool.take(4)
    pool.touch([1, 2, 3])
    second = [1, 2, 3, *pool.take(1)]
    content = {1, 2, 3}
    pool.free(*split(first, content))
    pool.free(*split(second, content))
    assert pool.free_queue.all_ids() == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]


def test_a_shared_block_stays_in_use_until_its_last_user_is_gone():
    pool = BlockPool(4)
    blocks = pool.take(1)
    pool.touch(blocks)
    pool.free(blocks)
    assert pool.num_free == 2
    pool.free(blocks)
    assert pool.num_free == 3


def test_touching_a_free_block_takes_it_out_of_the_queue():
    pool = BlockPool(4)
    pool.touch([2])
    assert pool.free_queue.all_ids() == [1, 3]
    assert pool.take(2) == [1, 3]


def test_taking_more_than_is_free_changes_nothing():
    pool = BlockPool(4)
    with pytest.raises(ValueError, match="Cannot get 4 free blocks from the pool"):
        pool.take(4)
    assert pool.free_queue.all_ids() == [1, 2, 3]


def test_freeing_a_block_twice_is_caught():
    pool = BlockPool(4)
    blocks = pool.take(1)
    pool.free(blocks)
    with pytest.raises(AssertionError):
        pool.free(blocks)


def test_the_queue_keeps_the_order_of_what_is_put_in_front():
    queue = FreeBlockQueue([1, 2])
    queue.prepend_n([3, 4])
    queue.prepend_n([5])
    queue.append_n([6, 7])
    assert queue.all_ids() == [5, 3, 4, 1, 2, 6, 7]
    queue.remove(4)
    assert queue.popleft_n(3) == [5, 3, 1] and queue.popleft() == 2 and len(queue) == 2


def test_an_empty_queue_says_so():
    queue = FreeBlockQueue([1])
    queue.popleft()
    with pytest.raises(ValueError, match="No free blocks available"):
        queue.popleft()
    with pytest.raises(RuntimeError):
        queue.remove(1)
