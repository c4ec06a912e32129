"""What the scheduler does when a step does not go as planned: nothing is found that was not computed."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.kvcache.open_kv_cache import open_kv_cache
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler import Scheduler


def open_scheduler(num_blocks, keeps_refunded=False, **fields):
    config = EngineConfig(**fields)
    manager, hasher = open_kv_cache(config, num_blocks, 100)
    scheduler = Scheduler(config, manager, 100, keeps_refunded=keeps_refunded)

    def make(name, ids, max_tokens=1, **more):
        return Request(name, ids, SamplingParams(max_tokens=max_tokens, ignore_eos=True), block_hasher=hasher, **more)

    return scheduler, make


@pytest.mark.parametrize("keeps_refunded, found", [(False, 16), (True, 20)])
def test_a_victim_whose_share_of_the_step_is_refunded_does_not_find_what_nobody_computed(keeps_refunded, found):
    """By priority the victim may have been scheduled already: vLLM 0.32.0 lets it find 20 tokens, of 16 computed."""
    scheduler, make = open_scheduler(
        8, keeps_refunded, block_size=4, policy="priority", long_prefill_token_threshold=8, scheduler_reserve_full_isl=False
    )
    scheduler.add_request(make("a", [1] * 25, 2, priority=2, arrival_time=0.0))
    scheduler.add_request(make("d", [3], priority=9, arrival_time=0.5))
    computed = resumed = 0
    for step in range(9):
        if step == 1:
            scheduler.add_request(make("c", [2] * 4, 5, priority=0, arrival_time=1.0))
        output = scheduler.schedule()
        for request, hits in output.resumed:
            resumed = hits
            assert computed == 16
        computed = max([computed, *(item.end for item in output.scheduled if item.request.request_id == "a")])
        scheduler.update_from_output(output, [7 if item.samples else None for item in output.scheduled])
    assert resumed == found


@pytest.mark.parametrize("cache", [{"block_size": 4}, {"prefix_cache": "radix", "page_size": 4}])
@pytest.mark.parametrize("step_fails", [True, False])
def test_a_request_aborted_while_its_step_runs_leaves_what_was_computed_and_no_more(cache, step_fails):
    scheduler, make = open_scheduler(12, **cache)
    request = make("a", [1] * 9)
    scheduler.add_request(request)
    output = scheduler.schedule()
    scheduler.finish(request, FinishReason.ABORT)
    assert not scheduler.running and scheduler.manager.pool.num_free < 11  # the step still writes its blocks
    if step_fails:
        scheduler.roll_back(output)
    else:
        assert scheduler.update_from_output(output, [5]) == []
    assert scheduler.manager.get_computed_blocks(make("twin", [1] * 9)).num_tokens == (0 if step_fails else 8)
    assert scheduler.manager.num_available == 11 and not scheduler.has_unfinished_requests
    assert scheduler.manager.block_table(request) == []


def test_a_request_aborted_between_steps_is_freed_at_once():
    scheduler, make = open_scheduler(12, block_size=4)
    request = make("a", [1] * 9, 5)
    scheduler.add_request(request)
    scheduler.update_from_output(scheduler.schedule(), [5])
    scheduler.finish(request, FinishReason.ABORT)
    assert scheduler.manager.num_available == 11


def test_a_preempted_request_whose_late_token_is_its_last_leaves_the_queue():
    """Steps that overlap: the second is planned, and preempts, before the first's token is known."""
    scheduler, make = open_scheduler(4, block_size=4, scheduler_reserve_full_isl=False)
    first, second = make("first", [1] * 4, 9), make("second", [2] * 4, 1)
    scheduler.add_request(first)
    scheduler.add_request(second)
    output = scheduler.schedule()
    scheduler.running.remove(second)
    scheduler._preempt(second)
    finished = scheduler.update_from_output(output, [5, 6])
    assert finished == [second] and second.output_token_ids == [6]
    assert scheduler.running == [first] and len(scheduler.waiting) == 0
    assert scheduler.manager.block_table(second) == []
