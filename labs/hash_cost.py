"""The cost of naming blocks: seconds to hash a chain of full blocks, per algorithm.

The chain is what a long prompt makes: every block's name goes into the next one's, so the work cannot be spread
over cores, and a change in the first block is a change in all. Timed is the name itself (serialise parent,
tokens and extra keys, then digest), with the token ids ready in Python tuples' order.

Protocol and defaults: vLLM 0.32.0, benchmarks/benchmark_prefix_block_hash.py (10,000 blocks of 32 tokens drawn by
`random.Random(seed)`, five trials, throughput from the best of them).
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from typing import Callable

from engine.config import HASH_ALGORITHMS
from engine.errors import ConfigError
from engine.kvcache.block_hash import BlockHasher, hash_block_tokens
from engine.kvcache.cache_identity import CacheIdentity

_LARGEST = {"num_blocks": 1_000_000, "block_size": 65_536, "vocab_size": 2**31 - 1, "seed": 2**63 - 1, "trials": 1_000}


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
    """Seconds one algorithm took for the whole chain, one sample a trial."""

    algorithm: str
    config: Config
    samples_s: tuple[float, ...]
    last_digest: str  # hexadecimal name of the last block, which stands for the whole chain

    @property
    def best_s(self) -> float:
        return min(self.samples_s)

    @property
    def median_s(self) -> float:
        return statistics.median(self.samples_s)

    @property
    def spread(self) -> float:
        """(worst - best) / median: how much the machine disturbed the trials."""
        return (max(self.samples_s) - self.best_s) / self.median_s

    @property
    def ns_per_block(self) -> float:
        return self.best_s / self.config.num_blocks * 1e9

    @property
    def ns_per_token(self) -> float:
        return self.best_s / self.config.num_tokens * 1e9

    @property
    def tokens_per_s(self) -> float:
        return self.config.num_tokens / self.best_s


def make_blocks(config: Config) -> list[list[int]]:
    """[num_blocks][block_size] token ids, the same for the same seed."""
    draw = random.Random(config.seed).randrange
    return [[draw(config.vocab_size) for _ in range(config.block_size)] for _ in range(config.num_blocks)]


def measure_hash_cost(
    algorithm: str,
    blocks: list[list[int]],
    config: Config,
    *,
    on_trial: Callable[[], None] | None = None,
) -> HashCost:
    """Hash the chain `config.trials` times after one unmeasured round.

    blocks  from `make_blocks(config)`
    Raises MissingPackage when the algorithm's package is not installed.
    """
    hasher = BlockHasher(algorithm, config.block_size)
    samples = []
    digests: set[bytes] = set()
    for trial in range(config.trials + 1):
        begin = time.perf_counter()
        parent = hasher.none_hash
        for block in blocks:
            parent = hash_block_tokens(hasher.hash_function, parent, block)
        elapsed_s = time.perf_counter() - begin
        digests.add(bytes(parent))
        if trial > 0:  # the first round also imports the package and warms the processor
            samples.append(elapsed_s)
        if on_trial is not None:
            on_trial()
    assert len(digests) == 1, "equal blocks got unequal names"
    _check_against_the_engine(hasher, blocks, digests.pop())
    return HashCost(algorithm, config, tuple(samples), bytes(parent).hex())


def _check_against_the_engine(hasher: BlockHasher, blocks: list[list[int]], last_digest: bytes) -> None:
    """What was timed is what the engine computes for a prompt: as many names, and the same last one."""
    names: list = []
    hasher.extend(names, [token_id for block in blocks for token_id in block], CacheIdentity())
    assert len(names) == len(blocks), "a full block got no name"
    assert bytes(names[-1]) == last_digest, "the timed chain differs from the engine's"
