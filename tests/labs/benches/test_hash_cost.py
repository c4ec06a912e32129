"""The hash bench's measurements: what is timed is what the engine names, and numbers follow from samples."""

from __future__ import annotations

import random

import pytest

import labs.benches.hash_cost
from engine.config import HASH_ALGORITHMS
from engine.errors import ConfigError, MissingPackage
from engine.kvcache.block_hash import BlockHasher, hash_block_tokens
from labs.benches.hash_cost import (
    Config,
    HashBench,
    HashCost,
    HashGrowth,
    NamedChain,
    growth_lengths,
    make_token_ids,
    measure_growth,
)

SMALL = Config(num_blocks=40, block_size=4, trials=2)


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
def test_the_timed_chain_is_the_definitions(algorithm):
    chain = NamedChain(algorithm, make_token_ids(SMALL), 4, "0")
    parent = chain.hasher.none_hash
    for number, name in enumerate(chain.names):
        parent = hash_block_tokens(chain.hasher.hash_function, parent, chain.token_ids[number * 4 : number * 4 + 4])
        assert name == parent
    assert len(chain.names) == 40


def test_tokens_are_those_of_vllms_script():
    draw = random.Random(7).randrange
    assert make_token_ids(Config(num_blocks=3, block_size=5, seed=7, vocab_size=100)) == [draw(100) for _ in range(15)]


@pytest.mark.parametrize("method", ["time_whole", "time_appends"])
def test_names_that_change_while_they_are_timed_are_found_out(method, monkeypatch):
    chain = NamedChain("sha256", make_token_ids(SMALL), 4, "0")
    original = BlockHasher.hash_block
    monkeypatch.setattr(BlockHasher, "hash_block", lambda self, parent, *rest: original(self, b"p" * 32, *rest))
    with pytest.raises(AssertionError, match="unequal names"):
        getattr(chain, method)()


def test_the_floor_digests_the_bytes_that_were_named():
    chain = NamedChain("sha256", make_token_ids(SMALL), 4, "0")
    assert chain.time_digest() > 0
    chain._messages[-1] += b"\x00"
    with pytest.raises(AssertionError, match="not what was named"):
        chain.time_digest()


def test_a_short_chain_is_timed_many_times_and_a_sample_is_one_round(monkeypatch):
    chain = NamedChain("sha256", make_token_ids(SMALL), 4, "0")
    assert chain.num_repeats == 25  # 1,000 blocks in all
    for method in (chain.time_whole, chain.time_appends, chain.time_digest):
        clock = iter([10.0, 15.0])
        monkeypatch.setattr(labs.benches.hash_cost.time, "perf_counter", lambda: next(clock))
        assert method() == 5.0 / 25


def test_kinds_of_times_are_not_mixed_up(monkeypatch):
    for name, seconds in (("time_whole", 1.0), ("time_appends", 2.0), ("time_digest", 3.0)):
        monkeypatch.setattr(NamedChain, name, lambda self, seconds=seconds: seconds)
    bench = HashBench([NamedChain("sha256", make_token_ids(SMALL), 4)])
    bench.run_trial()
    (cost,) = bench.costs
    assert (cost.whole_s, cost.append_s, cost.digest_s) == ((1.0,), (2.0,), (3.0,))


@pytest.mark.parametrize("block_size, lengths", [(16, 8), (2_048, 6), (50_000, 3), (65_536, 0)])
def test_growth_is_measured_where_a_block_is_full(block_size, lengths):
    assert len(growth_lengths(block_size)) == lengths


def test_each_trial_gives_one_sample_of_each_kind():
    bench = HashBench([NamedChain(algorithm, make_token_ids(SMALL), 4) for algorithm in ("sha256", "xxhash_cbor")])
    for _ in range(3):
        bench.run_trial()
    assert [cost.algorithm for cost in bench.costs] == ["sha256", "xxhash_cbor"]
    assert all(len(samples) == 3 for cost in bench.costs for samples in (cost.whole_s, cost.append_s, cost.digest_s))


def test_a_cost_is_told_from_the_best_of_its_samples():
    cost = HashCost("sha256", 1_000, 16, (0.002, 0.004, 0.003), (0.005, 0.006, 0.005), (0.0005, 0.0006, 0.0005))
    assert (cost.best_s, cost.spread.median) == (0.002, 0.003)
    assert (cost.ns_per_block, cost.ns_per_token) == pytest.approx((2_000, 125))
    assert cost.tokens_per_s == pytest.approx(8e6)
    assert (cost.digest_ns_per_block, cost.serialise_ns_per_block, cost.append_ns_per_block) == pytest.approx((500, 1_500, 5_000))


def test_growth_tells_linear_from_quadratic():
    lengths = (1_000, 10_000, 50_000, 200_000)

    def growth(seconds):
        return HashGrowth("sha256", 16, lengths, tuple((seconds(length),) for length in lengths))

    linear, quadratic = growth(lambda n: n * 5e-8), growth(lambda n: n**2 * 1e-12)
    assert linear.exponent == pytest.approx(1) and linear.r_squared == pytest.approx(1)
    assert linear.ns_per_token == pytest.approx(50)
    assert quadratic.exponent == pytest.approx(2) and quadratic.r_squared < 0.99
    short = HashGrowth("sha256", 16, (100, 200, 400), ((1e-6,), (2e-6,), (4e-6,)))
    assert short.exponent == pytest.approx(1)


def test_growth_is_measured_at_each_length():
    growth = measure_growth("xxhash", Config(block_size=8, trials=2), (80, 160, 320))
    assert growth.num_tokens == (80, 160, 320)
    assert [len(samples) for samples in growth.samples_s] == [2, 2, 2]


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"num_blocks": 0}, "num_blocks"),
        ({"block_size": True}, "block_size"),
        ({"num_blocks": 1_000_000, "block_size": 65_536}, "num_blocks is 1000000; accepted: with blocks of 65536"),
        ({"algorithms": ()}, "algorithms"),
        ({"algorithms": ("md5",)}, "md5"),
    ],
)
def test_sizes_that_cannot_be_are_refused_by_name(fields, named):
    with pytest.raises(ConfigError, match=named):
        Config(**fields)


def test_a_chain_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "xxhash", None)
    with pytest.raises(MissingPackage, match="pip install xxhash"):
        NamedChain("xxhash", make_token_ids(SMALL), 4)
