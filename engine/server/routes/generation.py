"""Generation: jobs through the engine, whole or streamed; the engine is rid of a job whose client is gone or whose time is up."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Sequence

from engine.request_output import RequestOutput
from engine.server.answers.event_stream import EventStream, disconnected
from engine.server.answers.piece import Piece, PieceCutter
from engine.server.engine_loop import EngineLoop
from engine.server.options import ServerOptions
from engine.server.requests.job import Job
from engine.server.requests.refusal import QueueFull, Refusal
from engine.server.requests.server_rules import ServerRules
from engine.server.ticket import Ticket

if TYPE_CHECKING:
    from starlette.types import Receive

    from engine.model.tokenizer import TextTokenizer

WholeReply = Callable[[Job, Sequence[RequestOutput]], Any]
Chunks = Callable[[Job, Piece], Sequence[dict[str, Any] | str]]  # a text is JSON already
LastChunks = Callable[[Job, Sequence[RequestOutput]], list[dict[str, Any]]]


class Generation:
    """Runs jobs on one engine loop.

    on_rejected  told the reason when a job is turned away at the door
    """

    def __init__(
        self,
        loop: EngineLoop,
        options: ServerOptions,
        rules: ServerRules,
        text: TextTokenizer,
        on_rejected: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._options = options
        self._rules = rules
        self._text = text
        self._on_rejected = on_rejected
        self._by_name: dict[str, list[Ticket]] = {}  # unfinished, by what replies call them
        self._warming_up: set[str] = set()  # the clients' names of prompts that are being computed for their answers
        self._num_aborted_all = 0  # times: between two of those prompts there is no ticket to abort

    async def warm_up(self, job: Job, receive: Receive) -> Job | None:
        """Compute and cache the prompts whose answers will share them, one after the other: the job to go on with.

        None when its client did not wait for it; an aborted one's answers are aborted too. Raises Refusal.
        """
        if job.warm_ups:
            self._loop.check_size(len(job.requests))  # now, and not after all the work
        self._warming_up.update(job.warm_up_names)
        num_aborted_all = self._num_aborted_all
        try:
            for request in job.warm_ups:
                outputs = await self._waited_for(replace(job, requests=(request,), numbers=(job.number,)), receive)
                if outputs is None:
                    return None
                if self._num_aborted_all != num_aborted_all:
                    return replace(job, is_aborted=True)
        finally:
            self._warming_up.difference_update(job.warm_up_names)
        return job

    def is_taken(self, name: str) -> bool:
        """Whether an unfinished request has that name."""
        return name in self._by_name or name in self._warming_up

    def abort(self, name: str) -> None:
        """End the requests of that name; their clients get what there is."""
        self._loop.abort(self._by_name.get(name, ()))

    def abort_all(self) -> None:
        """End all requests, in the same way."""
        self._num_aborted_all += 1
        self._loop.abort_all()

    async def whole(self, job: Job, reply: WholeReply, receive: Receive) -> Any:
        """The reply to a job; None when its client did not wait for it. Raises Refusal."""
        outputs = await self._waited_for(job, receive)
        return None if outputs is None else reply(job, outputs)

    def stream(self, job: Job, chunks: Chunks, last_chunks: LastChunks, media_type: str) -> EventStream:
        """The reply to a job, chunk by chunk. Raises Refusal before anything is sent; later it is an event in the stream."""
        tickets = self._submit(job)
        events = self._events(job, tickets, chunks, last_chunks)
        return EventStream(events, media_type, self._options.request_timeout_s, lambda: self._release(job, tickets))

    def _submit(self, job: Job) -> list[Ticket]:
        try:
            tickets = self._loop.submit(job.requests, job.is_streaming, job.is_health_check)
        except QueueFull:
            self._on_rejected("max_num_queued_reqs")
            raise
        for name, ticket in zip(job.names, tickets, strict=True):
            self._by_name.setdefault(name, []).append(ticket)
        if job.is_aborted:
            self._loop.abort(tickets)
        return tickets

    def _release(self, job: Job, tickets: Sequence[Ticket]) -> None:
        """Nobody waits for these any more, ended or not."""
        self._loop.abort(tickets)
        for name, ticket in zip(job.names, tickets, strict=True):
            self._by_name[name].remove(ticket)
            if not self._by_name[name]:
                del self._by_name[name]

    async def _waited_for(self, job: Job, receive: Receive) -> list[RequestOutput] | None:
        """The outputs of a job; None when its client did not wait for them. Raises Refusal."""
        tickets = self._submit(job)
        work = asyncio.ensure_future(self._outputs(job, tickets))
        watcher = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({work, watcher}, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else None
        finally:
            self._release(job, tickets)
            work.cancel()
            watcher.cancel()

    async def _outputs(self, job: Job, tickets: Sequence[Ticket]) -> list[RequestOutput]:
        try:
            async with asyncio.timeout(self._seconds_left(job)):
                return [self._told(await ticket.finished()) for ticket in tickets]
        except TimeoutError:
            raise self._too_late() from None

    async def _events(self, job: Job, tickets: Sequence[Ticket], chunks: Chunks, last_chunks: LastChunks) -> AsyncIterator[str]:
        cutters = [PieceCutter(index, request, self._text, self._rules) for index, request in enumerate(job.requests)]
        latest: dict[int, RequestOutput] = {}  # in the order in which the prompts' first tokens came
        try:
            async for index, output in self._updates(job, tickets):
                latest[index] = output
                piece = cutters[index].cut(output)
                for chunk in [] if piece is None else chunks(job, piece):
                    yield _json(chunk)
            for chunk in last_chunks(job, list(latest.values())):
                yield _json(chunk)
        except Refusal as refusal:
            yield _json(self._rules.error_event(refusal))
        yield "[DONE]"

    async def _updates(self, job: Job, tickets: Sequence[Ticket]) -> AsyncIterator[tuple[int, RequestOutput]]:
        """Outputs of all prompts as they come, until the last is finished. Raises Refusal."""
        waiting = {asyncio.ensure_future(ticket.next()): index for index, ticket in enumerate(tickets)}
        try:
            while waiting:
                timeout_s = self._seconds_left(job)
                done, _ = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    raise self._too_late()
                for task in sorted(done, key=waiting.__getitem__):
                    index = waiting.pop(task)
                    output = self._told(task.result())
                    if not output.finished:
                        waiting[asyncio.ensure_future(tickets[index].next())] = index
                    yield index, output
        finally:
            for task in waiting:
                task.cancel()

    def _told(self, output: RequestOutput) -> RequestOutput:
        """An output with the text that clients of this flavor get."""
        if not output.text:
            return output
        return replace(output, text=self._rules.told_text(output.text, output.output_token_ids, self._text))

    def _seconds_left(self, job: Job) -> float:
        return max(0.0, self._options.request_timeout_s - (time.monotonic() - job.arrived_s))

    def _too_late(self) -> Refusal:
        return Refusal(f"the request took longer than {self._options.request_timeout_s:g} s", status=504)


def _json(chunk: dict[str, Any] | str) -> str:
    return chunk if isinstance(chunk, str) else json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
