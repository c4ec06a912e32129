"""The cost of naming blocks: seconds to hash a chain of full blocks, per algorithm, and where they go.

The chain is what a long prompt makes: every block's name goes into the next one's, so the work cannot be spread over
cores. Three times are taken, all from token ids in a Python list:

    whole prompt      all blocks named by one call, as when a request arrives
    one block a call  each block named by a call of its own, as a decoding request's are, from a list of its tokens
    digest alone      the same bytes, serialised beforehand, through hashlib or xxhash: what would be left if serialising cost nothing

What the whole prompt takes above the digest alone is serialisation, and the loop around it.

Protocol and defaults: vLLM 0.32.0, benchmarks/benchmark_prefix_block_hash.py (10,000 blocks of 32 tokens drawn by
`random.Random(seed)`, five trials, throughput from the best of them).
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain
from math import log
from typing import Mapping, Sequence

from engine.config import HASH_ALGORITHMS
from engine.errors import ConfigError
from engine.kvcache.block_hash import BlockHash, BlockHasher, resolve_none_hash_seed
from engine.kvcache.cache_identity import CacheIdentity
from labs.measure import Spread

_LARGEST = {"num_blocks": 1_000_000, "block_size": 65_536, "vocab_size": 2**31 - 1, "seed": 2**63 - 1, "trials": 1_000}
_MOST_TOKENS = 20_000_000  # in one chain: more would not fit into an ordinary machine's memory as Python lists
_SAMPLE_BLOCKS = 1_000  # in one sample at least: a millisecond or so
_PLAIN = CacheIdentity()

GROWTH_TOKENS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)


@dataclass(frozen=True)
class Config:
    """What is hashed, and how often. Raises ConfigError outside the accepted ranges."""

    num_blocks: int = 10_000
    block_size: int = 32  # tokens
    vocab_size: int = 32_000  # token ids are drawn from 0 up to this
    seed: int = 0
    trials: int = 5
    algorithms: tuple[str, ...] = HASH_ALGORITHMS

    def __post_init__(self) -> None:
        for name, high in _LARGEST.items():
            value, low = getattr(self, name), 0 if name == "seed" else 1
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ConfigError(name, value, f"a whole number from {low} to {high}")
        if self.num_tokens > _MOST_TOKENS:
            most = _MOST_TOKENS // self.block_size
            raise ConfigError("num_blocks", self.num_blocks, f"with blocks of {self.block_size}, a whole number from 1 to {most}")
        if not self.algorithms:
            raise ConfigError("algorithms", self.algorithms, ", ".join(HASH_ALGORITHMS))
        for algorithm in self.algorithms:
            if algorithm not in HASH_ALGORITHMS:
                raise ConfigError("algorithms", algorithm, ", ".join(HASH_ALGORITHMS))

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size


@dataclass(frozen=True)
class HashCost:
    """Seconds that one algorithm took for a whole chain, one sample a trial of each kind."""

    algorithm: str
    num_blocks: int
    block_size: int
    whole_s: tuple[float, ...]
    append_s: tuple[float, ...]
    digest_s: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        return Spread.of(self.whole_s)

    @property
    def best_s(self) -> float:
        return min(self.whole_s)

    @property
    def ns_per_block(self) -> float:
        return self.best_s / self.num_blocks * 1e9

    @property
    def ns_per_token(self) -> float:
        return self.ns_per_block / self.block_size

    @property
    def tokens_per_s(self) -> float:
        return self.num_blocks * self.block_size / self.best_s

    @property
    def digest_ns_per_block(self) -> float:
        """What would be left if serialising cost nothing."""
        return min(self.digest_s) / self.num_blocks * 1e9

    @property
    def serialise_ns_per_block(self) -> float:
        """What is left above the digest alone; 0 where its own trials were disturbed more."""
        return max(self.ns_per_block - self.digest_ns_per_block, 0.0)

    @property
    def append_ns_per_block(self) -> float:
        return min(self.append_s) / self.num_blocks * 1e9


class NamedChain:
    """One prompt under one algorithm, named once, and ready to be timed.

    A short chain is timed several times over, so that the clock's own grain does not count.
    """

    def __init__(self, algorithm: str, token_ids: Sequence[int], block_size: int, none_hash_seed: str | None = None) -> None:
        """token_ids: [num_tokens], with at least one full block.

        Raises ConfigError for an unknown algorithm, MissingPackage when the algorithm's package is not installed.
        """
        self.none_hash_seed = resolve_none_hash_seed(algorithm) if none_hash_seed is None else none_hash_seed
        self.hasher = BlockHasher(algorithm, block_size, self.none_hash_seed)
        self.token_ids = list(token_ids)
        self.names: list[BlockHash] = []
        self.hasher.extend(self.names, self.token_ids, _PLAIN)
        assert self.names, "a chain needs a full block"
        size = block_size
        self.num_repeats = -(-_SAMPLE_BLOCKS // len(self.names))  # rounds in one sample
        self._repeats = range(self.num_repeats)
        self._blocks = [self.token_ids[number * size : (number + 1) * size] for number in range(len(self.names))]

    def time_whole(self) -> float:
        """Seconds to name all blocks by one call."""
        begin = time.perf_counter()
        for _ in self._repeats:
            names: list[BlockHash] = []
            self.hasher.extend(names, self.token_ids, _PLAIN)
        elapsed_s = time.perf_counter() - begin
        self._check(names)
        return elapsed_s / len(self._repeats)

    def time_appends(self) -> float:
        """Seconds to name them by one call each."""
        hash_block = self.hasher.hash_block
        begin = time.perf_counter()
        for _ in self._repeats:
            names: list[BlockHash] = []
            parent = self.hasher.none_hash
            for block in self._blocks:
                parent = hash_block(parent, block, None, True)  # Python integers, as a Request's
                names.append(parent)
        elapsed_s = time.perf_counter() - begin
        self._check(names)
        return elapsed_s / len(self._repeats)

    def time_digest(self) -> float:
        """Seconds to digest the serialised blocks."""
        messages = self._messages
        if self.hasher.algorithm.startswith("sha256"):
            begin = time.perf_counter()
            for _ in self._repeats:
                for message in messages:
                    last = sha256(message).digest()
            elapsed_s = time.perf_counter() - begin
        else:
            from xxhash import xxh3_128_digest

            begin = time.perf_counter()
            for _ in self._repeats:
                for message in messages:
                    last = xxh3_128_digest(message)
            elapsed_s = time.perf_counter() - begin
        assert last == self.names[-1], "what was digested is not what was named"
        return elapsed_s / len(self._repeats)

    def cost_of(self, samples: Mapping[str, Sequence[float]]) -> HashCost:
        """The cost by samples of "whole", "append" and "digest"."""
        kinds = (tuple(samples[kind]) for kind in ("whole", "append", "digest"))
        return HashCost(self.hasher.algorithm, len(self.names), self.hasher.block_size, *kinds)

    @cached_property
    def _messages(self) -> list[bytes]:
        parents = chain([self.hasher.none_hash], self.names)
        return [self.hasher.serialise_block(parent, block) for parent, block in zip(parents, self._blocks)]

    def _check(self, names: list[BlockHash]) -> None:
        assert names == self.names, "equal blocks got unequal names"


class HashBench:
    """All chains of one configuration, timed in turns, so that a drifting machine disturbs them alike."""

    def __init__(self, chains: Sequence[NamedChain]) -> None:
        self.chains = tuple(chains)
        self._samples: list[dict[str, list[float]]] = [{"whole": [], "append": [], "digest": []} for _ in chains]
        for chain_ in chains:  # first rounds bring code and data into the caches
            chain_.time_whole(), chain_.time_appends(), chain_.time_digest()

    def run_trial(self) -> None:
        """One sample of each kind, of each chain."""
        for chain_, samples in zip(self.chains, self._samples):
            samples["whole"].append(chain_.time_whole())
            samples["append"].append(chain_.time_appends())
            samples["digest"].append(chain_.time_digest())

    @property
    def costs(self) -> list[HashCost]:
        """What was measured so far; needs one trial at least."""
        return [chain_.cost_of(samples) for chain_, samples in zip(self.chains, self._samples)]


@dataclass(frozen=True)
class HashGrowth:
    """Seconds to name whole prompts of rising length, and the straight line through their medians."""

    algorithm: str
    block_size: int
    num_tokens: tuple[int, ...]
    samples_s: tuple[tuple[float, ...], ...]  # one tuple a length

    @property
    def medians_s(self) -> list[float]:
        return [statistics.median(samples) for samples in self.samples_s]

    @property
    def ns_per_token(self) -> float:
        """The line's slope."""
        return statistics.linear_regression(self.num_tokens, self.medians_s).slope * 1e9

    @property
    def r_squared(self) -> float:
        """The share of the differences between lengths that the line explains."""
        if len(set(self.medians_s)) == 1:
            return 1.0  # no differences at all
        return statistics.correlation(self.num_tokens, self.medians_s) ** 2

    @property
    def exponent(self) -> float:
        """The e of time ~ L^e: 1 is linear, 2 quadratic. From 10,000 tokens on, if two lengths are: a call's price bends it."""
        points = list(zip(self.num_tokens, self.medians_s))
        long = [point for point in points if point[0] >= 10_000]
        return _log_slope(long if len(long) > 1 else points)


