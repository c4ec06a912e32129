"""Probe count: how often a lookup asks a table, counted while an engine serves.

The engine's caches count nothing: that would slow every lookup down. Here an empty cache is replaced by the same cache
over tables that count.

    hash cache    one table, name -> block: a probe for each block, up to the first that is missing
    radix cache   a table in each node, first page -> child: a probe for each node on the path, and one in vain
"""

from __future__ import annotations

from array import array
from typing import Any, Protocol, Sequence

from engine.kvcache.cache_identity import Namespace
from engine.kvcache.prefix_cache import HashPrefixCache
from engine.kvcache.radix_cache import RadixPrefixCache
from engine.kvcache.radix_tree import NO_NAMESPACE, RadixMatch, RadixNode, RadixTree
from engine.llm_engine import LLMEngine


class CountsProbes(Protocol):
    num_probes: int  # of all lookups until now


class _CountingTable(dict):
    """A dict that counts what is asked of it."""

    num_probes = 0

    def get(self, key: Any, default: Any = None) -> Any:
        self.num_probes += 1
        return super().get(key, default)


class CountingHashCache(HashPrefixCache):
    """HashPrefixCache over a counting table; only lookups ask it with `get`."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self._blocks_by_name = _CountingTable()

    @property
    def num_probes(self) -> int:
        return self._blocks_by_name.num_probes


class CountingTree(RadixTree):
    """RadixTree whose nodes count what is asked of their children; insertions, which ask too, are left out."""

    def __init__(self, *settings: Any, **more: Any) -> None:
        self.num_probes = 0
        self._tables: list[_CountingTable] = []
        super().__init__(*settings, **more)

    def match(self, token_ids: Sequence[int], namespace: Namespace = NO_NAMESPACE) -> RadixMatch:
        before = self._num_asked()
        found = super().match(token_ids, namespace)
        self.num_probes += self._num_asked() - before
        return found

    def _new_node(self, tokens: array, slots: array, parent: RadixNode | None, namespace: Namespace) -> RadixNode:
        node = super()._new_node(tokens, slots, parent, namespace)
        table = _CountingTable()
        node.children = table
        self._tables.append(table)
        return node

    def _num_asked(self) -> int:
        return sum(table.num_probes for table in self._tables)


def count_probes(engine: LLMEngine) -> CountsProbes:
    """Make the engine's lookups count from now on; its cache must be empty, and must not be reset afterwards."""
    manager, config = engine.manager, engine.config
    cache = manager.prefix_cache
    assert not cache.num_cached_keys, "what the cache holds would be lost"
    if isinstance(cache, RadixPrefixCache):
        cache.tree = CountingTree(config.page_size, config.radix_eviction_policy, clock=engine.runner.now)
        return cache.tree
    assert isinstance(cache, HashPrefixCache), "a cache without lookups"
    manager.prefix_cache = CountingHashCache(manager.pool, config.block_size, cache.publish_rule)
    return manager.prefix_cache


def num_duplicates(engine: LLMEngine) -> int:
    """Blocks whose content another block holds as well; no request may be running."""
    cache, pool = engine.manager.prefix_cache, engine.manager.pool
    num_stored = len(cache.name_of_block) if isinstance(cache, HashPrefixCache) else pool.num_usable - pool.num_free
    return num_stored - cache.num_cached_keys
