"""KVEvents: what a cache stored, removed and cleared, in order, for whoever draws or follows it.

    BlockStored        blocks became findable: their names, the name before them, their tokens
    BlockRemoved       a name no longer leads to that block (another with the same content may remain)
    AllBlocksCleared   the cache was reset

Names are shortened to numbers, as routers expect them: the last eight bytes of a block's hash (vLLM), the first eight,
signed, of a page's (SGLang). Adapter, images, salt and embeddings stand beside the tokens without the tags they have in
the hash; they and the tokens are left out of `repr`, since events end up in logs.

Sources: vLLM 0.32.0, distributed/kv_events.py and v1/core/block_pool.py; SGLang 0.5.23, mem_cache/events.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Consecutive blocks of one request."""

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None  # None: the first of them begins the prompt
    token_ids: tuple[int, ...] = field(repr=False)  # [len(block_hashes) * block_size]
    block_size: int = 0
    lora_name: str | None = None
    extra_keys: tuple[Any, ...] | None = field(default=None, repr=False)  # one entry a block, None where it has none
    medium: str = "GPU"
    group_idx: int = 0


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Names that no longer lead to a block."""

    block_hashes: tuple[int, ...]
    medium: str = "GPU"
    group_idx: int = 0


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing is cached any more."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


def untagged_extra_keys(extra_keys: Sequence[tuple[Any, ...] | None]) -> tuple[Any, ...] | None:
    """Extra keys as events carry them, one entry a block; None when there are no blocks.

    Adapter: its name alone; image: (identifier, offset); salt: the text; embeddings: the digest.
    """
    if not extra_keys:
        return None
    return tuple(
        None if keys is None else tuple(key[1:] if key[0] == "mm" else key[1] for key in keys) for keys in extra_keys
    )
