"""The manager, with the numbers of vLLM's own unit tests: items 30 to 51 of tests/CONFORMANCE.md."""

from __future__ import annotations

import pytest

from engine.config import HASH_ALGORITHMS, EngineConfig
from engine.kvcache.cache_identity import MultimodalItem
from engine.kvcache.kv_events import BlockRemoved, BlockStored
from engine.kvcache.open_kv_cache import open_kv_cache
from engine.request import FinishReason, Request, RequestStatus, SamplingParams

COMMON = [block for block in range(3) for _ in range(16)]  # three full blocks


class Serving:
    """A manager over a small pool; requests are admitted, extended and ended by hand."""

    def __init__(self, num_blocks: int = 11, **fields) -> None:
        self.manager, self.hasher = open_kv_cache(EngineConfig(**fields), num_blocks, 8_192)
        self.pool, self.cache = self.manager.pool, self.manager.prefix_cache
        self.count = 0

    @property
    def queue(self) -> list[int]:
        return self.pool.free_queue.all_ids()

    def request(self, token_ids, **fields) -> Request:
        self.count += 1
        return Request(f"r{self.count}", token_ids, block_hasher=self.hasher, **fields)

    def admit(self, request: Request, num_tokens: int | None = None) -> tuple[list[int], list[int] | None]:
        """(blocks found, new blocks or None) of a newcomer whose tokens, or the next `num_tokens`, are computed."""
        match = self.manager.get_computed_blocks(request)
        num_new = request.num_tokens - match.num_tokens if num_tokens is None else num_tokens
        new = self.manager.allocate_slots(request, num_new, match)
        if new is not None:
            request.status, request.num_computed_tokens = RequestStatus.RUNNING, match.num_tokens + num_new
        return list(match.block_ids), new

    def extend(self, request: Request, token_ids) -> list[int] | None:
        """New blocks of a running request that got these tokens and computes them."""
        request.append_output_token_ids(token_ids)
        new = self.manager.allocate_slots(request, request.num_uncomputed_tokens)
        request.num_computed_tokens = request.num_tokens
        return new

    def end(self, request: Request) -> None:
        request.finish(FinishReason.LENGTH)
        self.manager.free(request)

    def refs(self, *block_ids: int) -> list[int]:
        return [self.pool.ref_counts[block_id] for block_id in block_ids]


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
def test_three_prompts_with_a_common_head_share_it_and_are_evicted_in_the_order_of_the_queue(algorithm):
    serving = Serving(prefix_caching_hash_algo=algorithm)
    first = serving.request(COMMON + [3] * 7)
    assert serving.admit(first) == ([], [1, 2, 3, 4])
    assert [serving.cache.name_of_block.get(block) for block in (1, 2, 3, 4)] == [*first.block_hashes, None]
    second = serving.request(COMMON + [3] * 5)
    assert serving.admit(second) == ([1, 2, 3], [5])
    assert serving.refs(1, 2, 3) == [2, 2, 2]
    serving.end(first)
    assert serving.refs(1, 2, 3) == [1, 1, 1]
    serving.end(second)
    assert serving.queue == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    third = serving.request(COMMON + [3] * 6)
    assert serving.admit(third) == ([1, 2, 3], [5]) and serving.pool.num_free == 6
    serving.end(third)
    assert serving.queue == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    assert serving.admit(serving.request([99] * 160)) == ([], [5, 4, 6, 7, 8, 9, 10, 3, 2, 1])
    assert serving.pool.num_free == 0 and serving.cache.find(first.block_hashes[0]) is None


def test_a_prompt_logprobs_request_finds_nothing_and_leaves_duplicates_with_equal_names():
    serving = Serving()
    wants = SamplingParams(prompt_logprobs=5)
    first = serving.request(COMMON + [3] * 7, sampling_params=wants)
    assert serving.admit(first) == ([], [1, 2, 3, 4])
    reader = serving.request(COMMON + [3] * 5)
    assert serving.admit(reader) == ([1, 2, 3], [5])
    serving.end(first)
    serving.end(reader)
    third = serving.request(COMMON + [3] * 6, sampling_params=wants)
    found, new = serving.admit(third)
    assert found == [] and new == [5, 4, 6, 7] and third.block_hashes[:3] == first.block_hashes[:3]
    assert [serving.cache.name_of_block.get(block) for block in new] == [*first.block_hashes[:3], None]
    assert serving.cache.num_cached_keys == 3 and serving.cache.find(first.block_hashes[0]) == 1