def _log_slope(points: Sequence[tuple[float, float]]) -> float:
    return statistics.linear_regression([log(x) for x, _ in points], [log(max(y, 1e-9)) for _, y in points]).slope


def growth_lengths(block_size: int, lengths: Sequence[int] = GROWTH_TOKENS) -> tuple[int, ...]:
    """The lengths of which a block of this size is full; none when too few are left for a line."""
    full = tuple(length for length in lengths if length >= block_size)
    return full if len(full) >= 3 else ()


def measure_growth(algorithm: str, config: Config, lengths: Sequence[int]) -> HashGrowth:
    """Time whole prompts of `lengths` tokens, each at least a block, cut from one list, `config.trials` times in turns.

    Raises MissingPackage when the algorithm's package is not installed.
    """
    token_ids = make_token_ids(replace(config, num_blocks=-(-max(lengths) // config.block_size)))
    chains = [NamedChain(algorithm, token_ids[:length], config.block_size) for length in lengths]
    samples: list[list[float]] = [[] for _ in chains]
    for trial in range(config.trials + 1):
        for chain_, times in zip(chains, samples):
            elapsed_s = chain_.time_whole()
            if trial:
                times.append(elapsed_s)
    return HashGrowth(algorithm, config.block_size, tuple(lengths), tuple(map(tuple, samples)))


def make_token_ids(config: Config) -> list[int]:
    """[num_blocks * block_size] token ids, the same for the same seed; vLLM's script draws the same."""
    draw = random.Random(config.seed).randrange
    return [draw(config.vocab_size) for _ in range(config.num_tokens)]
