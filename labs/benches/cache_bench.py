"""CacheBench: both caches' bookkeeping timed in both pools, in turns, and a peer's beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log
from statistics import linear_regression, median
from typing import Callable, Protocol, Sequence

from labs.benches.cache_cost import CacheRun, Config, bytes_per_block, make_prompts, run_cache, time_lookups
from labs.measure import Ratio, Spread, ratio_of_medians

CACHES = ("hash", "radix")


class CachePeer(Protocol):
    """Another engine's cache of blocks named by hashes."""

    version: str

    def load(self, prompts: Sequence[Sequence[int]]) -> None: ...

    def run(self, algorithm: str, block_size: int, num_blocks: int) -> CacheRun: ...


@dataclass
class CacheCost:
    """One cache in one pool."""

    prefix_cache: str  # "hash", "radix", or a peer's name
    pool: str  # "unlimited" or "1,024 blocks"
    num_blocks: int
    num_tokens: int  # of all prompts
    seconds: list[float] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)  # tokens; the same in each trial, or something is wrong

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens dealt with per second, by the median."""
        return self.num_tokens / median(self.seconds)

    @property
    def spread(self) -> Spread:
        return Spread.of(self.seconds)


@dataclass(frozen=True)
class LookupCost:
    """Seconds to look up a stored prompt, by its length."""

    prefix_cache: str
    samples_s: tuple[tuple[int, tuple[float, ...]], ...]  # (tokens, seconds of each trial)

    @property
    def exponent(self) -> float:
        """The e of time ~ L^e: 1 is linear."""
        points = [(log(length), log(max(min(samples), 1e-9))) for length, samples in self.samples_s]
        return linear_regression(*zip(*points)).slope

    @property
    def longest(self) -> tuple[int, float]:
        """Tokens of the longest prompt, and the least seconds it took."""
        length, samples = self.samples_s[-1]
        return length, min(samples)


class CacheBench:
    """All costs of one configuration."""

    def __init__(self, config: Config, peer: CachePeer | None = None) -> None:
        self.config, self.peer = config, peer
        self.prompts = make_prompts(config)
        pools = {"unlimited": config.unlimited_pool_blocks, f"{config.small_pool_blocks:,} blocks": config.small_pool_blocks}
        num_tokens = sum(map(len, self.prompts))
        names = [*CACHES, *(["vllm"] if peer is not None else [])]
        self.costs = [CacheCost(name, pool, size, num_tokens) for pool, size in pools.items() for name in names]
        if peer is not None:
            peer.load(self.prompts)
        self._num_trials = 0

    def run_trial(self, on_run: Callable[[str], None] | None = None) -> None:
        """One pass of each cache in each pool; who goes first changes from trial to trial."""
        for cost in self.costs if self._num_trials % 2 == 0 else reversed(self.costs):
            run = self._run(cost)
            cost.seconds.append(run.seconds)
            cost.hits.append(run.hits)
            if on_run is not None:
                on_run(f"{cost.prefix_cache}, {cost.pool}")
        self._num_trials += 1

    def _run(self, cost: CacheCost) -> CacheRun:
        if cost.prefix_cache == "vllm":
            assert self.peer is not None
            return self.peer.run(self.config.algorithm, self.config.block_size, cost.num_blocks)
        return run_cache(self.prompts, self.config, cost.prefix_cache, cost.num_blocks)

    def ratio(self, pool: str) -> Ratio | None:
        """How many times as fast our hash cache is as the peer in a pool; None without a peer."""
        ours, theirs = self.cost("hash", pool), self.cost("vllm", pool)
        return None if ours is None or theirs is None else ratio_of_medians(theirs.seconds, ours.seconds)

    def cost(self, prefix_cache: str, pool: str) -> CacheCost | None:
        """The cost of one cache in one pool."""
        return next((cost for cost in self.costs if (cost.prefix_cache, cost.pool) == (prefix_cache, pool)), None)

    @property
    def pools(self) -> list[str]:
        return list(dict.fromkeys(cost.pool for cost in self.costs))

    def measure_memory(self) -> dict[str, float]:
        """Bytes of Python memory per block, by cache."""
        return {name: bytes_per_block(self.prompts, self.config, name) for name in CACHES}

    def measure_lookups(self) -> list[LookupCost]:
        """Lookups in long prompts, by cache."""
        return [LookupCost(name, tuple(time_lookups(self.config, name, self.config.trials))) for name in CACHES]
