"""RadixPrefixCache: the prefix cache of SGLang, over the same pool and behind the same protocol.

The tree is a user of every page it stores: a stored page has one reference from the tree and one per request. A
request locks the path it uses. When the manager asks for room, the tree gives back whole unlocked leaves.

Content becomes findable after the step that computed it, and a request that computed what the tree has meanwhile
learned from another switches to the tree's pages, so content is stored once.

Source: SGLang 0.5.23, srt/mem_cache/radix_cache.py; prompts match at most num_tokens - 1 tokens, in whole pages.
"""

from __future__ import annotations

import time
from array import array
from typing import Callable, Sequence

from engine.kvcache.block_pool import BlockPool
from engine.kvcache.cache_identity import CacheIdentity
from engine.kvcache.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from engine.kvcache.page_hash import PageHash, event_page_hash, event_seed, hash_pages
from engine.kvcache.prefix_cache import NO_MATCH, PrefixMatch, PublishRule
from engine.kvcache.radix_tree import RadixNode, RadixTree
from engine.request import Request


class RadixPrefixCache:
    """A radix tree over the pool's pages; slot = page * page_size + offset."""

    publish_rule = PublishRule.AFTER_STEP
    publishes_outputs = False  # publishing each would split the tree token by token
    keeps_freed_content = False  # a page nobody uses is not in the tree either

    def __init__(
        self,
        pool: BlockPool,
        page_size: int,
        policy: str = "lru",
        clock: Callable[[], float] = time.monotonic,
        with_events: bool = False,
    ) -> None:
        self._pool = pool
        self.events: list[KVEvent] | None = [] if with_events else None
        self._page_size = page_size
        self.tree = RadixTree(page_size, policy, clock=clock)
        self._locked: dict[str, RadixNode] = {}  # request id -> the node whose path it uses
        self._inserted_len: dict[str, int] = {}  # request id -> tokens it has published itself

    @property
    def num_evictable(self) -> int:
        return self.tree.evictable_size // self._page_size

    @property
    def num_cached_keys(self) -> int:
        return self.tree.total_size // self._page_size

    def match(self, request: Request, max_tokens: int) -> PrefixMatch:
        identity = self._identity(request)
        found = self.tree.match(identity.content_ids(request.all_token_ids)[:max_tokens], identity.namespace)
        if not found.num_tokens:
            return NO_MATCH
        return PrefixMatch(self._pages(found.slots), found.num_tokens, found.node)

    def num_idle(self, match: PrefixMatch) -> int:
        return self.tree.unlocked_size(match.node) // self._page_size

    def hold(self, request: Request, match: PrefixMatch) -> None:
        self.tree.lock(match.node)
        self._locked[request.request_id] = match.node

    def publish(self, request: Request, block_table: list[int], num_published: int, num_full: int) -> list[tuple[int, int]]:
        identity = self._identity(request)
        key = identity.content_ids(request.all_token_ids)[: num_full * self._page_size]
        prefix_len, node = self.tree.insert(
            key,
            self._slots(block_table[:num_full]),
            identity.namespace,
            request.priority,
            self._inserted_len.get(request.request_id, 0),
        )
        self._inserted_len[request.request_id] = len(key)
        if self.events is not None and prefix_len < len(key):
            self.events.append(self._stored(request, node))
        num_present = prefix_len // self._page_size
        self._pool.touch(block_table[num_present:num_full])  # the tree is their user from now on
        self.tree.lock(node)
        self.tree.unlock(self._locked.get(request.request_id, self.tree.root))
        self._locked[request.request_id] = node
        if num_present <= num_published:
            return []
        stored = self._pages(self.tree.path_slots(node))
        return [(index, stored[index]) for index in range(num_published, num_present) if stored[index] != block_table[index]]

    def release(self, request: Request) -> None:
        self.tree.unlock(self._locked.pop(request.request_id, self.tree.root))
        self._inserted_len.pop(request.request_id, None)

    def make_room(self, num_blocks: int) -> int:
        eviction = self.tree.evict(num_blocks * self._page_size)
        for node in eviction.nodes:
            self._pool.free(reversed(self._pages(node.slots)))
            if self.events is not None:
                self.events.append(BlockRemoved(_event_hashes(node)))
        return eviction.num_tokens // self._page_size

    def forget(self, block_ids: Sequence[int]) -> int:
        return 0  # the pool only hands out pages that the tree gave up before

    def reset(self) -> None:
        for node in self.tree.nodes():
            self._pool.free(reversed(self._pages(node.slots)))
        self.tree.reset()
        if self.events is not None:
            self.events.append(AllBlocksCleared())

    def _identity(self, request: Request) -> CacheIdentity:
        """What the key is made of, besides token ids; wrong_key.py leaves a part out."""
        return request.identity

    def _stored(self, request: Request, leaf: RadixNode) -> BlockStored:
        """The pages of a new leaf, named behind those of the node above."""
        above = leaf.parent
        assert above is not None
        seed = above.page_names[-1] if above.page_names else event_seed(self._identity(request).namespace)
        # Content ids of images are negative; a page's name wants 64 bits.
        ids = [token_id & 0xFFFF_FFFF_FFFF_FFFF for token_id in leaf.tokens]
        leaf.page_names = list(hash_pages(ids, self._page_size, seed=seed))
        salt, lora = request.identity.cache_salt, request.identity.lora
        return BlockStored(
            block_hashes=_event_hashes(leaf),
            parent_block_hash=event_page_hash(PageHash(above.page_names[-1])) if above.page_names else None,
            token_ids=tuple(leaf.tokens),
            block_size=self._page_size,
            lora_name=lora.name if lora is not None else None,
            extra_keys=((salt,),) * len(leaf.page_names) if salt else None,
        )

    def _pages(self, slots: array) -> Sequence[int]:
        page_size = self._page_size
        return slots if page_size == 1 else [slot // page_size for slot in slots[::page_size]]

    def _slots(self, pages: list[int]) -> Sequence[int]:
        page_size = self._page_size
        if page_size == 1:
            return pages
        return [page * page_size + offset for page in pages for offset in range(page_size)]


def _event_hashes(node: RadixNode) -> tuple[int, ...]:
    return tuple(event_page_hash(PageHash(name)) for name in node.page_names or ())
