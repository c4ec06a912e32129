"""PrefixCache: which blocks already hold the start of a request's tokens.

The protocol is wide enough for two caches that let go differently:

* `HashPrefixCache` (vLLM): a freed block stays in the pool's free queue with its content, findable, and is
  forgotten when the pool hands it out. The queue is the eviction order; the cache itself holds nothing.
* `RadixPrefixCache` (SGLang, radix_cache.py): the tree is a user of its blocks and gives whole leaves back, by its
  own policy, when the manager asks for room.

`NoPrefixCache` is the simplest implementation: nothing is ever found.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, Sequence

from engine.kvcache.block_hash import BlockHash, event_block_hash
from engine.kvcache.block_pool import BlockPool
from engine.kvcache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent, untagged_extra_keys
from engine.request import Request


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest cached prefix of a request. Holding nothing: another allocation may take the blocks."""

    block_ids: Sequence[int] = ()
    num_tokens: int = 0
    node: Any = None  # where the match ended, for caches that lock


NO_MATCH = PrefixMatch()


class PublishRule(Enum):
    """When a full block becomes findable."""

    AT_ALLOCATION = "allocation"  # vLLM: before the step computes it; same-step twins hit
    AFTER_STEP = "step"  # SGLang, and older vLLM: once it is computed; same-step twins miss


class PrefixCache(Protocol):
    """Remembers content by prefix.

    Guarantees: a match is a multiple of the unit and at most `max_tokens`; its blocks hold exactly the K/V of the
    request's first tokens under its identity; `match` changes neither references nor counts (the radix tree notes the use).
    """

    publish_rule: PublishRule
    keeps_freed_content: bool  # whether published blocks stay findable after their last user is gone
    publishes_outputs: bool  # whether generated blocks become findable step by step, and not only when the request ends
    events: list[KVEvent] | None  # what happened, oldest first; None: nobody listens

    def match(self, request: Request, max_tokens: int) -> PrefixMatch:
        """The longest cached prefix of the request's tokens, at most `max_tokens` long."""
        ...

    def num_idle(self, match: PrefixMatch) -> int:
        """How many of the match's blocks count as available now and will not once it is held."""
        ...

    def hold(self, request: Request, match: PrefixMatch) -> None:
        """The request uses the match from now on: its blocks must not be evicted."""
        ...

    def publish(self, request: Request, block_table: list[int], num_published: int, num_full: int) -> list[tuple[int, int]]:
        """Make full blocks [num_published, num_full) of the table findable.

        Returns the (table index, block id) pairs of blocks that the cache already has, with the block to use
        instead; empty for caches that keep duplicates.
        """
        ...

    def release(self, request: Request) -> None:
        """The request no longer uses what it held."""
        ...

    @property
    def num_evictable(self) -> int:
        """Blocks outside the pool's free queue that `make_room` could give back now."""
        ...

    def make_room(self, num_blocks: int) -> int:
        """Give back at least `num_blocks` blocks to the pool, if so many are evictable; perhaps more. How many it gave."""
        ...

    def forget(self, block_ids: Sequence[int]) -> int:
        """The pool handed these blocks out: their content is gone. How many of them had any."""
        ...

    @property
    def num_cached_keys(self) -> int:
        """How many different blocks of content can be found."""
        ...

    def reset(self) -> None:
        """Forget everything. Only called while no request uses a block."""
        ...


class NoPrefixCache:
    """Finds nothing and remembers nothing."""

    publish_rule = PublishRule.AT_ALLOCATION
    keeps_freed_content = False
    publishes_outputs = True
    events: list[KVEvent] | None = None
    num_evictable = 0
    num_cached_keys = 0

    def match(self, request: Request, max_tokens: int) -> PrefixMatch:
        return NO_MATCH

    def num_idle(self, match: PrefixMatch) -> int:
        return 0

    def hold(self, request: Request, match: PrefixMatch) -> None:
        pass

    def publish(self, request: Request, block_table: list[int], num_published: int, num_full: int) -> list[tuple[int, int]]:
        return []

    def release(self, request: Request) -> None:
        pass

    def make_room(self, num_blocks: int) -> int:
        return 0

    def forget(self, block_ids: Sequence[int]) -> int:
        return 0

    def reset(self) -> None:
        pass


