"""The loop between the engine's thread and the clients: what goes in comes out, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import threading
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


async def test_an_aborted_request_keeps_the_log_probabilities_of_its_tokens():
    with running(pace=1.0) as loop:
        start(loop)
        params = SamplingParams(max_tokens=4000, ignore_eos=True, logprobs=1, prompt_logprobs=0)
        (ticket,) = loop.submit([loop.engine.make_request([1, 2, 3], params)], is_streaming=True)
        await ticket.next()
        loop.abort([ticket])
        output = await ticket.finished()
        assert output.finish_reason is FinishReason.ABORT and output.output_token_ids
        assert [one.token_id for one in output.logprobs] == output.output_token_ids
        assert [one and one.token_id for one in output.prompt_logprobs] == [None, 2, 3]


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


def die():
    raise SystemExit  # no step and no command catches this


async def test_a_dead_loop_says_so_and_leaves_nobody_waiting():
    with running(pace=1.0) as loop:
        start(loop)
        (ticket,) = loop.submit([make(loop, max_tokens=4000)], is_streaming=True)
        await ticket.next()
        loop._commands.put(die)
        asked = loop.reset()  # after what ends it: never carried out, and answered all the same
        with pytest.raises(Refusal) as refusal:
            await asyncio.wait_for(ticket.finished(), 10)
        assert refusal.value.status == 503
        assert await asyncio.wait_for(asyncio.wrap_future(asked), 10) is False
        loop._thread.join(5)
        assert not loop.is_healthy and loop.died_of == "SystemExit"
        with pytest.raises(Refusal):
            loop.submit([make(loop)])
        assert await asyncio.wrap_future(loop.reset()) is False


@pytest.mark.parametrize("ask", ["submit", "reset"])
async def test_who_comes_while_the_loop_dies_is_not_left_waiting(ask):
    with running() as loop:

        def die_now(*_):
            """The thread ends between the look at its health and the entry for whoever comes."""
            loop._commands.put(die)
            loop._thread.join(0.2)
            return True

        class Calls(set):
            def add(self, call):
                die_now()
                super().add(call)

        loop._has_room = die_now
        loop._calls = Calls()
        start(loop)
        request = make(loop)
        if ask == "reset":
            assert await asyncio.wait_for(asyncio.wrap_future(loop.reset()), 5) is False
        else:
            with pytest.raises(Refusal) as refusal:
                await asyncio.wait_for(loop.submit([request])[0].finished(), 5)
            assert refusal.value.status == 503
        assert loop.num_unfinished == 0


@pytest.mark.parametrize("name", ["observe_step", "observe_finished"])
async def test_an_observer_that_fails_ends_nothing_and_is_told_of_once(name, caplog):
    with running() as loop:
        setattr(loop.notes, name, None)
        start(loop)
        for _ in range(3):
            (ticket,) = loop.submit([make(loop)])
            assert (await asyncio.wait_for(ticket.finished(), 10)).finish_reason is FinishReason.LENGTH
        assert loop.is_healthy and loop.num_unfinished == 0
    assert [record.getMessage() for record in caplog.records] == ["what follows the engine failed: TypeError"]


async def test_a_reset_that_nobody_waits_for_any_more_ends_nothing():
    with running() as loop:
        start(loop)
        gate = threading.Event()
        loop._commands.put(gate.wait)  # as behind a long step
        (ticket,) = loop.submit([make(loop, max_tokens=3)], is_streaming=True)
        asked = loop.reset(reset_running_requests=True)
        assert asked.cancel()
        gate.set()
        assert (await asyncio.wait_for(ticket.finished(), 10)).finish_reason is FinishReason.LENGTH
        assert loop.is_healthy


async def test_the_last_output_can_be_asked_for_again():
    with running() as loop:
        start(loop)
        (ticket,) = loop.submit([make(loop)])
        assert await asyncio.wait_for(ticket.finished(), 10) is await asyncio.wait_for(ticket.finished(), 10)


async def test_a_command_that_fails_fails_alone():
    with running() as loop:
        start(loop)
        loop.engine.scheduler.reset_prefix_cache = None
        assert await asyncio.wait_for(asyncio.wrap_future(loop.reset()), 10) is False
        loop.engine.add_request, add = None, loop.engine.add_request
        (ticket,) = loop.submit([make(loop)])
        with pytest.raises(Refusal) as refusal:
            await asyncio.wait_for(ticket.finished(), 10)
        assert refusal.value.status == 500
        loop.engine.add_request = add
        (ticket,) = loop.submit([make(loop)])
        assert (await ticket.finished()).finished and loop.is_healthy


async def ask_again_and_again(loop, number, times):
    """A client that asks anew as soon as it has its answer; how often it was turned away."""
    num_refused = 0
    for turn in range(times):
        try:
            (ticket,) = loop.submit([make(loop, [number, turn] * 100, max_tokens=6)])
        except QueueFull:
            num_refused += 1
        else:
            await ticket.finished()
    return num_refused


@pytest.mark.parametrize("budget", [4096, 300])
async def test_no_more_clients_than_seats_and_places_to_wait_are_never_turned_away(budget):
    with running(max_waiting=2, max_num_seqs=8, max_num_batched_tokens=budget, num_gpu_blocks=400) as loop:
        start(loop)
        refused = await asyncio.gather(*(ask_again_and_again(loop, number, 12) for number in range(10)))
    assert refused == [0] * 10


async def test_all_at_once_on_an_idle_engine_find_its_free_seats():
    with running(max_waiting=2, max_num_seqs=8) as loop:
        may_step, step = threading.Event(), loop.engine.step
        loop.engine.step = lambda: may_step.wait(10) and step()
        start(loop)
        tickets = loop.submit([make(loop)])
        while not loop.engine.has_unfinished_requests:
            await asyncio.sleep(0.001)  # the engine's thread has it, and no step has looked at it
        for number in range(9):
            tickets += loop.submit([make(loop, [number, 5])])
        with pytest.raises(QueueFull):
            loop.submit([make(loop)])
        may_step.set()
        for ticket in tickets:
            await ticket.finished()


async def test_a_client_that_leaves_makes_room_where_blocks_are_short():
    with running(pace=50.0, max_waiting=1, num_gpu_blocks=9) as loop:
        start(loop)
        (first,) = loop.submit([make(loop, range(100), max_tokens=20)], is_streaming=True)
        await first.next()
        (second,) = loop.submit([make(loop, range(1, 101), max_tokens=20)])
        await asyncio.sleep(0.15)
        with pytest.raises(QueueFull):
            loop.submit([make(loop)])
        loop.abort([second])
        await second.finished()
        assert loop.submit([make(loop)])


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
