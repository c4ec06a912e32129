"""The scheduler, with the numbers of vLLM's own unit tests: items 53 to 59 of tests/CONFORMANCE.md."""

from __future__ import annotations

from typing import Callable

import pytest

from engine.config import EngineConfig
from engine.kvcache.open_kv_cache import open_kv_cache
from engine.request import Request, RequestStatus, SamplingParams
from engine.scheduler import Scheduler, SchedulerOutput


class Serving:
    """A scheduler without a model: every request that samples gets token 0."""

    def __init__(self, num_blocks: int = 10_000, **fields) -> None:
        config = EngineConfig(**fields)
        self.manager, self.hasher = open_kv_cache(config, num_blocks, 8_192)
        self.scheduler = Scheduler(config, self.manager, 8_192)

    def add(self, name: int, num_tokens: int, max_tokens: int = 16, **fields) -> Request:
        """A prompt unlike all others."""
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        request = Request(str(name), [name] * num_tokens, params, block_hasher=self.hasher, **fields)
        self.scheduler.add_request(request)
        return request

    def finish_step(self, plan: SchedulerOutput) -> None:
        self.scheduler.update_from_output(plan, [0 if item.samples else None for item in plan.scheduled])

    def step(self) -> dict[str, int]:
        """The tokens each request computed in one step."""
        plan = self.scheduler.schedule()
        self.finish_step(plan)
        return tokens(plan)

    def step_until(self, done: Callable[[], bool]) -> None:
        for _ in range(20):
            if done():
                return
            self.step()
        raise AssertionError("it did not happen within 20 steps")

    @property
    def waiting(self) -> list[str]:
        return [request.request_id for request in self.scheduler.waiting]

    @property
    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]


def tokens(plan: SchedulerOutput) -> dict[str, int]:
    return {item.request.request_id: item.num_tokens for item in plan.scheduled}


def test_the_last_request_is_preempted_for_a_block_and_its_late_token_still_counts():
    serving = Serving(num_blocks=11, block_size=16, enable_prefix_caching=False)
    first = serving.add(0, 80)
    plan_of_first = serving.scheduler.schedule()
    second = serving.add(1, 80)
    plan_of_second = serving.scheduler.schedule()  # planned before the first step's result is in
    assert tokens(plan_of_second) == {"1": 80} and serving.manager.pool.num_free == 0
    serving.finish_step(plan_of_first)
    plan = serving.scheduler.schedule()  # the first request's 81st token finds no block
    assert plan.preempted == [second] and tokens(plan) == {"0": 1}
    assert second.status is RequestStatus.PREEMPTED and serving.running == ["0"] and serving.waiting == ["1"]
    serving.scheduler.update_from_output(plan_of_second, [42])
    assert second.output_token_ids == [42] and first.output_token_ids == [0]


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_three_prompts_of_800_share_a_budget_of_1024_under_a_cap_of_400(enable_prefix_caching):
    serving = Serving(
        max_num_batched_tokens=1024, long_prefill_token_threshold=400, enable_prefix_caching=enable_prefix_caching
    )
    for name in (1, 2, 3):
        serving.add(name, 800)
    assert [list(serving.step().values()) for _ in range(4)] == [[400, 400, 224], [400, 400, 224], [1, 1, 352], [1, 1, 1]]


def test_a_request_alone_is_not_capped():
    serving = Serving(max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    serving.add(1, 2048)
    assert [serving.step() for _ in range(2)] == [{"1": 1024}, {"1": 1024}]


def test_a_request_beside_others_is_capped():
    serving = Serving(max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    for name in (1, 2):
        serving.add(name, 2048)
    assert serving.step() == {"1": 400, "2": 400}


def test_an_admission_that_was_tried_again_counts_one_query():
    serving = Serving(num_blocks=11, block_size=16)
    serving.add(1, 100, max_tokens=4)
    serving.step()
    late = serving.add(2, 100)
    for _ in range(2):
        assert "2" not in serving.step() and late.status is RequestStatus.WAITING
    serving.step_until(lambda: late.status is RequestStatus.RUNNING)
    stats = serving.manager.take_stats()
    assert (stats.requests, stats.queries, stats.hits) == (2, 200, 0)


def test_later_chunks_of_a_prompt_count_no_query():
    serving = Serving(max_num_batched_tokens=64)
    serving.add(1, 200)
    assert [serving.step()["1"] for _ in range(4)] == [64, 64, 64, 8]
    stats = serving.manager.take_stats()
    assert (stats.requests, stats.queries) == (1, 200)


def test_without_caching_no_query_is_counted():
    serving = Serving(enable_prefix_caching=False)
    serving.add(1, 100)
    serving.step()
    stats = serving.manager.take_stats()
    assert (stats.requests, stats.queries, stats.preempted_requests) == (0, 0, 0)


def test_a_resumed_request_counts_among_the_preempted():
    serving = Serving(num_blocks=11, block_size=16)
    serving.add(1, 80, max_tokens=3)
    second = serving.add(2, 80, max_tokens=3)
    serving.step()
    first_admissions = serving.manager.take_stats()
    assert (first_admissions.requests, first_admissions.queries, first_admissions.preempted_requests) == (2, 160, 0)
    serving.step_until(lambda: second.status is RequestStatus.PREEMPTED)
    serving.step_until(lambda: second.status is not RequestStatus.PREEMPTED)
    stats = serving.manager.take_stats()
    assert (stats.requests, stats.queries) == (0, 0)
    assert (stats.preempted_requests, stats.preempted_queries) == (1, 81) and stats.preempted_hits > 0


def test_a_reset_is_refused_while_requests_run_and_a_forced_one_keeps_their_order():
    serving = Serving()
    for name in (1, 2, 3):
        serving.add(name, 100)
    serving.step()
    assert serving.scheduler.reset_prefix_cache() == (False, []) and serving.running == ["1", "2", "3"]
    success, preempted = serving.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert success and [request.request_id for request in preempted] == ["3", "2", "1"]
    assert serving.running == [] and serving.waiting == ["1", "2", "3"]
    assert serving.manager.prefix_cache.num_cached_keys == 0


def test_by_priority_the_lowest_value_is_served_first_and_ties_by_arrival():
    serving = Serving(policy="priority", max_num_seqs=2)
    for name, (priority, arrival) in enumerate([(2, 1.0), (0, 3.0), (1, 2.0), (0, 2.5)]):
        serving.add(name, 10, priority=priority, arrival_time=arrival)
    serving.step()
    assert serving.running == ["3", "1"] and serving.waiting == ["2", "0"]


def test_by_priority_the_highest_value_is_preempted_and_of_equals_the_later_arrival():
    for (priority_a, arrival_a), (priority_b, arrival_b), victim in (
        ((1, 1.0), (5, 0.0), "2"),
        ((5, 0.0), (1, 1.0), "1"),
        ((1, 2.0), (1, 1.0), "1"),
    ):
        serving = Serving(num_blocks=11, block_size=16, policy="priority")
        serving.add(1, 80, priority=priority_a, arrival_time=arrival_a)
        serving.add(2, 80, priority=priority_b, arrival_time=arrival_b)
        serving.step()
        plan = serving.scheduler.schedule()
        assert [request.request_id for request in plan.preempted] == [victim]


def test_by_priority_nobody_is_preempted_while_there_is_room():
    serving = Serving(policy="priority")
    serving.add(1, 80, priority=5)
    serving.step()
    serving.add(2, 80, priority=0)
    plan = serving.scheduler.schedule()
    assert plan.preempted == [] and tokens(plan) == {"1": 1, "2": 80}
