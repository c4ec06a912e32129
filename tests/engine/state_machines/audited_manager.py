"""AuditedManager: a KVCacheManager whose every answer is compared with a naive account of who wrote what where.

The account keeps, per block and offset, what was *promised* (slots allocated for a content) and what was *written* (the
step that computes it is done). The hash cache publishes at allocation: within a step its hits are promised only. The
radix cache publishes after the step: its hits are written. Between steps everything findable is written.
"""

from __future__ import annotations

from typing import Any, Sequence

from engine.kvcache.block_pool import NULL_BLOCK_ID
from engine.kvcache.kv_cache_manager import KVCacheManager
from engine.kvcache.prefix_cache import NO_MATCH, HashPrefixCache, PrefixMatch
from engine.kvcache.radix_cache import RadixPrefixCache
from engine.request import Request, RequestStatus
from tests.engine.state_machines.content import Contents

Share = tuple[Request, int, int, list[int]]  # tokens [start, end) of a request in a step, and the blocks it writes to


class AuditedManager:
    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.unit = manager.unit_size
        self.contents = Contents()
        self.promised: dict[int, list[int | None]] = {}  # block -> content per offset, since it was handed out
        self.written: dict[int, list[int | None]] = {}
        self.holders: dict[str, Request] = {}  # who has a block table
        self.in_step: dict[str, int] = {}  # holder -> first token of its share of the step under way
        self.computed: set[int] = set()  # contents a hit may end with
        self._named: dict[int, int] = {}  # hash: findable block -> content of its last token, in order of publication
        self._num_published: dict[str, int] = {}
        self._content_of_name: dict[bytes, int] = {}
        self._content_of_path: dict[tuple[Any, int], tuple[int, int]] = {}  # radix: (path, id) -> path, content
        self.lookups = [0, 0, 0, 0]  # queries and hits of newcomers, then of preempted requests

    def __getattr__(self, name: str) -> Any:
        return getattr(self.manager, name)

    @property
    def is_hash(self) -> bool:
        return isinstance(self.manager.prefix_cache, HashPrefixCache)

    # The manager's own calls.

    def get_computed_blocks(self, request: Request) -> PrefixMatch:
        contents = self.learn(request)
        before = self._state(order_of_use=False)
        match = self.manager.get_computed_blocks(request)
        assert self._state(order_of_use=False) == before, "a lookup changes no reference and no order"
        assert match.num_tokens == len(match.block_ids) * self.unit, "a hit is whole units"
        assert match.num_tokens <= request.num_tokens - 1, "the last token is always recomputed"
        assert list(match.block_ids) == ([] if request.skips_cache_read else self._longest_prefix(request, contents))
        held = self.promised if self.is_hash else self.written
        found = [content for block_id in match.block_ids for content in held[block_id]]
        assert found == contents[: match.num_tokens], "a hit holds exactly the request's prefix"
        assert not found or found[-1] in self.computed, "a hit is no longer than what somebody computed"
        return match

    def allocate_slots(self, request: Request, num_new: int, match: PrefixMatch = NO_MATCH, **options: Any) -> list[int] | None:
        contents = self.learn(request)
        fits, num_wanted = self._fits(request, num_new, match, **options)
        before, num_findable = self._state(), self.manager.prefix_cache.num_cached_keys
        num_free = self.manager.pool.num_free - (self.manager.prefix_cache.num_idle(match) if self.is_hash and match.block_ids else 0)
        held = list(self.manager.block_table(request))
        new_blocks = self.manager.allocate_slots(request, num_new, match, **options)
        assert (new_blocks is not None) is fits, "what fits is given, what does not is refused"
        if new_blocks is None:
            assert self._state() == before, "a refusal leaves everything as it was"
            return None
        table = self.manager.block_table(request)
        assert table == [*held, *match.block_ids, *new_blocks] and len(new_blocks) == num_wanted
        in_use = {block_id for holder in self.holders.values() for block_id in self.manager.block_table(holder) if holder is not request}
        assert NULL_BLOCK_ID not in new_blocks and not in_use & set(new_blocks), "a block in use is not handed out"
        if num_wanted <= num_free and not self.is_hash:
            assert self.manager.prefix_cache.num_cached_keys == num_findable, "nothing is evicted while blocks are free"
        self.holders[request.request_id] = request
        for block_id in new_blocks:
            self._named.pop(block_id, None)
            self.promised[block_id], self.written[block_id] = [None] * self.unit, [None] * self.unit
        start = request.num_computed_tokens + match.num_tokens
        end = min(start + num_new, request.num_tokens)
        for position in range(start, end):
            block_id = table[position // self.unit]
            assert block_id not in in_use and block_id not in self._named, "a step writes into no shared block"
            self.promised[block_id][position % self.unit] = contents[position]
        self.in_step[request.request_id] = start
        num_published = self._num_published.setdefault(request.request_id, len(match.block_ids))
        if self.is_hash:
            self.computed.update(contents[start:end])
            for index in range(num_published, end // self.unit):
                self._named[table[index]] = contents[(index + 1) * self.unit - 1]
            self._num_published[request.request_id] = max(num_published, end // self.unit)
        return new_blocks

    def publish_computed(self, request: Request) -> None:
        self.manager.publish_computed(request)
        self._assert_findable(request, min(request.num_computed_tokens, request.num_prompt_tokens))

    def unpublish(self, request: Request, num_tokens: int) -> None:
        for block_id in self.manager.block_table(request)[num_tokens // self.unit :]:
            self._named.pop(block_id, None)
        self.manager.unpublish(request, num_tokens)

    def free(self, request: Request) -> None:
        pool, table = self.manager.pool, list(self.manager.block_table(request))
        last_used = [block_id for block_id in reversed(table) if pool.ref_counts[block_id] == 1]
        queue = pool.free_queue.all_ids()
        self.manager.free(request)
        assert not self.manager.block_table(request)
        if self.is_hash:
            empty = [block_id for block_id in last_used if block_id not in self._named]
            kept = [block_id for block_id in last_used if block_id in self._named]
            assert pool.free_queue.all_ids() == [*empty, *queue, *kept], "deeper blocks die before their heads"
        if request.is_finished and table:
            self._assert_findable(request, request.num_computed_tokens)
        self.holders.pop(request.request_id, None)
        self._num_published.pop(request.request_id, None)
        self.in_step.pop(request.request_id, None)

    def record_lookup(self, request: Request, num_hits: int) -> None:
        self.manager.record_lookup(request, num_hits)
        if not request.skips_cache_read:
            first = 2 if request.num_preemptions else 0
            self.lookups[first] += request.num_tokens
            self.lookups[first + 1] += num_hits

    def reset_prefix_cache(self) -> bool:
        before = self._state()
        success = self.manager.reset_prefix_cache()
        assert success is (not self.holders), "a reset succeeds exactly while nobody holds a block"
        if success:
            assert self.manager.pool.num_free == self.manager.pool.num_usable
            assert self.manager.prefix_cache.num_cached_keys == 0
            for account in (self.promised, self.written, self._named, self.computed):
                account.clear()
        else:
            assert self._state() == before
        return success

    # The account.

    def learn(self, request: Request) -> list[int]:
        """The contents of the request's tokens; its names and paths must stand for nothing else."""
        contents = self.contents.of(request)
        if self.is_hash:
            assert len(request.block_hashes) == request.num_tokens // self.unit, "full blocks have names, partial ones none"
            for index, name in enumerate(request.block_hashes):
                content = contents[(index + 1) * self.unit - 1]
                assert self._content_of_name.setdefault(name, content) == content, "one name, two contents"
        else:
            path: Any = request.identity.namespace
            for token_id, content in zip(request.identity.content_ids(request.all_token_ids), contents):
                number = len(self._content_of_path)
                path, known = self._content_of_path.setdefault((path, token_id), (number, content))
                assert known == content, "one path, two contents"
        return contents

    def finish_step(self, shares: Sequence[Share]) -> None:
        """The step computed its tokens: all are written before any is read, as in a layer of the model."""
        for request, start, end, table in shares:
            contents = self.contents.of(request)
            for position in range(start, end):
                self.written[table[position // self.unit]][position % self.unit] = contents[position]
            self.computed.update(contents[:end])
        for request, _, end, table in shares:
            found = [self.written[table[position // self.unit]][position % self.unit] for position in range(end)]
            assert found == self.contents.of(request)[:end], f"{request} reads what is not its own past"
        self.in_step.clear()

    def fail_step(self) -> None:
        self.in_step.clear()

    def check(self) -> None:
        """The books after any rule."""
        pool, tables = self.manager.pool, [self.manager.block_table(holder) for holder in self.holders.values()]
        users = [0] * pool.num_blocks
        for table in tables:
            assert NULL_BLOCK_ID not in table and len(set(table)) == len(table)
            for block_id in table:
                users[block_id] += 1
        findable = self._findable()
        if not self.is_hash:
            for block_id in findable:
                users[block_id] += 1  # the tree itself
        assert pool.ref_counts[1:] == users[1:], "as many references as users"
        free = pool.free_queue.all_ids()
        assert sorted(free) == [block_id for block_id in range(1, pool.num_blocks) if not users[block_id]]
        num_in_use = len({block_id for table in tables for block_id in table})
        assert self.manager.num_available == pool.num_usable - num_in_use, "all that no request uses can be handed out"
        assert abs(self.manager.usage * pool.num_usable - num_in_use) < 1e-6
        for holder in self.holders.values():
            num_known = min(holder.num_computed_tokens, holder.num_tokens)
            table = self.manager.block_table(holder)
            assert len(table) * self.unit >= num_known
            in_blocks = [(table[position // self.unit], position % self.unit) for position in range(num_known)]
            contents = self.contents.of(holder)[:num_known]
            # A hit in this step may be promised only; what is older is written.
            certain = 0 if holder.request_id in self.in_step else num_known
            assert [self.written[block_id][offset] for block_id, offset in in_blocks[:certain]] == contents[:certain]
        promise = self.promised if self.in_step else self.written
        for block_id, content in findable.items():
            assert promise[block_id] == self.contents.run_up_to(content, self.unit), "cached content is what its name says"
        assert self.manager.prefix_cache.num_cached_keys == len(set(findable.values()))
        if self.is_hash:
            names = self.manager.prefix_cache.name_of_block
            assert {block_id: self._content_of_name[name] for block_id, name in names.items()} == self._named
        stats = self.manager.stats
        assert [stats.queries, stats.hits, stats.preempted_queries, stats.preempted_hits] == self.lookups

    def check_all_is_given_back(self) -> None:
        pool = self.manager.pool
        assert not self.holders and self.manager.num_available == pool.num_usable
        self.check()
        assert self.reset_prefix_cache()
        assert not any(pool.ref_counts[1:]) and sorted(pool.free_queue.all_ids()) == list(range(1, pool.num_blocks))

    def _findable(self) -> dict[int, int]:
        """Block -> content of its last token, for all that a lookup could find."""
        cache = self.manager.prefix_cache
        if not isinstance(cache, RadixPrefixCache):
            return self._named
        findable: dict[int, int] = {}
        paths: dict[Any, Any] = {}
        for node in cache.tree.nodes():
            path: Any = paths.get(node.parent, node.namespace)
            for offset, (token_id, slot) in enumerate(zip(node.tokens, node.slots)):
                path, content = self._content_of_path[(path, token_id)]
                assert slot % self.unit == offset % self.unit
                if offset % self.unit == self.unit - 1:
                    assert slot // self.unit not in findable, "a page is stored once"
                    findable[slot // self.unit] = content
            paths[node] = path
        assert len(set(findable.values())) == len(findable), "a content is stored once"
        return findable

    def _longest_prefix(self, request: Request, contents: list[int]) -> list[int]:
        blocks: dict[int, int] = {}
        for block_id, content in self._findable().items():
            blocks.setdefault(content, block_id)  # of equal ones, the first published
        ends = contents[self.unit - 1 : request.num_tokens - 1 : self.unit]
        prefix: list[int] = []
        for content in ends:
            if content not in blocks:
                break
            prefix.append(blocks[content])
        return prefix

    def _assert_findable(self, request: Request, num_tokens: int) -> None:
        findable = set(self._findable().values())
        full = self.learn(request)[self.unit - 1 : num_tokens : self.unit]
        assert findable.issuperset(full), "what was computed is found from now on"

    def _fits(
        self,
        request: Request,
        num_new: int,
        match: PrefixMatch,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        has_scheduled_requests: bool = True,
    ) -> tuple[bool, int]:
        used = {block_id for holder in self.holders.values() for block_id in self.manager.block_table(holder)}
        left = self.manager.pool.num_usable - len(used | set(match.block_ids))
        if has_scheduled_requests and request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
            left -= self.manager.watermark_blocks
        num_held = len(self.manager.block_table(request)) + len(match.block_ids)
        end = request.num_computed_tokens + match.num_tokens + num_new + num_lookahead_tokens
        num_wanted = -(-min(end, self.manager.max_model_len) // self.unit) - num_held
        num_whole = -(-request.num_tokens // self.unit) - num_held
        return max(num_wanted, num_whole if full_sequence_must_fit else 0) <= left, max(num_wanted, 0)

    def _state(self, order_of_use: bool = True) -> Any:
        pool, cache = self.manager.pool, self.manager.prefix_cache
        tables = {holder: list(self.manager.block_table(request)) for holder, request in self.holders.items()}
        cached = dict(cache.name_of_block) if isinstance(cache, HashPrefixCache) else self._findable()
        return pool.free_queue.all_ids(), list(pool.ref_counts), tables, cached, self.manager.num_available
