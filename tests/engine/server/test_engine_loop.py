"""The loop between the engine's thread and the clients: what goes in comes out, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import pytest

from engine.config import EngineConfig
from engine.request import FinishReason, SamplingParams
from engine.server.engine_loop import EngineLoop
from engine.server.open_engine import open_engine
from engine.server.requests.refusal import QueueFull, Refusal

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Notes:
    """An observer that keeps everything."""

    def __init__(self):
        self.steps, self.finished = [], []

    def observe_step(self, report):
        self.steps.append(report)

    def observe_finished(self, report):
        self.finished.append(report)


@contextmanager
def running(pace=0.0, max_waiting=512, **fields):
    engine = open_engine(EngineConfig(model="smollm2-135m", **fields), "sim", pace=pace)
    notes = Notes()
    loop = EngineLoop(engine, notes, max_waiting=max_waiting)
    loop.notes = notes
    yield loop
    loop.stop()


def make(loop, prompt=(1, 2, 3), max_tokens=4, **fields):
    return loop.engine.make_request(list(prompt), SamplingParams(max_tokens=max_tokens, ignore_eos=True), **fields)


def start(loop):
    event_loop = asyncio.get_running_loop()
    loop.start(event_loop.call_soon_threadsafe)


async def test_outputs_come_back_to_the_ticket_of_their_request():
    with running() as loop:
        start(loop)
        tickets = loop.submit([make(loop, [n, n + 1, n + 2], max_tokens=n + 1) for n in range(9)])
        outputs = await asyncio.gather(*(ticket.finished() for ticket in tickets))
        alone = [
            loop.engine.generate([[n, n + 1, n + 2]], SamplingParams(max_tokens=n + 1, ignore_eos=True))[0] for n in range(9)
        ]
    assert [output.output_token_ids for output in outputs] == [output.output_token_ids for output in alone]
    assert loop.num_unfinished == 0


async def test_a_slow_client_gets_more_tokens_at_once_and_no_queue_grows():
    with running(pace=1.0) as loop:
        start(loop)
        (ticket,) = loop.submit([make(loop, max_tokens=400)], is_streaming=True)
        first = await ticket.next()
        while loop.num_unfinished:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        last = await ticket.next()
    assert not first.finished and last.finished and len(last.output_token_ids) == 400


async def test_an_aborted_request_gives_its_blocks_back_and_its_client_what_there_is():
    with running(pace=1.0) as loop:
        start(loop)
        (ticket,) = loop.submit([make(loop, max_tokens=4000)], is_streaming=True)
        await ticket.next()
        loop.abort([ticket])
        output = await ticket.finished()
        assert output.finish_reason is FinishReason.ABORT
        assert loop.engine.manager.usage == 0.0 and loop.num_unfinished == 0
        assert [report.reason for report in loop.notes.finished] == [FinishReason.ABORT]


async def test_a_full_queue_refuses_all_of_a_request_or_nothing():
    with running(pace=1.0, max_waiting=2, max_num_seqs=1) as loop:
        start(loop)
        (first,) = loop.submit([make(loop, max_tokens=3000)], is_streaming=True)
        await first.next()
        loop.submit([make(loop)])
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFull) as refusal:
            loop.submit([make(loop), make(loop)])
        assert refusal.value.status == 503 and loop.num_unfinished == 2
        loop.submit([make(loop)])
        assert loop.num_unfinished == 3


async def test_who_waits_for_blocks_counts_as_waiting_though_seats_are_free():
    with running(pace=50.0, max_waiting=1, num_gpu_blocks=9) as loop:
        start(loop)
        (first,) = loop.submit([make(loop, range(100), max_tokens=20)], is_streaming=True)
        await first.next()
        loop.submit([make(loop, range(1, 101), max_tokens=20)])
        await asyncio.sleep(0.05)
        with pytest.raises(QueueFull):
            loop.submit([make(loop)])


async def test_a_failing_step_ends_the_requests_it_computed_and_the_loop_goes_on():
    with running() as loop:
        start(loop)
        execute = loop.engine.runner.execute

        def fail_on_a_long_prompt(plan):
            if any(item.request.num_prompt_tokens == 77 for item in plan.scheduled):
                raise RuntimeError("something of the prompt")
            return execute(plan)

        loop.engine.runner.execute = fail_on_a_long_prompt
        (bad,) = loop.submit([make(loop, range(77))])
        with pytest.raises(Refusal) as refusal:
            await asyncio.wait_for(bad.finished(), 10)
        assert refusal.value.status == 500 and "prompt" not in refusal.value.message
        (good,) = loop.submit([make(loop)])
        assert (await good.finished()).finish_reason is FinishReason.LENGTH
        assert loop.is_healthy and loop.num_unfinished == 0 and loop.engine.manager.usage == 0.0


async def test_a_step_that_cannot_even_be_planned_ends_all_and_the_loop_goes_on():
    with running() as loop:

        def fail():
            raise RuntimeError

        loop.engine.scheduler.schedule = fail
        start(loop)
        (ticket,) = loop.submit([make(loop)])
        with pytest.raises(Refusal):
            await asyncio.wait_for(ticket.finished(), 10)
        assert loop.engine.scheduler.schedule is not fail  # the engine made a new scheduler for itself
        (good,) = loop.submit([make(loop)])
        assert (await good.finished()).finished and loop.is_healthy


async def test_a_dead_loop_says_so_and_leaves_nobody_waiting():
    with running() as loop:
        loop.notes.observe_step = None  # an observer that breaks is a fault of ours, and must not go unseen
        start(loop)
        (ticket,) = loop.submit([make(loop)])
        with pytest.raises(Refusal) as refusal:
            await ticket.finished()
        assert refusal.value.status == 503
        loop._thread.join(5)
        assert not loop.is_healthy
        with pytest.raises(Refusal):
            loop.submit([make(loop)])
        assert await asyncio.wrap_future(loop.reset()) is False


async def test_more_prompts_than_could_ever_wait_are_no_matter_of_coming_back_later():
    with running(max_waiting=1, max_num_seqs=2) as loop:
        start(loop)
        with pytest.raises(Refusal) as refusal:
            loop.submit([make(loop) for _ in range(4)])
        assert (refusal.value.status, refusal.value.message) == (400, "4 prompts; accepted: up to 3 at once")


async def test_a_reset_waits_for_no_one_and_a_flush_wants_an_idle_engine():
    with running(pace=1.0) as loop:
        start(loop)
        (ticket,) = loop.submit([make(loop, range(64), max_tokens=3000)], is_streaming=True)
        await ticket.next()
        assert await asyncio.wrap_future(loop.reset()) is False
        assert await asyncio.wrap_future(loop.flush()) is False
        assert await asyncio.wrap_future(loop.reset(reset_running_requests=True)) is True
        loop.abort([ticket])
        await ticket.finished()
        assert await asyncio.wrap_future(loop.flush()) is True


async def test_the_reports_add_up_to_what_the_clients_were_told():
    with running() as loop:
        start(loop)
        told = []
        for _ in range(3):
            (ticket,) = loop.submit([make(loop, range(100), max_tokens=5)], is_streaming=True)
            told.append(await ticket.finished())
        steps, finished = loop.notes.steps, loop.notes.finished
    assert sum(step.lookups.hits for step in steps) == sum(output.num_cached_tokens for output in told) == 2 * 96
    assert sum(step.lookups.queries for step in steps) == 300
    assert sum(step.num_new_tokens for step in steps) == 15
    assert [pair for step in steps for pair in step.first_tokens] == [(100, 0), (100, 96), (100, 96)]
    assert [flag for step in steps for flag in step.streaming_ttfts] == [True] * 3
    assert [(one.num_prompt_tokens, one.num_cached_tokens, one.num_output_tokens) for one in finished] == [
        (100, 0, 5), (100, 96, 5), (100, 96, 5)
    ]  # fmt: skip
    assert steps[-1].num_running == steps[-1].num_waiting == 0