class HashPrefixCache:
    """A map from block name to block.

    Equal content may sit in several blocks (a prompt of whole blocks, sent again, recomputes its last one into a
    second block). Duplicates stay, because block tables are append-only: a running request's blocks cannot be
    swapped under it. The block cached first is served; when it is evicted, the next one is.
    """

    keeps_freed_content = True
    publishes_outputs = True
    num_evictable = 0  # all it could give up is in the pool's free queue already

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        publish_rule: PublishRule = PublishRule.AT_ALLOCATION,
        with_events: bool = False,
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self.publish_rule = publish_rule
        self.events: list[KVEvent] | None = [] if with_events else None
        self.name_of_block: dict[int, BlockHash] = {}
        # name -> the one block, or {block: None} in insertion order once there were two: most names have one block.
        self._blocks_by_name: dict[BlockHash, int | dict[int, None]] = {}

    @property
    def num_cached_keys(self) -> int:
        return len(self._blocks_by_name)

    def find(self, name: BlockHash) -> int | None:
        """The block served for this name: the one cached first."""
        entry = self._blocks_by_name.get(name)
        return next(iter(entry)) if isinstance(entry, dict) else entry

    def match(self, request: Request, max_tokens: int) -> PrefixMatch:
        find = self._blocks_by_name.get
        block_ids: list[int] = []
        names = request.block_hashes
        for index in range(min(max_tokens // self._block_size, len(names))):
            entry = find(names[index])
            if entry is None:
                # The chain ends at the first miss: later blocks depend on the missing one.
                break
            block_ids.append(entry if type(entry) is int else next(iter(entry)))
        if not block_ids:
            return NO_MATCH
        return PrefixMatch(block_ids, len(block_ids) * self._block_size)

    def num_idle(self, match: PrefixMatch) -> int:
        return self._pool.num_idle(match.block_ids)

    def hold(self, request: Request, match: PrefixMatch) -> None:
        pass  # the reference counts of its blocks hold them

    def publish(self, request: Request, block_table: list[int], num_published: int, num_full: int) -> list[tuple[int, int]]:
        names, block_ids = request.block_hashes[num_published:num_full], block_table[num_published:num_full]
        num_named = len(self.name_of_block) + len(block_ids)
        self.name_of_block.update(zip(block_ids, names, strict=True))
        assert len(self.name_of_block) == num_named, "a block is named once, when it is full"
        blocks_by_name = self._blocks_by_name
        store = blocks_by_name.setdefault
        for name, block_id in zip(names, block_ids):
            entry = store(name, block_id)
            if entry is not block_id:
                if isinstance(entry, dict):
                    entry[block_id] = None
                elif entry != block_id:
                    blocks_by_name[name] = {entry: None, block_id: None}
        if self.events is not None and num_full > num_published:
            self.events.append(self._stored(request, num_published, num_full))
        return []

    def report_reused(self, request: Request, num_blocks: int) -> None:
        """Tell followers of the first blocks that a request found, as if stored; nothing changes. None for none."""
        if self.events is not None and num_blocks > 0:
            self.events.append(self._stored(request, 0, num_blocks))

    def _stored(self, request: Request, first: int, end: int) -> BlockStored:
        size, identity = self._block_size, request.identity
        names = request.block_hashes
        return BlockStored(
            block_hashes=tuple(event_block_hash(name) for name in names[first:end]),
            parent_block_hash=event_block_hash(names[first - 1]) if first else None,
            token_ids=tuple(request.all_token_ids[first * size : end * size]),
            block_size=size,
            lora_name=identity.lora.name if identity.lora is not None else None,
            extra_keys=untagged_extra_keys([identity.extra_keys(at * size, (at + 1) * size) for at in range(first, end)]),
        )

    def release(self, request: Request) -> None:
        pass

    def make_room(self, num_blocks: int) -> int:
        return 0

    def forget(self, block_ids: Sequence[int]) -> int:
        if self.name_of_block.keys().isdisjoint(block_ids):
            return 0  # as long as the pool is not full
        num_named = len(self.name_of_block)
        name_of, blocks_by_name = self.name_of_block.pop, self._blocks_by_name
        for block_id in block_ids:
            name = name_of(block_id, None)
            if name is None:
                continue
            if self.events is not None:
                self.events.append(BlockRemoved((event_block_hash(name),)))
            entry = blocks_by_name.pop(name)
            if isinstance(entry, dict):
                del entry[block_id]
                if entry:
                    blocks_by_name[name] = entry
        return num_named - len(self.name_of_block)

    def reset(self) -> None:
        self._blocks_by_name = {}
        self.name_of_block.clear()
        if self.events is not None:
            self.events.append(AllBlocksCleared())
