"""Scheduler over an audited manager, with a sampler that follows the content: small pools, aborts, failures, resets."""

from __future__ import annotations

import sys
from itertools import count
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import EngineConfig
from engine.kvcache.open_kv_cache import open_kv_cache
from engine.request import FinishReason, Request, RequestStatus, SamplingParams
from engine.scheduler import Scheduler, SchedulerOutput
from tests.engine.state_machines.audited_manager import AuditedManager, Share
from tests.engine.state_machines.content import IDENTITIES, NUM_CHUNK_KINDS, tokens_of, with_placeholders

PICK = st.integers(0, 99)
MOST_REQUESTS = 6
END_OF_TEXT = 3
ARRIVALS = st.lists(
    st.tuples(
        st.lists(st.integers(0, NUM_CHUNK_KINDS - 1), min_size=1, max_size=3),
        st.integers(1, 9),  # max_tokens
        st.sampled_from(IDENTITIES + IDENTITIES[:1] * 7),
        st.integers(0, 2),  # priority
        st.sampled_from([None, None, None, True]),  # skips reading the cache
        st.none() | st.integers(0, 2),  # goes on from this earlier request, its outputs included
    ),
    min_size=1,
    max_size=4,
)
LIMITS = st.fixed_dictionaries(
    {
        "max_num_batched_tokens": st.sampled_from([40, 40, 8, 3, 1]),
        "max_num_seqs": st.sampled_from([5, 5, 2, 1]),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 2]),
        "enable_chunked_prefill": st.sampled_from([True, True, False]),
        "scheduler_reserve_full_isl": st.booleans(),
        "watermark": st.sampled_from([0.0, 0.0, 0.2]),
    }
)


