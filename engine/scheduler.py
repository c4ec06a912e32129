"""Scheduler: who computes how many tokens in the next step.

Continuous batching. In each step the running requests come first, in the order they were admitted; then waiting
requests join while budget, seats and blocks last. Each gets a number of tokens, prompt or output alike: a prompt
larger than the budget is computed in chunks. Cached tokens cost no budget.

When a running request finds no block, the newest one (or, by priority, the least urgent) is preempted: its blocks go
back, its tokens stay, and it is computed again later, mostly from its own cached blocks.

Source: vLLM 0.32.0, v1/core/sched/scheduler.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.admission_order import CACHE_AWARE_POLICIES, admission_order
from engine.config import EngineConfig
from engine.kvcache.kv_cache_manager import KVCacheManager
from engine.request import FinishReason, Request, RequestStatus
from engine.waiting_queue import open_waiting_queue


@dataclass(slots=True)
class ScheduledRequest:
    """One request's share of a step: its tokens [start, start + num_tokens)."""

    request: Request
    start: int  # tokens with K/V before this step
    num_tokens: int  # tokens to compute in it, at least one
    block_table: list[int]  # block ids that cover [0, start + num_tokens); the live list, do not keep or change it

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def samples(self) -> bool:
        """Whether the step computes the request's last token, whose logits choose the next one."""
        # Compared before the sampled token is appended.
        return self.end == self.request.num_tokens


@dataclass(slots=True)
class SchedulerOutput:
    """What one step computes, and what scheduling it did to the requests."""

    scheduled: list[ScheduledRequest] = field(default_factory=list)  # running requests first, then admitted ones
    admitted: list[tuple[Request, int]] = field(default_factory=list)  # first admissions, with cached tokens
    resumed: list[tuple[Request, int]] = field(default_factory=list)  # admissions after a preemption
    preempted: list[Request] = field(default_factory=list)
    is_short_of_blocks: bool = False  # who waits does so for blocks, not for a seat or for budget

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(item.num_tokens for item in self.scheduled)


