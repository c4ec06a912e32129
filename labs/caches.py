"""Caches: the prefix caches a lab asks, each with the engine settings that open it; on a server the one it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence

from labs.cache_laws import CacheLaws
from labs.targets.base import ServedCache

MAX_UNIT = 65_536  # tokens of a block or page, as EngineConfig accepts


@dataclass(frozen=True)
class Cache:
    """One cache under test."""

    title: str  # "hash cache, block 16": the tables' title
    unit: int  # tokens of a block or page: hits are multiples of it
    engine_fields: dict[str, Any] = field(default_factory=dict)  # for open_target; a server's cache is as it is
    prefix_cache: str = "hash"  # or "radix": whose rules it follows
    publishes_at_allocation: bool = True  # findable as soon as it has slots (vLLM), or after the step that computes it (SGLang)
    has_drafter: bool = False  # a speculative drafter beside it
    num_front: int = 0  # tokens its server puts in front of every prompt

    @property
    def is_hash(self) -> bool:
        return self.prefix_cache == "hash"

    @property
    def laws(self) -> CacheLaws:
        """Its predictions."""
        return CacheLaws(self.unit, self.has_drafter, self.num_front)

    def blocks_for(self, num_tokens: int, num_requests: int = 1) -> int:
        """Pool size (the null block included) that holds so many tokens of so many requests, and a canary, without evicting."""
        # Each request may leave a partial block, and wants room for the tokens it samples.
        spare = 2 * self.unit * num_requests + 1024 + 4 * self.unit
        return -(-(num_tokens + spare) // self.unit) + 1


def hash_cache(block_size: int) -> Cache:
    """vLLM's cache: named blocks."""
    return Cache(f"hash cache, block {block_size}", block_size, {"prefix_cache": "hash", "block_size": block_size})


def radix_cache(page_size: int) -> Cache:
    """SGLang's cache: a tree of pages."""
    fields = {"prefix_cache": "radix", "page_size": page_size}
    return Cache(f"radix cache, page {page_size}", page_size, fields, "radix", publishes_at_allocation=False)


def served_cache(served: ServedCache) -> Cache:
    """The cache behind a server."""
    return Cache(
        served.title,
        served.unit_size,
        {},
        served.prefix_cache,
        served.publishes_at_allocation,
        served.has_drafter,
        served.num_front,
    )


def caches(block_size: int, page_sizes: Sequence[int], served: ServedCache | None = None) -> list[Cache]:
    """The hash cache, then a radix cache for each page size; on a server its own alone."""
    if served is not None:
        return [served_cache(served)]
    return [hash_cache(block_size), *(radix_cache(page_size) for page_size in page_sizes)]