class SchedulerMachine(RuleBasedStateMachine):
    cache: ClassVar[str]
    unit: ClassVar[int]
    policy: ClassVar[str]

    @initialize(num_usable=st.integers(4, 10), limits=LIMITS)
    def open(self, num_usable: int, limits: dict) -> None:
        self.config = EngineConfig(
            prefix_cache=self.cache, block_size=self.unit, page_size=self.unit, policy=self.policy, **limits
        )
        manager, self.hasher = open_kv_cache(self.config, num_usable + 1, 10_000, count().__next__)
        self.manager = AuditedManager(manager)
        self.scheduler = Scheduler(self.config, self.manager, max_model_len=10_000)  # type: ignore[arg-type]
        self.capacity = num_usable * self.unit
        self.numbers = count()
        self.unfinished: list[Request] = []
        self.past: list[Request] = []
        self.fields: dict[str, dict] = {}
        self.empty_steps = 0
        self.age = 0  # rules since the cache was last emptied on purpose: rules that end much wait for much to end

    # What is done to the scheduler.

    @precondition(lambda self: len(self.unfinished) < MOST_REQUESTS)
    @rule(arrivals=ARRIVALS)
    def arrive(self, arrivals: list) -> None:
        for prompt, max_tokens, fields, priority, skips, earlier in arrivals[: MOST_REQUESTS - len(self.unfinished)]:
            tokens, most = tokens_of(prompt, self.unit), self.capacity
            if earlier is not None and self.past:
                before = self.past[-1 - earlier % len(self.past)]
                tokens, fields = before.all_token_ids[: self.capacity // 2] + tokens[:1], self.fields[before.request_id]
            if not self.config.enable_chunked_prefill:
                most = min(most, self.config.max_num_batched_tokens + 1)  # preempted, it is recomputed in one step
            # The engine refuses what can never be served.
            tokens = tokens[: most - 1]
            tokens, fields = with_placeholders(tokens, fields)
            params = SamplingParams(max_tokens=min(max_tokens, most - len(tokens)), skip_reading_prefix_cache=skips)
            number = next(self.numbers)
            request = Request(
                f"r{number}", tokens, params, priority=priority, arrival_time=float(number), block_hasher=self.hasher, **fields
            )
            self.fields[request.request_id] = fields
            self.past.append(request)
            self.unfinished.append(request)
            self.scheduler.add_request(request)

    @precondition(lambda self: self.unfinished)
    @rule(steps=st.integers(1, 5))
    def some_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.one_step()

    @precondition(lambda self: self.unfinished and self.age % 3 == 1)
    @rule(pick=PICK)
    def a_step_with_an_abort_under_way(self, pick: int) -> None:
        self.one_step(aborted=self.unfinished[pick % len(self.unfinished)])

    @precondition(lambda self: self.unfinished and self.age % 4 == 2)
    @rule(pick=st.none() | PICK)
    def a_step_that_fails(self, pick: int | None) -> None:
        """Perhaps with an abort while it runs."""
        output, _ = self.schedule()
        if pick is not None:
            self.end_now(self.unfinished[pick % len(self.unfinished)], under_way=True)
        before = list(self.scheduler.waiting)
        self.scheduler.roll_back(output)
        self.manager.fail_step()
        if self.policy == "fcfs":
            rolled_back = [item.request for item in output.scheduled if not item.request.is_finished]
            assert list(self.scheduler.waiting) == rolled_back + before, "they start over in the order they had"

    @precondition(lambda self: self.unfinished and self.age % 3 == 2)
    @rule(pick=PICK)
    def abort(self, pick: int) -> None:
        self.end_now(self.unfinished[pick % len(self.unfinished)])

    def end_now(self, request: Request, under_way: bool = False) -> None:
        self.scheduler.finish(request, FinishReason.ABORT)
        self.unfinished.remove(request)
        assert request.is_finished and request.finish_reason is FinishReason.ABORT
        assert under_way or not self.manager.block_table(request), "an aborted request holds nothing"

    @precondition(lambda self: self.scheduler.running or self.age >= 8)
    @rule(running_too=st.sampled_from([False, False, False, False, True]))
    def reset(self, running_too: bool) -> None:
        running = list(self.scheduler.running)
        success, preempted = self.scheduler.reset_prefix_cache(running_too)
        assert preempted == (running[::-1] if running_too else []) and success is (running_too or not running)

    @precondition(lambda self: self.age >= 8)
    @rule()
    def everything_is_served(self) -> None:
        """No starvation: a first come is never preempted, so each step brings the head one token further."""
        num_tokens = sum(request.num_prompt_tokens + request.sampling_params.max_tokens for request in self.unfinished)
        # By priority a less urgent one may be computed and preempted while a more urgent one runs.
        num_steps = num_tokens if self.policy == "fcfs" else num_tokens * (len(self.unfinished) + 1)
        while self.unfinished:
            assert num_steps > 0, "a request that fits must end"
            num_steps -= 1
            self.one_step()
        assert not self.scheduler.has_unfinished_requests
        self.manager.check_all_is_given_back()
        self.age = 0

    # One step, and what each must keep to.

    def one_step(self, aborted: Request | None = None) -> None:
        output, shares = self.schedule()
        sampled = [self.sample(request, end) if end == request.num_tokens else None for request, _, end, _ in shares]
        assert [token_id is not None for token_id in sampled] == [item.samples for item in output.scheduled]
        if aborted is not None:
            self.end_now(aborted, under_way=True)
        self.manager.finish_step(shares)
        finished = self.scheduler.update_from_output(output, sampled, frozenset({END_OF_TEXT}))
        assert aborted is None or not self.manager.block_table(aborted), "the step is done: an aborted request holds nothing"
        for request in finished:
            assert request.is_finished and not self.manager.block_table(request)
            self.unfinished.remove(request)
        for request in self.unfinished:
            assert request.num_output_tokens < request.sampling_params.max_tokens
            assert END_OF_TEXT not in request.output_token_ids

    def sample(self, request: Request, end: int) -> int:
        """Equal pasts, equal tokens; now and then the end."""
        content = self.manager.contents.of(request)[end - 1]
        return END_OF_TEXT if content % 11 == 10 else 1 + content % 2

    def schedule(self) -> tuple[SchedulerOutput, list[Share]]:
        config, scheduler = self.config, self.scheduler
        running, waiting = list(scheduler.running), list(scheduler.waiting)
        num_computed = {request.request_id: request.num_computed_tokens for request in running}
        output = scheduler.schedule()
        requests = [item.request for item in output.scheduled]
        assert len(set(map(id, requests))) == len(requests), "a request has one share of a step"
        assert output.num_scheduled_tokens <= config.max_num_batched_tokens
        assert len(scheduler.running) <= config.max_num_seqs
        newcomers = output.admitted + output.resumed
        joined = [request for request in requests if not any(request is old for old in running)]
        assert joined == waiting[: len(joined)] and len(joined) == len(newcomers), "nobody overtakes"
        assert requests[: len(requests) - len(joined)] == [r for r in running if r in requests], "running ones come first"
        assert not (output.preempted and joined), "a step that preempts admits nobody"
        assert scheduler.running == [r for r in running if r not in output.preempted] + joined
        assert not set(map(id, output.preempted)) & set(map(id, requests))
        if self.policy == "fcfs":
            assert output.preempted == running[::-1][: len(output.preempted)], "the newest is preempted first"
        shares: list[Share] = []
        for item in output.scheduled:
            request = item.request
            assert item.num_tokens > 0 and request.num_computed_tokens == item.end <= request.num_tokens
            assert len(item.block_table) * self.unit >= item.end
            if request in joined:
                assert (request, item.start) in newcomers
            else:
                assert item.start == num_computed[request.request_id]
            if config.long_prefill_token_threshold and len(self.unfinished) > 1:
                assert item.num_tokens <= config.long_prefill_token_threshold
            shares.append((request, item.start, item.end, list(item.block_table)))
        # By priority the request that finds no block may be the first and the victim: then nobody is scheduled.
        assert requests or output.preempted or not self.unfinished, "a step computes something"
        self.empty_steps = 0 if requests else self.empty_steps + 1
        assert self.empty_steps <= MOST_REQUESTS
        return output, shares

    @invariant()
    def the_books_are_right(self) -> None:
        self.manager.check()
        self.age += 1

    @invariant()
    def every_request_is_in_one_place(self) -> None:
        running, waiting = self.scheduler.running, list(self.scheduler.waiting)
        assert sorted(r.request_id for r in running + waiting) == sorted(r.request_id for r in self.unfinished)
        assert all(request.status is RequestStatus.RUNNING for request in running)
        assert all(request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED) for request in waiting)
        assert set(self.manager.holders) == {request.request_id for request in running}, "only the running hold blocks"
        assert all(request.num_computed_tokens == 0 for request in waiting)
        if self.policy == "priority":
            assert waiting == sorted(waiting, key=lambda request: (request.priority, request.arrival_time))

    def teardown(self) -> None:
        if hasattr(self, "manager") and sys.exception() is None:
            self.everything_is_served()


def scheduler_machine(cache: str, unit: int, policy: str) -> type[SchedulerMachine]:
    name = f"SchedulerMachine_{cache}_{unit}_{policy}"
    return type(name, (SchedulerMachine,), {"cache": cache, "unit": unit, "policy": policy})