class Scheduler:
    """Decides steps, and applies their results to the requests.

    config          limits and policy
    manager         blocks
    max_model_len   a request ends when it has this many tokens; its last position is never computed
    keeps_refunded  vLLM 0.32.0 leaves blocks findable that a step's own victim was to compute in that step, though nobody
                    computes them: the next hit reads K/V that was never written. Only for comparing with it.
    """

    def __init__(
        self, config: EngineConfig, manager: KVCacheManager, max_model_len: int, *, keeps_refunded: bool = False
    ) -> None:
        self.config = config
        self.manager = manager
        self.max_model_len = max_model_len
        self.keeps_refunded = keeps_refunded
        self.running: list[Request] = []
        self.waiting = open_waiting_queue(config.policy)
        self._in_flight: SchedulerOutput | None = None  # planned, and not yet told how it went
        self._ended_in_flight: list[ScheduledRequest] = []  # aborted meanwhile; their blocks are still written

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self.running) or len(self.waiting) > 0

    def add_request(self, request: Request) -> None:
        """Queue a request. One that can never fit waits at the head for ever: LLMEngine refuses those beforehand."""
        self.waiting.add(request)

    def schedule(self) -> SchedulerOutput:
        """Plan one step. On return the blocks are allocated and num_computed_tokens covers the step."""
        output = SchedulerOutput()
        budget = self._schedule_running(output, self.config.max_num_batched_tokens)
        # A step that preempted anyone admits nobody: the blocks just freed are needed by those who run.
        if output.preempted:
            output.is_short_of_blocks = True
        else:
            has_room = budget > 0 and len(self.running) < self.config.max_num_seqs
            if has_room and self.config.policy in CACHE_AWARE_POLICIES and len(self.waiting) > 1:
                self.waiting.reorder(admission_order(self.config.policy, list(self.waiting), self.manager))
            self._schedule_waiting(output, budget)
        for item in output.scheduled:
            item.request.num_computed_tokens += item.num_tokens
        self._in_flight = output
        return output

    def update_from_output(
        self, output: SchedulerOutput, sampled_token_ids: list[int | None], stop_token_ids: frozenset[int] = frozenset()
    ) -> list[Request]:
        """Append the sampled tokens; free and return the requests that ended, in the order scheduled.

        sampled_token_ids  aligned with output.scheduled; None where nothing was sampled
        stop_token_ids     the model's end-of-text tokens
        """
        self._in_flight = None
        for item in self._take_ended_in_flight():
            self.manager.free(item.request)
        finished: list[Request] = []
        for item, token_id in zip(output.scheduled, sampled_token_ids, strict=True):
            request = item.request
            if request.is_finished:
                continue  # aborted while the step ran
            self.manager.publish_computed(request)
            if token_id is None:
                continue
            if request.sampling_params.max_tokens > 0:
                request.append_output_token_ids((token_id,))
            reason = self._finish_reason(request, token_id, stop_token_ids)
            if reason is not None:
                if request.status is RequestStatus.PREEMPTED:
                    self.waiting.remove(request)  # its late token was its last; it holds no blocks
                request.finish(reason)
                finished.append(request)
        for request in finished:
            if request in self.running:
                self._remove(request)
        return finished

    def roll_back(self, output: SchedulerOutput) -> None:
        """The step failed: its blocks hold nothing, so they must not be found; its requests start over."""
        self._in_flight = None
        for item in output.scheduled:
            self.manager.unpublish(item.request, item.start)
        ended = self._take_ended_in_flight()
        # The last one first: each goes to the front of the queue, so their order is kept; and who found blocks of an
        # earlier one in this step lets go of them before it.
        for item in reversed(output.scheduled):
            if item in ended:
                # What a newcomer found may have been another's share of this very step.
                is_new = any(item.request is request for request, _ in output.admitted + output.resumed)
                item.request.num_computed_tokens = 0 if is_new else item.start
                self.manager.free(item.request)
            elif item.request.status is RequestStatus.RUNNING:
                self.running.remove(item.request)
                self._preempt(item.request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request now, wherever it is (abort, stop text)."""
        if not request.is_finished:
            was_running = request.status is RequestStatus.RUNNING
            request.finish(reason)
            item = self._item_in_flight(request)
            if not was_running:
                self.waiting.remove(request)
            elif item is not None:
                self.running.remove(request)
                self._ended_in_flight.append(item)  # its blocks are kept until the step is done: it writes them
            else:
                self._remove(request)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> tuple[bool, list[Request]]:
        """Forget all cached content; (success, requests preempted for it).

        Refused while requests hold blocks, unless `reset_running_requests` preempts them all first; and while a step
        runs, which writes into them.
        """
        if self._in_flight is not None and self._in_flight.scheduled:
            return False, []
        preempted: list[Request] = []
        if reset_running_requests:
            # The last one first: each goes to the front of the queue, so their order is kept.
            while self.running:
                request = self.running.pop()
                self._preempt(request)
                preempted.append(request)
        return self.manager.reset_prefix_cache(), preempted

    def _schedule_running(self, output: SchedulerOutput, budget: int) -> int:
        """Give every running request its next tokens, preempting where blocks lack; returns the budget left."""
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            num_new = self._capped(request.num_uncomputed_tokens, budget)
            # The last position of max_model_len is never an input.
            num_new = min(num_new, self.max_model_len - request.num_computed_tokens - 1)
            if num_new <= 0:
                index += 1
                continue
            while self.manager.allocate_slots(request, num_new) is None:
                victim = self._choose_victim()
                position = self.running.index(victim)
                self.running.remove(victim)
                refund = next((item for item in output.scheduled if item.request is victim), None)
                if refund is not None:
                    output.scheduled.remove(refund)
                    budget += refund.num_tokens
                    if not self.keeps_refunded:
                        self.manager.unpublish(victim, refund.start)
                if position < index:
                    index -= 1
                self._preempt(victim)
                output.preempted.append(victim)
                if victim is request:
                    return budget  # it is the newest itself: nobody else to take blocks from
            output.scheduled.append(self._scheduled(request, num_new))
            budget -= num_new
            index += 1
        return budget

    def _schedule_waiting(self, output: SchedulerOutput, budget: int) -> None:
        """Admit waiting requests in order while budget, seats and blocks last; the first that does not fit ends it."""
        config = self.config
        while len(self.waiting) and budget > 0 and len(self.running) < config.max_num_seqs:
            request = self.waiting.peek()
            match = self.manager.get_computed_blocks(request)
            num_remaining = request.num_tokens - match.num_tokens
            num_new = self._capped(num_remaining, None)
            if not config.enable_chunked_prefill and num_new > budget:
                return
            num_new = min(num_new, budget)
            blocks = self.manager.allocate_slots(
                request,
                num_new,
                match,
                full_sequence_must_fit=config.scheduler_reserve_full_isl,
                has_scheduled_requests=bool(self.running),
            )
            if blocks is None:
                output.is_short_of_blocks = True
                return
            self.waiting.pop()
            self.manager.record_lookup(request, match.num_tokens)
            if request.status is RequestStatus.PREEMPTED:
                output.resumed.append((request, match.num_tokens))
            else:
                request.num_cached_tokens = match.num_tokens
                output.admitted.append((request, match.num_tokens))
            request.status = RequestStatus.RUNNING
            request.num_computed_tokens = match.num_tokens
            self.running.append(request)
            output.scheduled.append(self._scheduled(request, num_new))
            budget -= num_new

    def _scheduled(self, request: Request, num_tokens: int) -> ScheduledRequest:
        return ScheduledRequest(request, request.num_computed_tokens, num_tokens, self.manager.block_table(request))

    def _capped(self, num_tokens: int, budget: int | None) -> int:
        cap = self.config.long_prefill_token_threshold
        # A request alone in the system has nobody to make way for.
        if cap and len(self.running) + len(self.waiting) > 1:
            num_tokens = min(num_tokens, cap)
        return num_tokens if budget is None else min(num_tokens, budget)

    def _choose_victim(self) -> Request:
        if self.config.policy == "priority":
            return max(self.running, key=lambda request: (request.priority, request.arrival_time))
        return self.running[-1]

    def _preempt(self, request: Request) -> None:
        """Take back a request's blocks (their content stays findable) and queue it in front."""
        self.manager.free(request)
        request.restart()
        self.waiting.prepend(request)

    def _item_in_flight(self, request: Request) -> ScheduledRequest | None:
        scheduled = self._in_flight.scheduled if self._in_flight is not None else []
        return next((item for item in scheduled if item.request is request), None)

    def _take_ended_in_flight(self) -> list[ScheduledRequest]:
        ended, self._ended_in_flight = self._ended_in_flight, []
        return ended

    def _remove(self, request: Request) -> None:
        self.running.remove(request)
        self.manager.free(request)

    def _finish_reason(self, request: Request, token_id: int, eos_token_ids: frozenset[int]) -> FinishReason | None:
        params = request.sampling_params
        if params.max_tokens == 0:
            return FinishReason.LENGTH  # whatever the token would have been
        if token_id in params.stop_token_ids or (token_id in eos_token_ids and not params.ignore_eos):
            return FinishReason.STOP
        if request.num_output_tokens >= params.max_tokens or request.num_tokens >= self.max_model_len:
            return FinishReason.LENGTH
        return None
