"""The seed's worked example, and rules of the manager that the recorded scenarios cannot name."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.kvcache.cache_identity import LoRA, MultimodalItem
from engine.kvcache.open_kv_cache import open_kv_cache
from engine.request import FinishReason, Request, RequestStatus, SamplingParams

CACHES = [
    EngineConfig(),
    EngineConfig(prefix_cache="radix", page_size=1),
    EngineConfig(prefix_cache="radix", page_size=16),
]


class Serving:
    """Serves one request at a time with no model: lookup, allocate, publish, free."""

    def __init__(self, config: EngineConfig, num_tokens: int = 16_384) -> None:
        self.config = config
        self.manager, self.hasher = open_kv_cache(config, num_tokens // config.unit_size + 1, 100_000)
        self.count = 0

    def request(self, token_ids, **fields) -> Request:
        self.count += 1
        return Request(f"r{self.count}", token_ids, block_hasher=self.hasher, **fields)

    def start(self, request: Request) -> int:
        match = self.manager.get_computed_blocks(request)
        assert self.manager.allocate_slots(request, request.num_tokens - match.num_tokens, match) is not None
        self.manager.record_lookup(request, match.num_tokens)
        request.status, request.num_computed_tokens = RequestStatus.RUNNING, request.num_tokens
        self.manager.publish_computed(request)
        return match.num_tokens

    def end(self, request: Request) -> None:
        request.finish(FinishReason.LENGTH)
        self.manager.free(request)

    def serve(self, token_ids, **fields) -> int:
        request = self.request(token_ids, **fields)
        hits = self.start(request)
        self.end(request)
        return hits


def test_the_worked_example_of_two_requests_and_a_duplicate():
    serving = Serving(EngineConfig())
    system = list(range(2000))
    first = serving.request([*system, *range(10_000, 10_200)])
    assert len(first.block_hashes) == 137 and first.num_tokens - 137 * 16 == 8
    assert serving.start(first) == 0
    second = serving.request([*system, *range(20_000, 20_200)])
    assert second.block_hashes[:125] == first.block_hashes[:125] and second.block_hashes[125] != first.block_hashes[125]
    match = serving.manager.get_computed_blocks(second)
    assert (len(match.block_ids), match.num_tokens) == (125, 2000)
    assert serving.start(second) == 2000
    shared = serving.manager.block_table(second)[:125]
    assert [serving.manager.pool.ref_counts[block] for block in shared] == [2] * 125
    assert serving.serve([*system, *range(10_000, 10_200)]) == 2192


@pytest.mark.parametrize(("length", "hits"), [(1999, 1984), (2000, 1984), (2001, 2000), (2200, 2192), (16, 0), (17, 16)])
def test_a_repeat_loses_the_block_of_its_last_token(length, hits):
    serving = Serving(EngineConfig())
    serving.serve(range(length))
    assert serving.serve(range(length)) == hits


@pytest.mark.parametrize(("page_size", "length", "hits"), [(1, 200, 199), (1, 1, 0), (1, 2, 1), (16, 200, 192), (16, 32, 16), (16, 33, 32)])
def test_a_repeat_in_the_radix_cache_loses_one_page(page_size, length, hits):
    serving = Serving(EngineConfig(prefix_cache="radix", page_size=page_size))
    serving.serve(range(length))
    assert serving.serve(range(length)) == hits


@pytest.mark.parametrize("config", CACHES, ids=lambda config: f"{config.prefix_cache}-{config.unit_size}")
def test_identities_share_with_themselves_and_with_nobody_else(config):
    serving = Serving(config)
    prompt = list(range(100))
    identities = [
        {},
        {"cache_salt": "one"},
        {"cache_salt": "two"},
        {"lora": LoRA("adapter", "/v1")},
        {"lora": LoRA("adapter", "/v2")},
        {"lora": LoRA("one", "/v1")},
        {"mm_items": [MultimodalItem("cat", 0, 8)]},
        {"mm_items": [MultimodalItem("dog", 0, 8)]},
        {"prompt_embeds": [b"x"] * 100},
    ]
    assert [serving.serve(prompt, **identity) for identity in identities] == [0] * len(identities)
    repeat = 96 if config.unit_size == 16 else 99
    assert [serving.serve(prompt, **identity) for identity in identities] == [repeat] * len(identities)


@pytest.mark.parametrize("config", CACHES, ids=lambda config: f"{config.prefix_cache}-{config.unit_size}")
def test_a_prompt_logprobs_request_skips_the_read_and_still_writes(config):
    serving = Serving(config)
    assert serving.serve(range(100), sampling_params=SamplingParams(prompt_logprobs=0)) == 0
    assert serving.serve(range(100), sampling_params=SamplingParams(prompt_logprobs=0)) == 0
    assert serving.manager.stats.queries == 0
    assert serving.serve(range(100)) >= 96
    assert serving.manager.stats.queries == 100


@pytest.mark.parametrize("config", CACHES, ids=lambda config: f"{config.prefix_cache}-{config.unit_size}")
def test_a_reset_is_refused_while_blocks_are_in_use(config):
    serving = Serving(config)
    request = serving.request(range(100))
    serving.start(request)
    assert serving.manager.reset_prefix_cache() is False
    serving.end(request)
    assert serving.serve(range(100)) >= 96
    assert serving.manager.reset_prefix_cache() is True
    assert serving.manager.prefix_cache.num_cached_keys == 0
    assert serving.manager.pool.num_free == serving.manager.pool.num_usable
    assert serving.serve(range(100)) == 0


def test_the_hash_cache_shares_within_a_step_and_the_radix_cache_after_it():
    hits = {}
    for config in CACHES[:2]:
        serving = Serving(config)
        twins = [serving.request(range(100)) for _ in range(2)]
        found = []
        for twin in twins:  # both are scheduled before either is computed
            match = serving.manager.get_computed_blocks(twin)
            serving.manager.allocate_slots(twin, twin.num_tokens - match.num_tokens, match)
            found.append(match.num_tokens)
        hits[config.prefix_cache] = found
    assert hits == {"hash": [0, 96], "radix": [0, 0]}


def test_a_radix_twin_switches_to_the_pages_the_tree_has_already():
    serving = Serving(EngineConfig(prefix_cache="radix", page_size=16))
    twins = [serving.request(range(100)) for _ in range(2)]
    for twin in twins:
        serving.manager.allocate_slots(twin, 100)
        twin.status = RequestStatus.RUNNING
    for twin in twins:
        twin.num_computed_tokens = 100
        serving.manager.publish_computed(twin)
    first, second = (list(serving.manager.block_table(twin)) for twin in twins)
    assert first[:6] == second[:6] and first[6] != second[6]
    assert serving.manager.pool.num_usable - serving.manager.pool.num_free == 8
    for twin in twins:
        serving.end(twin)
    assert serving.manager.num_available == serving.manager.pool.num_usable


def test_the_radix_cache_gives_whole_leaves_back_when_room_is_needed():
    serving = Serving(EngineConfig(prefix_cache="radix", page_size=1), num_tokens=300)
    serving.serve(range(200))
    assert serving.serve([*range(1000, 1200)]) == 0  # evicts the whole first prompt: one leaf
    assert serving.serve(range(200)) == 0
    hashed = Serving(EngineConfig(), num_tokens=320)
    hashed.serve(range(200))
    hashed.serve([*range(1000, 1200)])  # takes the tail first
    assert hashed.serve(range(200)) > 0


def test_a_held_match_is_not_evicted_to_make_room_for_its_own_request():
    serving = Serving(EngineConfig(prefix_cache="radix", page_size=1), num_tokens=300)
    serving.serve(range(150))
    serving.serve(range(1000, 1100))
    request = serving.request([*range(150), *range(5000, 5120)])
    assert serving.start(request) == 150
    assert len(set(serving.manager.block_table(request))) == 270


def test_freed_heads_outlive_freed_tails():
    serving = Serving(EngineConfig(), num_tokens=1600)
    prompts = [range(0, 801), range(5000, 5801)]
    for prompt in prompts:
        serving.serve(prompt)
    # Two prompts of 51 blocks in 100: the second took the tail of the first, never its head.
    assert serving.serve(prompts[0]) > 700


@pytest.mark.parametrize(("config", "expected"), [(EngineConfig(), 48), (CACHES[1], 100), (CACHES[2], 96)])
def test_what_was_given_up_to_make_room_is_counted_once_and_a_reset_is_not(config, expected):
    serving = Serving(config, num_tokens=160)
    for first in (1, 2):
        request = serving.request(range(first * 1_000, first * 1_000 + 100))
        serving.start(request)
        serving.end(request)
    # Seven blocks of ten are wanted and four hold nothing: the hash cache loses three, the tree a whole leaf.
    assert serving.manager.take_evicted_tokens() == expected
    assert serving.manager.take_evicted_tokens() == 0
    assert serving.manager.reset_prefix_cache()
    assert serving.manager.take_evicted_tokens() == 0
