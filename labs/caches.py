"""Caches: the prefix caches a lab asks, each with the engine settings that open it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence

MAX_UNIT = 65_536  # tokens of a block or page, as EngineConfig accepts


@dataclass(frozen=True)
class Cache:
    """One cache under test."""

    title: str  # "hash cache, block 16": the tables' title
    unit: int  # tokens of a block or page: hits are multiples of it
    engine_fields: dict[str, Any] = field(default_factory=dict)  # for open_target

    @property
    def is_hash(self) -> bool:
        return self.engine_fields["prefix_cache"] == "hash"

    @property
    def publishes_at_allocation(self) -> bool:
        """Whether a block is findable as soon as it has slots (vLLM), or only after the step that computes it (SGLang)."""
        return self.is_hash

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
    return Cache(f"radix cache, page {page_size}", page_size, {"prefix_cache": "radix", "page_size": page_size})


def caches(block_size: int, page_sizes: Sequence[int]) -> list[Cache]:
    """The hash cache, then a radix cache for each page size."""
    return [hash_cache(block_size), *(radix_cache(page_size) for page_size in page_sizes)]
