"""The cache bench: what is counted follows from the laws, what is timed is the whole of it, ratios say how many times as fast."""

from __future__ import annotations

import os

import pytest

from engine.errors import ConfigError
from labs.benches.cache_bench import CacheBench, LookupCost
from labs.benches.cache_cost import CacheRun, Config, bytes_per_block, make_prompts, run_cache, time_lookups
from labs.peers.vllm_cache import VllmCache

SMALL = Config(num_requests=40, prompt_tokens=200, shared_tokens=100, num_system_prompts=4, small_pool_blocks=20, trials=2)


class StubPeer:
    version = "0.stub"

    def load(self, prompts):
        self.prompts = prompts

    def run(self, algorithm, block_size, num_blocks):
        return CacheRun(2.0, run_cache(self.prompts, SMALL, "hash", num_blocks).hits)


def test_prompts_share_what_was_asked_for_and_have_the_lengths_asked_for():
    prompts = make_prompts(SMALL)
    assert prompts == make_prompts(SMALL) != make_prompts(Config(**{**vars(SMALL), "seed": 1}))
    assert len({tuple(prompt[:100]) for prompt in prompts}) == 4
    assert all(180 <= len(prompt) <= 220 for prompt in prompts)
    assert len({tuple(prompt[:101]) for prompt in prompts}) == 40


@pytest.mark.parametrize("prefix_cache", ["hash", "radix"])
def test_in_an_unlimited_pool_all_but_the_first_of_each_system_prompt_hit_its_whole_blocks(prefix_cache):
    run = run_cache(make_prompts(SMALL), SMALL, prefix_cache, SMALL.unlimited_pool_blocks)
    assert run.hits == (40 - 4) * 96 and run.seconds > 0


def test_a_small_pool_finds_less():
    prompts = make_prompts(SMALL)
    assert run_cache(prompts, SMALL, "hash", 20).hits < run_cache(prompts, SMALL, "hash", SMALL.unlimited_pool_blocks).hits


def test_a_bench_takes_every_cache_and_pool_in_each_trial_and_the_peer_beside():
    bench = CacheBench(SMALL, StubPeer())
    labels: list[str] = []
    for _ in range(2):
        bench.run_trial(labels.append)
    assert labels[:6] == list(reversed(labels[6:]))
    assert sorted(labels[:6]) == sorted(f"{name}, {pool}" for name in ("hash", "radix", "vllm") for pool in ("unlimited", "20 blocks"))
    for pool in bench.pools:
        assert bench.cost("hash", pool).hits == bench.cost("vllm", pool).hits
        bench.cost("hash", pool).seconds = [0.5, 0.5]
        assert bench.ratio(pool).value == pytest.approx(4)
    assert bench.cost("hash", "unlimited").tokens_per_s == pytest.approx(sum(map(len, bench.prompts)) / 0.5)
    assert CacheBench(SMALL).ratio("unlimited") is None


def test_memory_counts_blocks_and_not_prompts():
    prompts = make_prompts(SMALL)
    for prefix_cache in ("hash", "radix"):
        assert 50 < bytes_per_block(prompts, SMALL, prefix_cache) < 2_000


def test_lookups_are_timed_at_each_length(monkeypatch):
    monkeypatch.setattr("labs.benches.cache_cost.LOOKUP_TOKENS", (100, 200, 400))
    for prefix_cache in ("hash", "radix"):
        found = time_lookups(SMALL, prefix_cache, 3)
        assert [(length, len(samples)) for length, samples in found] == [(100, 3), (200, 3), (400, 3)]
    cost = LookupCost("hash", ((100, (1e-5, 2e-5)), (200, (2e-5, 9e-5)), (400, (4e-5,))))
    assert cost.exponent == pytest.approx(1) and cost.longest == (400, 4e-5)


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"num_requests": 0}, "num_requests is 0"),
        ({"shared_tokens": 1_800}, "shared_tokens is 1800; accepted: a whole number from 1 to 1799"),
        ({"num_requests": 100_000, "prompt_tokens": 2_000}, "num_requests is 100000; accepted: a whole number from 1 to 10000"),
        ({"small_pool_blocks": 100}, "small_pool_blocks is 100; accepted: a whole number from 139"),
        ({"algorithm": "md5"}, "algorithm is 'md5'; accepted: sha256"),
    ],
)
def test_sizes_that_cannot_be_are_refused_by_name(fields, named):
    with pytest.raises(ConfigError, match=named):
        Config(**fields)


@pytest.mark.skipif("LABCLI_VLLM_PYTHON" not in os.environ, reason="LABCLI_VLLM_PYTHON names no Python with vLLM")
def test_the_real_vllm_finds_as_many_tokens():
    config = Config(num_requests=200, trials=1)
    with VllmCache(os.environ["LABCLI_VLLM_PYTHON"]) as peer:
        bench = CacheBench(config, peer)
        bench.run_trial()
    for pool in bench.pools:
        assert bench.cost("hash", pool).hits == bench.cost("vllm", pool).hits
