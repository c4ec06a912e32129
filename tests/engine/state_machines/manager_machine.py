"""KVCacheManager under any order of lookups, allocations, steps that end or fail, preemptions, ends and resets."""

from __future__ import annotations

import sys
from itertools import count
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import EngineConfig
from engine.kvcache.open_kv_cache import open_kv_cache
from engine.request import FinishReason, Request, RequestStatus, SamplingParams
from tests.engine.state_machines.audited_manager import AuditedManager, Share
from tests.engine.state_machines.content import IDENTITIES, NUM_CHUNK_KINDS, tokens_of, with_placeholders

PICK = st.integers(0, 99)
MOST_REQUESTS = 5
ARRIVALS = st.lists(
    st.tuples(
        st.lists(st.integers(0, NUM_CHUNK_KINDS - 1), min_size=1, max_size=3),
        st.sampled_from(IDENTITIES + IDENTITIES[:1] * 5),
        st.sampled_from([None, None, None, True]),  # skips reading the cache
        st.none() | st.integers(0, 2),  # goes on from this earlier request, its outputs included
    ),
    min_size=1,
    max_size=3,
)


class ManagerMachine(RuleBasedStateMachine):
    cache: ClassVar[str]
    unit: ClassVar[int]

    @initialize(num_usable=st.integers(2, 12), watermark=st.sampled_from([0.0, 0.2]))
    def open(self, num_usable: int, watermark: float) -> None:
        config = EngineConfig(prefix_cache=self.cache, block_size=self.unit, page_size=self.unit, watermark=watermark)
        # No two readings of the clock are equal, as the tree's order wants.
        manager, self.hasher = open_kv_cache(config, num_usable + 1, 10_000, count().__next__)
        self.manager = AuditedManager(manager)
        self.numbers = count()
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.step: list[Share] = []
        self.past: list[Request] = []
        self.fields: dict[str, dict] = {}
        self.age = 0  # rules since the cache was last emptied on purpose: rules that end much wait for much to end

    def in_step(self, request: Request) -> bool:
        return any(share[0] is request for share in self.step)

    @property
    def idle(self) -> list[Request]:
        """Running requests outside the step under way."""
        return [request for request in self.running if not self.in_step(request)]

    @precondition(lambda self: len(self.waiting) + len(self.running) < MOST_REQUESTS)
    @rule(arrivals=ARRIVALS)
    def arrive(self, arrivals: list) -> None:
        for prompt, fields, skips, earlier in arrivals[: MOST_REQUESTS - len(self.waiting) - len(self.running)]:
            tokens, params = tokens_of(prompt, self.unit), SamplingParams(skip_reading_prefix_cache=skips)
            if earlier is not None and self.past:
                before = self.past[-1 - earlier % len(self.past)]
                tokens, fields = before.all_token_ids[: 4 * self.unit] + tokens[:1], self.fields[before.request_id]
            tokens, fields = with_placeholders(tokens, fields)
            request = Request(f"r{next(self.numbers)}", tokens, params, block_hasher=self.hasher, **fields)
            self.fields[request.request_id] = fields
            self.waiting.append(request)
            self.past.append(request)

    @precondition(lambda self: self.waiting)
    @rule(pick=PICK, cut=st.sampled_from([0, 0, 1, 5]), lookahead=st.sampled_from([0, 0, 3]), whole=st.booleans(), others=st.booleans())
    def admit(self, pick: int, cut: int, lookahead: int, whole: bool, others: bool) -> None:
        request = self.waiting[pick % len(self.waiting)]
        match = self.manager.get_computed_blocks(request)
        num_new = max(request.num_tokens - match.num_tokens - cut, 1)
        options = {"num_lookahead_tokens": lookahead, "full_sequence_must_fit": whole, "has_scheduled_requests": others}
        if self.manager.allocate_slots(request, num_new, match, **options) is None:
            return
        self.waiting.remove(request)
        self.running.append(request)
        self.manager.record_lookup(request, match.num_tokens)
        request.status, request.num_computed_tokens = RequestStatus.RUNNING, match.num_tokens
        self.plan(request, num_new)

    @precondition(lambda self: self.idle)
    @rule(pick=PICK, most=st.sampled_from([99, 1, 3]), lookahead=st.sampled_from([0, 0, 3]))
    def go_on(self, pick: int, most: int, lookahead: int) -> None:
        request = self.idle[pick % len(self.idle)]
        num_new = min(request.num_uncomputed_tokens, most)
        if self.manager.allocate_slots(request, num_new, num_lookahead_tokens=lookahead) is not None:
            self.plan(request, num_new)

    def plan(self, request: Request, num_new: int) -> None:
        start = request.num_computed_tokens
        request.num_computed_tokens += num_new
        table = list(self.manager.block_table(request))
        self.step.append((request, start, start + num_new, table))

    @precondition(lambda self: self.waiting or self.running)
    @rule(sampled=st.lists(st.integers(1, 2), min_size=MOST_REQUESTS, max_size=MOST_REQUESTS))
    def all_go_on(self, sampled: list[int]) -> None:
        """A whole step as a scheduler would have it: everybody computes all it can, the waiting join."""
        for _ in self.idle:
            if self.idle:
                self.go_on(0, 99, 0)
        for _ in range(len(self.waiting)):
            self.admit(0, 0, 0, True, bool(self.running))
        self.the_step_ends(sampled)

    @precondition(lambda self: self.step)
    @rule(sampled=st.lists(st.integers(1, 2), min_size=MOST_REQUESTS, max_size=MOST_REQUESTS))
    def the_step_ends(self, sampled: list[int]) -> None:
        step, self.step = self.step, []
        self.manager.finish_step(step)
        for (request, _, end, _), token_id in zip(step, sampled):
            self.manager.publish_computed(request)
            if end == request.num_tokens:
                request.append_output_token_ids((token_id,))

    @precondition(lambda self: self.step and self.age % 4 == 3)
    @rule()
    def the_step_fails(self) -> None:
        step, self.step = self.step, []
        for request, start, _, _ in step:
            self.manager.unpublish(request, start)
        for request, _, _, _ in reversed(step):  # who published a block gives it back after those who hit it
            self.take_back(request)
        self.manager.fail_step()

    @precondition(lambda self: self.idle)
    @rule(pick=PICK)
    def preempt(self, pick: int) -> None:
        self.take_back(self.idle[pick % len(self.idle)])

    def take_back(self, request: Request) -> None:
        self.running.remove(request)
        self.manager.free(request)
        request.restart()
        self.waiting.append(request)

    @precondition(lambda self: self.idle)
    @rule(pick=PICK)
    def end(self, pick: int) -> None:
        request = self.idle[pick % len(self.idle)]
        self.running.remove(request)
        request.finish(FinishReason.ABORT)
        self.manager.free(request)
        self.manager.free(request)  # an unknown id is ignored

    @precondition(lambda self: not self.step and (self.running or self.age >= 12))
    @rule()
    def reset(self) -> None:
        if self.manager.reset_prefix_cache():
            self.age = 0

    @precondition(lambda self: not self.step and self.age >= 12)
    @rule()
    def everything_ends(self) -> None:
        while self.running:
            self.end(0)
        self.manager.check_all_is_given_back()
        self.age = 0

    @invariant()
    def the_books_are_right(self) -> None:
        self.manager.check()
        self.age += 1

    def teardown(self) -> None:
        if hasattr(self, "manager") and sys.exception() is None:
            if self.step:
                self.the_step_ends([1] * MOST_REQUESTS)
            self.everything_ends()


def manager_machine(cache: str, unit: int) -> type[ManagerMachine]:
    return type(f"ManagerMachine_{cache}_{unit}", (ManagerMachine,), {"cache": cache, "unit": unit})
