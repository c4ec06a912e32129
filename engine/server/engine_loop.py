"""EngineLoop: steps the engine on a thread of its own, while an event loop talks to the clients.

    event loop                                  the loop's thread
    submit, abort, reset  ──commands──▶   between two steps: carry them out
    tickets               ◀──outputs────  after each step: one message for all of them

The engine is touched by this thread alone; making and checking a request (`LLMEngine.make_request`, `check_request`) touches
nothing that changes, and may run elsewhere. A step that fails ends the requests it computed, and the loop goes on; whatever
else may fail fails alone, but for what ends the thread itself: then everybody is told, and `died_of` says what it was.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Callable, Sequence

from engine.llm_engine import LLMEngine
from engine.request import FinishReason, Request
from engine.request_output import RequestOutput
from engine.runner import TokenLogprobs
from engine.server.loop_reporter import LoopReporter
from engine.server.requests.refusal import QueueFull, Refusal
from engine.server.step_report import StepObserver
from engine.server.ticket import Ticket

logger = logging.getLogger(__name__)

Post = Callable[[Callable[[], None]], None]  # runs a function on the event loop, from any thread


class EngineLoop:
    """One engine, its thread, and the tickets of all requests in it.

    observer     told of each step and each request that ended, on the loop's thread
    max_waiting  requests queued beyond those that run; more are refused
    """

    def __init__(self, engine: LLMEngine, observer: StepObserver | None = None, *, max_waiting: int = 512) -> None:
        self.engine = engine
        self.max_waiting = max_waiting
        self._reporter = LoopReporter(engine, observer)
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._tickets: dict[str, Ticket] = {}
        self._calls: set[Future[bool]] = set()  # asked, and not yet answered
        self._num_submitted = 0  # by the event loop; each thread counts for itself
        self._num_added = 0  # of them, by the engine's thread
        # Requests that the latest step left without blocks, and how many had been added by then.
        self._left_without_blocks = (0, 0)
        self._is_refusing = False
        self._is_ending = False
        self._has_ended = False
        self.died_of: str | None = None  # the kind of error that ended the thread, if one did
        self._door = threading.Lock()  # nobody comes in while the last ones are told to leave
        self._post: Post = lambda function: function()
        self._outbox: deque[tuple[Ticket, RequestOutput | Refusal]] = deque()
        self._is_mail_announced = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def is_healthy(self) -> bool:
        """Whether it steps, and takes requests."""
        return self._thread.is_alive() and not (self._has_ended or self._is_refusing or self._is_ending)

    @property
    def num_unfinished(self) -> int:
        """Requests submitted and not ended."""
        return len(self._tickets)

    def start(self, post: Post) -> None:
        """Begin to step; `post` brings outputs to the event loop that the tickets live on."""
        self._post = post
        self._thread.start()

    def submit(self, requests: Sequence[Request], is_streaming: bool = False, is_health_check: bool = False) -> list[Ticket]:
        """Queue requests, all or none. Raises Refusal (503) when too many wait, or the server takes no more."""
        self.check_size(len(requests))
        with self._door:
            if not self.is_healthy:
                raise _stopped() if self.died_of else _shutting_down()
            if not self._has_room(len(requests)):
                raise QueueFull
            tickets = [Ticket(request, is_streaming, is_health_check) for request in requests]
            for ticket in tickets:
                self._tickets[ticket.request_id] = ticket
            self._num_submitted += len(tickets)
            self._commands.put(lambda: self._add(tickets))
        return tickets

    def check_size(self, num_requests: int) -> None:
        """Raises Refusal (400) for more at once than could ever run and wait."""
        most = self.engine.config.max_num_seqs + self.max_waiting
        if num_requests > most:
            raise Refusal(f"{num_requests} prompts; accepted: up to {most} at once")

    def abort(self, tickets: Sequence[Ticket]) -> None:
        """End requests whose clients are gone: their blocks are free before the next step. Ended ones are left alone."""
        unfinished = [ticket for ticket in tickets if not ticket.is_ended]
        if unfinished:
            self._commands.put(lambda: self._abort(unfinished))

    def abort_all(self) -> None:
        """End every request; the clients get what there is, with the reason `abort`."""
        self._commands.put(lambda: self._abort(list(self._tickets.values())))

    def dismiss_clients(self) -> None:
        """Tell all clients, on the event loop, that nothing more will come: at once, whatever step is under way."""
        for ticket in list(self._tickets.values()):
            ticket.put(_shutting_down())

    def reset(self, reset_running_requests: bool = False) -> Future[bool]:
        """Forget all cached content: whether it was possible. Running requests hold their blocks, unless preempted for it."""
        return self._call(lambda: self._reset(reset_running_requests))

    def flush(self) -> Future[bool]:
        """The same, refused as long as any request runs or waits."""
        return self._call(lambda: not self._tickets and self._reset(False))

    def refuse_newcomers(self) -> None:
        """Take no more requests; those inside go on."""
        self._is_refusing = True

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread after the step it is in; requests still inside get the reason `abort`."""
        self._is_ending = True
        if self._thread.is_alive():
            self.abort_all()
            self._commands.put(lambda: None)
            self._thread.join(timeout_s)

    def _has_room(self, count: int) -> bool:
        num_seats = self.engine.config.max_num_seqs
        if len(self._tickets) + count > num_seats + self.max_waiting:
            return False
        # Where blocks are short seats stay empty: a newcomer waits behind those who wait already.
        num_left, num_known = self._left_without_blocks
        return num_left == 0 or num_left + self._num_submitted - num_known + count <= self.max_waiting

    def _call(self, function: Callable[[], bool]) -> Future[bool]:
        future: Future[bool] = Future()

        def command() -> None:
            if not future.set_running_or_notify_cancel():
                return  # whoever asked is gone
            success = False
            try:
                success = function()
            finally:
                future.set_result(success)

        with self._door:
            if not self._has_ended and self._thread.is_alive():
                self._calls.add(future)
                future.add_done_callback(self._calls.discard)
                self._commands.put(command)
                return future
        future.set_result(False)
        return future

    def _run(self) -> None:
        try:
            while not self._is_ending:
                self._carry_out_commands(wait=not self.engine.has_unfinished_requests)
                if self.engine.has_unfinished_requests:
                    self._step()
            self._carry_out_commands(wait=False)
        except BaseException as error:  # a thread's last words: nobody else would hear of it
            self.died_of = type(error).__name__
        finally:
            with self._door:  # who is inside by now is told here, who comes later at the door
                self._has_ended = True
            for call in list(self._calls):
                with suppress(InvalidStateError):  # cancelled meanwhile
                    call.set_result(False)
            left = list(self._tickets.values())
            self._forget(left)
            self._deliver([(ticket, _stopped()) for ticket in left])

    def _carry_out_commands(self, wait: bool) -> None:
        try:
            if wait:
                self._carry_out(self._commands.get())
            while True:
                self._carry_out(self._commands.get_nowait())
        except Empty:
            pass

    def _carry_out(self, command: Callable[[], None]) -> None:
        try:
            command()
        except Exception as error:
            logger.error("a command failed: %s", type(error).__name__)

    def _add(self, tickets: list[Ticket]) -> None:
        self._num_added += len(tickets)
        for ticket in tickets:
            if ticket.is_ended:
                continue
            try:
                self.engine.add_request(ticket.request)
            except ValueError as error:
                self._fail([ticket], Refusal(str(error)))
            except Exception as error:
                logger.error("a request could not be added: %s", type(error).__name__)
                self._fail([ticket], Refusal("an internal error", status=500))

    def _step(self) -> None:
        engine = self.engine
        try:
            outputs = engine.step()
        except Exception as error:
            logger.error("a step failed: %s", type(error).__name__)
            self._end_failed_step()
            return
        plan = engine.last_plan
        assert plan is not None
        if not plan.scheduled and not engine.scheduler.running:
            # Checked when it came; should it happen all the same, the others must not wait behind it for ever.
            self._fail(
                [self._tickets[engine.scheduler.waiting.peek().request_id]], Refusal("this request never fits", status=500)
            )
            return
        self._left_without_blocks = (len(engine.scheduler.waiting) if plan.is_short_of_blocks else 0, self._num_added)
        told = [(self._tickets[output.request_id], output) for output in outputs]
        finished = [ticket for ticket, output in told if output.finished]
        # First the counts, then the answer: a client that asks for the counts after its answer finds itself in them.
        self._reporter.step(plan.num_scheduled_tokens, len(plan.preempted), outputs, self._tickets)
        self._reporter.finished(finished)
        self._forget(finished)
        self._deliver([(ticket, output) for ticket, output in told if output.finished or ticket.is_streaming])

    def _end_failed_step(self) -> None:
        """Those the step computed will not be better off in the next; all others are none the wiser."""
        plan = self.engine.last_plan
        concerned = list(self._tickets) if plan is None else [item.request.request_id for item in plan.scheduled]
        self._fail([self._tickets[one] for one in concerned if one in self._tickets], Refusal("the step failed", status=500))

    def _abort(self, tickets: list[Ticket]) -> None:
        unfinished = [ticket for ticket in tickets if not ticket.is_ended]
        logprobs = [self.engine.logprobs_of(ticket.request_id) for ticket in unfinished]  # the engine forgets them in a moment
        for ticket in unfinished:
            self.engine.abort_request(ticket.request_id)
        if unfinished:
            self._reporter.step()
            self._reporter.finished(unfinished)
            self._forget(unfinished)
            self._deliver([(ticket, self._aborted_output(ticket, *known)) for ticket, known in zip(unfinished, logprobs)])

    def _fail(self, tickets: list[Ticket], refusal: Refusal) -> None:
        for ticket in tickets:
            self.engine.abort_request(ticket.request_id)
        self._reporter.finished([ticket for ticket in tickets if ticket.request.is_finished])
        self._forget(tickets)
        self._deliver([(ticket, refusal) for ticket in tickets])

    def _forget(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            ticket.is_ended = True
            del self._tickets[ticket.request_id]
        # Each leaves the queue, or blocks for one that is in it.
        num_left, num_known = self._left_without_blocks
        self._left_without_blocks = (max(0, num_left - len(tickets)), num_known)

    def _aborted_output(
        self,
        ticket: Ticket,
        logprobs: list[TokenLogprobs] | None,
        prompt_logprobs: list[TokenLogprobs | None] | None,
    ) -> RequestOutput:
        request = ticket.request
        output_ids = request.output_token_ids
        tokenizer = self.engine.tokenizer
        return RequestOutput(
            request_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=output_ids,
            new_token_ids=[],
            text=tokenizer.decode(output_ids) if tokenizer is not None else None,
            finished=True,
            finish_reason=FinishReason.ABORT,
            num_cached_tokens=request.num_cached_tokens or 0,
            metrics=request.metrics,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    def _reset(self, reset_running_requests: bool) -> bool:
        success, preempted = self.engine.scheduler.reset_prefix_cache(reset_running_requests)
        self._reporter.step(num_preempted=len(preempted))
        return success

    def _deliver(self, deliveries: Sequence[tuple[Ticket, RequestOutput | Refusal]]) -> None:
        self._outbox.extend(deliveries)
        if deliveries and not self._is_mail_announced:
            self._is_mail_announced = True  # waking the event loop costs as much as a small step: once is enough
            try:
                self._post(self._hand_out)
            except RuntimeError:
                pass  # the event loop is closed: nobody waits for an answer any more

    def _hand_out(self) -> None:
        """On the event loop: what came since the last time."""
        self._is_mail_announced = False  # first, so that whatever comes meanwhile is announced anew
        while self._outbox:
            ticket, outcome = self._outbox.popleft()
            ticket.put(outcome)


def _stopped() -> Refusal:
    return Refusal("the engine has stopped", status=503)


def _shutting_down() -> Refusal:
    return Refusal("the server is shutting down", status=503)
