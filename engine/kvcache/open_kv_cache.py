"""From a configuration to a pool, its prefix cache, their manager, and the hasher that names blocks for it."""

from __future__ import annotations

import time
from typing import Callable

from engine.config import EngineConfig
from engine.kvcache.block_hash import BlockHasher
from engine.kvcache.block_pool import BlockPool
from engine.kvcache.kv_cache_manager import KVCacheManager
from engine.kvcache.prefix_cache import HashPrefixCache, NoPrefixCache, PrefixCache, PublishRule
from engine.kvcache.radix_cache import RadixPrefixCache
from engine.kvcache.rising_clock import RisingClock
from engine.kvcache.wrong_key import WrongBlockHasher, WrongRadixCache


def open_kv_cache(
    config: EngineConfig, num_blocks: int, max_model_len: int, clock: Callable[[], float] = time.monotonic
) -> tuple[KVCacheManager, BlockHasher | None]:
    """A manager over `num_blocks` blocks (the null block included), and the hasher for Request(block_hasher=...).

    The hasher is None where the cache needs no names (radix, or caching off). `clock` times the radix cache's LRU.
    """
    pool = BlockPool(num_blocks)
    hasher: BlockHasher | None = None
    cache: PrefixCache
    if not config.enable_prefix_caching:
        cache = NoPrefixCache()
    elif config.prefix_cache == "radix":
        settings = (pool, config.page_size, config.radix_eviction_policy, RisingClock(clock), config.enable_kv_cache_events)
        left_out = config.leave_out_of_key
        cache = RadixPrefixCache(*settings) if left_out is None else WrongRadixCache(left_out, *settings)
    else:
        rule = PublishRule.AFTER_STEP if config.publish_rule == "step" else PublishRule.AT_ALLOCATION
        cache = HashPrefixCache(pool, config.block_size, rule, config.enable_kv_cache_events)
        hasher = _hasher(config)
    manager = KVCacheManager(
        pool,
        cache,
        config.unit_size,
        max_model_len,
        config.watermark,
        match_unit=config.prefix_match_unit,
        use_eagle=config.use_eagle,
        heads_first=config.free_heads_first,
    )
    return manager, hasher


def _hasher(config: EngineConfig) -> BlockHasher:
    algorithm, size = config.prefix_caching_hash_algo, config.block_size
    if config.leave_out_of_key is None and config.hash_bits is None:
        return BlockHasher(algorithm, size)
    return WrongBlockHasher(algorithm, size, config.leave_out_of_key, config.hash_bits)