def test_decoding_takes_a_block_only_when_the_last_is_full_and_names_that_one_then():
    serving = Serving()
    request = serving.request(COMMON + [3] * 7)
    assert serving.admit(request) == ([], [1, 2, 3, 4])
    assert serving.extend(request, [8] * 4) == [] and 4 not in serving.cache.name_of_block
    assert serving.extend(request, [7] * 19) == [5]
    assert serving.cache.name_of_block[4] == request.block_hashes[3] and 5 not in serving.cache.name_of_block


def test_a_full_pool_keeps_the_order_of_freeing_and_a_hit_leaves_the_queue():
    serving = Serving()
    first = serving.request(range(5 * 16 + 7))
    second = serving.request(range(87, 87 + 48))
    assert serving.admit(first)[1] == [1, 2, 3, 4, 5, 6] and serving.admit(second)[1] == [7, 8, 9]
    serving.end(first)
    serving.end(second)
    assert serving.queue == [6, 10, 5, 4, 3, 2, 1, 9, 8, 7]
    assert serving.admit(serving.request(range(2 * 16 + 3))) == ([1, 2], [6])
    assert serving.pool.num_free == 7 and serving.queue == [10, 5, 4, 3, 9, 8, 7]


def test_a_block_that_is_handed_out_again_loses_its_name():
    serving = Serving(num_blocks=2)
    old = serving.request(range(16))
    assert serving.admit(old) == ([], [1])
    serving.end(old)
    assert serving.cache.find(old.block_hashes[0]) == 1
    assert serving.admit(serving.request(range(100, 115))) == ([], [1])
    assert serving.cache.name_of_block == {} and serving.cache.find(old.block_hashes[0]) is None


def test_a_block_that_was_found_is_not_the_one_that_is_handed_out():
    serving = Serving(num_blocks=3)
    for token_ids, block in ((range(16), 1), (range(16, 32), 2)):
        request = serving.request(token_ids)
        assert serving.admit(request) == ([], [block])
        serving.end(request)
    assert serving.queue == [1, 2]  # the block that will be found is in front
    assert serving.admit(serving.request(range(32))) == ([1], [2])


def test_without_caching_nothing_is_found_and_a_full_pool_refuses():
    serving = Serving(num_blocks=5, block_size=4, enable_prefix_caching=False)
    first = serving.request(range(10))
    assert serving.admit(first) == ([], [1, 2, 3])
    serving.end(first)
    found, new = serving.admit(serving.request(range(16)))
    assert found == [] and len(new) == 4
    assert serving.admit(serving.request(range(4))) == ([], None)


def test_the_map_grows_by_the_blocks_that_became_full():
    serving = Serving(num_blocks=5, block_size=4)
    request = serving.request(range(14))
    serving.admit(request, 8)
    assert serving.cache.num_cached_keys == 2
    assert serving.manager.allocate_slots(request, 6) == [3, 4]
    assert serving.cache.num_cached_keys == 3 and set(serving.cache.name_of_block) == {1, 2, 3}


def test_images_name_blocks_by_their_offset_and_outputs_fill_the_block_of_the_last_one():
    serving = Serving()
    placeholder = -1
    common = [*range(11), *[placeholder] * 10, *range(11, 20), *[placeholder] * 18]
    shared = (MultimodalItem("aaa", 11, 10), MultimodalItem("bbb", 30, 18))
    first = serving.request(common + [placeholder] * 7 + [100] * 4, mm_items=(*shared, MultimodalItem("ccc", 48, 7)))
    assert len(common) == 48 and first.num_tokens == 59
    assert serving.admit(first) == ([], [1, 2, 3, 4])
    keys = [(("mm", "aaa", 11),), (("mm", "aaa", -5), ("mm", "bbb", 14)), (("mm", "bbb", -2),), (("mm", "ccc", 0),)]
    assert serving.extend(first, [8] * 5) == []
    parent, names = serving.hasher.none_hash, []
    for number in range(4):
        parent = serving.hasher.hash_function((parent, tuple(first.all_token_ids[number * 16 : number * 16 + 16]), keys[number]))
        names.append(parent)
    assert first.block_hashes == names and serving.cache.name_of_block == dict(zip([1, 2, 3, 4], names))
    other = serving.request(common + [placeholder] * 7 + [200] * 5, mm_items=(*shared, MultimodalItem("ddd", 48, 7)))
    assert serving.admit(other) == ([1, 2, 3], [5])


