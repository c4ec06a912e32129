"""The cost of bookkeeping: what a prefix cache does for a request besides computing it, in time and memory.

One request at a time: its blocks are named, looked up, allocated and freed. No model runs. The prompts are those of a
deployment: a few long system prompts, each shared by many requests that differ behind it.

    unlimited pool   nothing is ever evicted; the cache grows
    small pool       of 1,024 blocks: nearly every allocation evicts

The same is done by a peer in turns, with the same prompts and hash; hits in tokens must be equal.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from dataclasses import dataclass
from typing import Sequence

from engine.config import HASH_ALGORITHMS, EngineConfig
from engine.errors import ConfigError
from engine.kvcache.open_kv_cache import open_kv_cache
from engine.request import FinishReason, Request

_MEMORY_REQUESTS = 200  # enough to see the bytes of a block, few enough for a traced run
LOOKUP_TOKENS = (10_000, 20_000, 50_000, 100_000)


@dataclass(frozen=True)
class Config:
    """The prompts, the pools, and how often. Raises ConfigError outside the accepted ranges."""

    num_requests: int = 2_000
    prompt_tokens: int = 2_000  # on average; lengths differ by a tenth
    shared_tokens: int = 1_000  # of them a system prompt
    num_system_prompts: int = 50
    block_size: int = 16  # and page size of the radix cache
    small_pool_blocks: int = 1_024
    algorithm: str = "sha256"
    trials: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("num_requests", 1, 100_000), ("prompt_tokens", 20, 100_000), ("shared_tokens", 1, 100_000),
            ("num_system_prompts", 1, 10_000), ("block_size", 1, 4_096), ("small_pool_blocks", 2, 10_000_000),
            ("trials", 1, 1_000), ("seed", 0, 2**63 - 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ConfigError(name, value, f"a whole number from {low} to {high}")
        if self.shared_tokens > self.shortest_prompt - 1:
            raise ConfigError("shared_tokens", self.shared_tokens, f"a whole number from 1 to {self.shortest_prompt - 1}")
        if self.num_requests * self.prompt_tokens > 20_000_000:
            raise ConfigError("num_requests", self.num_requests, f"a whole number from 1 to {20_000_000 // self.prompt_tokens}")
        if self.algorithm not in HASH_ALGORITHMS:
            raise ConfigError("algorithm", self.algorithm, ", ".join(HASH_ALGORITHMS))
        needed = -(-self.longest_prompt // self.block_size) + 1
        if self.small_pool_blocks < needed:
            raise ConfigError("small_pool_blocks", self.small_pool_blocks, f"a whole number from {needed}: a prompt and the null block")

    @property
    def shortest_prompt(self) -> int:
        return self.prompt_tokens - self.prompt_tokens // 10

    @property
    def longest_prompt(self) -> int:
        return self.prompt_tokens + self.prompt_tokens // 10

    @property
    def unlimited_pool_blocks(self) -> int:
        """Blocks that hold every prompt at once."""
        return self.num_requests * -(-self.longest_prompt // self.block_size) + 2


@dataclass(frozen=True)
class CacheRun:
    """One pass over all prompts."""

    seconds: float
    hits: int  # tokens


def make_prompts(config: Config) -> list[list[int]]:
    """[num_requests] prompts of shortest_prompt to longest_prompt token ids, the same for the same seed."""
    rng = random.Random(config.seed)
    draw = rng.randrange
    heads = [[draw(32_000) for _ in range(config.shared_tokens)] for _ in range(config.num_system_prompts)]
    prompts = []
    for _ in range(config.num_requests):
        length = rng.randint(config.shortest_prompt, config.longest_prompt)
        prompts.append(rng.choice(heads) + [draw(32_000) for _ in range(length - config.shared_tokens)])
    return prompts


def run_cache(prompts: Sequence[list[int]], config: Config, prefix_cache: str, num_blocks: int) -> CacheRun:
    """Name, look up, allocate and free every prompt. prefix_cache: "hash" or "radix"."""
    engine_config = EngineConfig(
        prefix_cache=prefix_cache,
        block_size=config.block_size,
        page_size=config.block_size,
        prefix_caching_hash_algo=config.algorithm,
    )
    manager, hasher = open_kv_cache(engine_config, num_blocks, config.longest_prompt + 1)
    hits = 0
    begin = time.perf_counter()
    for number, prompt in enumerate(prompts):
        request = Request(str(number), prompt, block_hasher=hasher, exact_ints=True)
        match = manager.get_computed_blocks(request)
        new_blocks = manager.allocate_slots(request, request.num_tokens - match.num_tokens, match)
        assert new_blocks is not None, "the pool is too small for a prompt"
        hits += match.num_tokens
        request.num_computed_tokens = request.num_tokens
        manager.publish_computed(request)
        request.finish(FinishReason.LENGTH)
        manager.free(request)
    return CacheRun(time.perf_counter() - begin, hits)


def bytes_per_block(prompts: Sequence[list[int]], config: Config, prefix_cache: str) -> float:
    """Python memory of a block in the cache, its name and place in the free queue included, prompts left out."""
    engine_config = EngineConfig(prefix_cache=prefix_cache, block_size=config.block_size, page_size=config.block_size)
    prompts = prompts[:_MEMORY_REQUESTS]
    num_blocks = sum(len(prompt) // config.block_size + 1 for prompt in prompts) + 1
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        manager, hasher = open_kv_cache(engine_config, num_blocks, config.longest_prompt + 1)
        for number, prompt in enumerate(prompts):
            request = Request(str(number), prompt, block_hasher=hasher, exact_ints=True)
            match = manager.get_computed_blocks(request)
            manager.allocate_slots(request, request.num_tokens - match.num_tokens, match)
            request.num_computed_tokens = request.num_tokens
            manager.publish_computed(request)
            request.finish(FinishReason.LENGTH)
            manager.free(request)
            del request, match
        return (tracemalloc.get_traced_memory()[0] - before) / num_blocks
    finally:
        tracemalloc.stop()


def time_lookups(
    config: Config, prefix_cache: str, trials: int, lengths: Sequence[int] | None = None
) -> list[tuple[int, tuple[float, ...]]]:
    """Seconds to look up a cached prompt, for each length in tokens; None: LOOKUP_TOKENS."""
    lengths = LOOKUP_TOKENS if lengths is None else lengths
    engine_config = EngineConfig(
        prefix_cache=prefix_cache,
        block_size=config.block_size,
        page_size=config.block_size,
        prefix_caching_hash_algo=config.algorithm,
    )
    longest = max(lengths)
    draw = random.Random(config.seed).randrange
    token_ids = [draw(32_000) for _ in range(longest)]
    manager, hasher = open_kv_cache(engine_config, longest // config.block_size + 3, longest + 1)
    request = Request("stored", token_ids, block_hasher=hasher, exact_ints=True)
    manager.allocate_slots(request, longest)
    request.num_computed_tokens = longest
    manager.publish_computed(request)
    found = []
    for length in lengths:
        asking = Request(f"asking {length}", token_ids[:length], block_hasher=hasher, exact_ints=True)
        samples = []
        for trial in range(trials + 1):
            begin = time.perf_counter()
            match = manager.get_computed_blocks(asking)
            elapsed_s = time.perf_counter() - begin
            assert match.num_tokens == (length - 1) // config.block_size * config.block_size, "a stored prompt was not found"
            if trial:  # the first splits the tree's node
                samples.append(elapsed_s)
        found.append((length, tuple(samples)))
    return found
