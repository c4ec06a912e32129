"""KVCacheManager: lookup, allocate, publish and free, for one request at a time.

It joins the pool (memory) and the prefix cache (content). One request's token positions in `allocate_slots`:

    0            hit            computed             + num_new_tokens      + lookahead
    ├─ from cache ─┤─ computed before ─┤─ to compute now ─────┤─ slots only ────┤
    (a newcomer has hits and nothing computed; a running request the other way round)

Source: vLLM 0.32.0, v1/core/kv_cache_manager.py.
"""

from __future__ import annotations

from engine.kvcache.block_pool import BlockPool
from engine.kvcache.kv_events import KVEvent
from engine.kvcache.prefix_cache import NO_MATCH, NoPrefixCache, PrefixCache, PrefixMatch, PublishRule
from engine.metrics import PrefixCacheStats
from engine.request import Request, RequestStatus


class KVCacheManager:
    """Block tables of all requests that hold blocks.

    pool           the blocks
    prefix_cache   what remembers their content
    unit_size      tokens per block
    max_model_len  longest request, in tokens
    watermark      share of the pool kept back from newcomers while others run
    match_unit     tokens of which a hit is a multiple; None: the unit size
    use_eagle      a speculative drafter runs along: it reads the K/V before a hit's end, so one match unit is given up
    heads_first    free a request's first block first: wrong, and there to show what the right order is worth
    """

    def __init__(
        self,
        pool: BlockPool,
        prefix_cache: PrefixCache,
        unit_size: int,
        max_model_len: int,
        watermark: float = 0.0,
        *,
        match_unit: int | None = None,
        use_eagle: bool = False,
        heads_first: bool = False,
    ) -> None:
        if match_unit is not None and (match_unit < unit_size or match_unit % unit_size):
            raise ValueError(f"match_unit is {match_unit}; accepted: a multiple of the unit size, {unit_size}")
        self.pool = pool
        self.prefix_cache = prefix_cache
        self.unit_size = unit_size
        self.max_model_len = max_model_len
        self.watermark_blocks = int(watermark * pool.num_blocks)
        self.match_unit = unit_size if match_unit is None else match_unit
        self.use_eagle = use_eagle
        self._heads_first = heads_first
        self.stats = PrefixCacheStats()
        self._num_evicted = 0  # blocks
        self._tables: dict[str, list[int]] = {}
        self._num_published: dict[str, int] = {}  # full blocks of each table that can be found

    @property
    def caching_enabled(self) -> bool:
        return not isinstance(self.prefix_cache, NoPrefixCache)

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out, evicting if need be."""
        return self.pool.num_free + self.prefix_cache.num_evictable

    @property
    def usage(self) -> float:
        """Share of the usable blocks that requests hold; cached blocks nobody uses count as free."""
        usable = self.pool.num_usable
        return 1.0 - self.num_available / usable if usable else 0.0

    def block_table(self, request: Request) -> list[int]:
        """The request's block ids in token order (the live list); empty if it holds none."""
        return self._tables.get(request.request_id, [])

    def get_computed_blocks(self, request: Request) -> PrefixMatch:
        """The longest cached prefix the request may use. Changes no reference and no counts.

        The order of eviction stays too with the hash cache; the radix tree marks what it finds as used.

        Capped at num_tokens - 1: the last token is always recomputed, its logits choose the next one. The cap
        follows the present length, outputs included, which matters when a preempted request resumes.
        """
        if not self.reads_cache(request):
            return NO_MATCH
        match = self.prefix_cache.match(request, request.num_tokens - 1)
        num_units = match.num_tokens // self.match_unit
        if self.use_eagle and num_units:
            num_units -= 1
        if num_units * self.match_unit == match.num_tokens:
            return match
        return self.prefix_cache.match(request, num_units * self.match_unit) if num_units else NO_MATCH

    def reads_cache(self, request: Request) -> bool:
        """Whether the request looks its prefix up at all; those that do not are left out of the statistics."""
        return self.caching_enabled and not request.skips_cache_read

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        match: PrefixMatch = NO_MATCH,
        *,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        has_scheduled_requests: bool = True,
    ) -> list[int] | None:
        """Blocks for the request's next tokens: the new ones, without hits; None when they do not fit.

        num_new_tokens          tokens to compute, behind what is computed and matched
        match                   from get_computed_blocks; only for a request that holds no blocks
        num_lookahead_tokens    further slots wanted; never published
        full_sequence_must_fit  refuse unless the whole request, as long as it is now, would fit
        has_scheduled_requests  others run: keep the watermark free of newcomers

        A refusal leaves everything as it was.
        """
        if num_new_tokens + match.num_tokens == 0:
            raise ValueError("nothing to allocate: no new and no cached tokens")
        table = self._tables.get(request.request_id)
        assert table is None or not match.block_ids, "only a request without blocks can adopt hits"

        num_computed = request.num_computed_tokens + match.num_tokens
        num_end = min(num_computed + num_new_tokens + num_lookahead_tokens, self.max_model_len)
        num_held = (len(table) if table is not None else 0) + len(match.block_ids)
        num_wanted = -(-num_end // self.unit_size) - num_held
        # Hits that nobody uses are available now and will not be once they are held.
        num_idle = self.prefix_cache.num_idle(match) if match.block_ids else 0
        available = self.num_available - num_idle
        newcomer = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        kept_back = self.watermark_blocks if has_scheduled_requests and newcomer else 0

        if full_sequence_must_fit:
            num_whole = -(-min(request.num_tokens, self.max_model_len) // self.unit_size) - num_held
            if num_whole + kept_back > available:
                return None
        if num_wanted + kept_back > available:
            return None

        if table is None:
            table = self._tables[request.request_id] = []
        if match.block_ids:
            # Held before anything is evicted or handed out: a hit must not be the block that makes room.
            self.prefix_cache.hold(request, match)
            self.pool.touch(match.block_ids)
            table.extend(match.block_ids)
        new_blocks = self._take(num_wanted)
        table.extend(new_blocks)
        self._num_published.setdefault(request.request_id, len(match.block_ids))
        if self.prefix_cache.publish_rule is PublishRule.AT_ALLOCATION:
            # Lookahead slots are not published: what will be in them is not known.
            self._publish(request, min(num_computed + num_new_tokens, request.num_tokens))
        return new_blocks

    def publish_computed(self, request: Request) -> None:
        """The step is done: caches that publish after it learn of the blocks it computed."""
        if self.prefix_cache.publish_rule is PublishRule.AFTER_STEP and request.request_id in self._tables:
            prompt_published = self._num_published[request.request_id] >= request.num_prompt_tokens // self.unit_size
            if self.prefix_cache.publishes_outputs or not prompt_published:
                self._publish(request, request.num_computed_tokens)

    def unpublish(self, request: Request, num_tokens: int) -> None:
        """Make the request's blocks behind its first `num_tokens` tokens unfindable: they were not computed.

        Before any request of the step is freed: a twin may have hit these blocks in the same step.
        """
        table = self._tables.get(request.request_id, [])
        num_left = num_tokens // self.unit_size
        self.prefix_cache.forget(table[num_left:])
        if table:
            self._num_published[request.request_id] = min(self._num_published[request.request_id], num_left)

    def free(self, request: Request) -> None:
        """Give the request's blocks back, tail first, so that shared heads are evicted last. Unknown ids are ignored."""
        table = self._tables.get(request.request_id)
        if table is None:
            return
        if self.prefix_cache.publish_rule is PublishRule.AFTER_STEP and request.is_finished:
            self._publish(request, request.num_computed_tokens)
        num_published = self._num_published.pop(request.request_id)
        num_kept = num_published if self.prefix_cache.keeps_freed_content else 0
        del self._tables[request.request_id]
        self.prefix_cache.release(request)
        order = iter if self._heads_first else reversed
        self.pool.free(order(table[num_kept:]), order(table[:num_kept]))

    def record_lookup(self, request: Request, num_hits: int) -> None:
        """Count an admission in the statistics, if it looked anything up. After allocation: retries count once."""
        if self.reads_cache(request):
            self.stats.record(request.num_tokens, num_hits, preempted=request.num_preemptions > 0)

    def take_stats(self) -> PrefixCacheStats:
        """The statistics since the last call; they start again from zero."""
        stats, self.stats = self.stats, PrefixCacheStats()
        return stats

    def take_evicted_tokens(self) -> int:
        """Tokens of the blocks whose cached content was given up to make room, since the last call; resets do not count."""
        num_evicted, self._num_evicted = self._num_evicted, 0
        return num_evicted * self.unit_size

    def take_kv_events(self) -> list[KVEvent]:
        """What the cache stored and removed since the last call, oldest first; nothing unless events are on."""
        events = self.prefix_cache.events
        if not events:
            return []
        taken = list(events)
        events.clear()
        return taken

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; False (and nothing happens) while a request holds blocks."""
        if self.num_available != self.pool.num_usable:
            return False
        self.prefix_cache.reset()
        self.stats.reset = True
        return True

    def _take(self, count: int) -> list[int]:
        if count <= 0:
            return []
        shortfall = count - self.pool.num_free
        if shortfall > 0:
            self._num_evicted += self.prefix_cache.make_room(shortfall)
        block_ids = self.pool.take(count)
        self._num_evicted += self.prefix_cache.forget(block_ids)
        return block_ids

    def _publish(self, request: Request, num_tokens: int) -> None:
        """Publish the blocks that `num_tokens` tokens fill. A partial block is never published."""
        num_full = num_tokens // self.unit_size
        num_published = self._num_published[request.request_id]
        if num_full <= num_published:
            return
        table = self._tables[request.request_id]
        for index, block_id in self.prefix_cache.publish(request, table, num_published, num_full):
            # The cache has this content already: use its block, give ours back.
            self.pool.touch((block_id,))
            self.pool.free((table[index],))
            table[index] = block_id
        self._num_published[request.request_id] = num_full