def test_a_salt_is_in_the_first_name_only_and_shares_with_its_own_salt_alone():
    serving = Serving(num_blocks=21)
    first = serving.request(COMMON + [3] * 11, cache_salt="salt1")
    assert serving.admit(first) == ([], [1, 2, 3, 4])
    assert serving.extend(first, [8] * 5) == []
    parent, keys = serving.hasher.none_hash, [(("cache_salt", "salt1"),), None, None, None]
    for number, name in enumerate(first.block_hashes):
        parent = serving.hasher.hash_function((parent, tuple(first.all_token_ids[number * 16 : number * 16 + 16]), keys[number]))
        assert name == parent
    assert len(first.block_hashes) == 4
    assert serving.admit(serving.request(COMMON + [4] * 11, cache_salt="salt1"))[0] == [1, 2, 3]
    assert serving.admit(serving.request(COMMON + [4] * 11, cache_salt="salt2"))[0] == []
    assert serving.admit(serving.request(COMMON + [4] * 11))[0] == []


def test_hits_that_are_free_count_as_needed_and_a_refusal_touches_nothing():
    serving = Serving()
    assert serving.admit(serving.request(COMMON)) == ([], [1, 2, 3])
    longer = COMMON + [3] * 16 + [4] * 16
    second = serving.request(longer)
    assert serving.admit(second) == ([1, 2, 3], [4, 5])
    serving.end(second)
    assert serving.admit(serving.request([50] * 80)) == ([], [6, 7, 8, 9, 10])
    assert serving.queue == [5, 4] and serving.refs(1, 2, 3, 4, 5) == [1, 1, 1, 0, 0]
    # Two blocks are free and two are wanted, but the free ones are hits themselves.
    assert serving.admit(serving.request(longer + [5] * 32)) == ([1, 2, 3, 4, 5], None)
    assert serving.queue == [5, 4] and serving.refs(1, 2, 3, 4, 5) == [1, 1, 1, 0, 0]
    assert set(serving.cache.name_of_block) == set(range(1, 11))


@pytest.mark.parametrize("new, lookahead, blocks", [(3, 2, 2), (3, 4, 2), (3, 0, 1), (4, 4, 2), (4, 5, 3), (0, 0, None)])
def test_lookahead_slots_take_blocks_as_tokens_do(new, lookahead, blocks):
    serving = Serving(block_size=4)
    request = serving.request(range(max(new, 1)))
    if blocks is None:
        with pytest.raises(ValueError):
            serving.manager.allocate_slots(request, new, num_lookahead_tokens=lookahead)
        return
    assert len(serving.manager.allocate_slots(request, new, num_lookahead_tokens=lookahead)) == blocks == -(-(new + lookahead) // 4)


def test_a_first_chunk_is_refused_when_the_whole_prompt_can_never_fit():
    serving = Serving()
    request = serving.request(range(11 * 16))
    assert serving.manager.allocate_slots(request, 16, full_sequence_must_fit=True) is None
    assert serving.pool.num_free == 10
    assert serving.manager.allocate_slots(request, 16) == [1]


def test_free_hits_are_counted_once_in_what_a_newcomer_needs():
    serving = Serving(num_blocks=5)
    old = serving.request(COMMON)
    serving.admit(old)
    serving.end(old)
    assert serving.queue == [4, 3, 2, 1]
    # Three hits leave the queue and one block is new: exactly the four that are free.
    assert serving.admit(serving.request(COMMON + [3] * 16)) == ([1, 2, 3], [4])
    assert serving.queue == []


def test_events_name_the_group_of_layers():
    serving = Serving(num_blocks=2, enable_kv_cache_events=True)
    for token_ids in (range(16), range(16, 32)):
        request = serving.request(token_ids)
        serving.admit(request)
        serving.end(request)
    events = serving.manager.take_kv_events()
    assert [type(event) for event in events] == [BlockStored, BlockRemoved, BlockStored]
    assert [event.group_idx for event in events] == [0, 0, 0]
