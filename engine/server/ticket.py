"""Ticket: one request's way back from the engine's thread to its client.

The engine's thread puts in the newest RequestOutput; the client's coroutine takes it when it gets to it. Only the newest is
kept: an output holds all tokens so far, so a slow client gets more tokens in one chunk and no queue grows.
"""

from __future__ import annotations

import asyncio

from engine.request import Request
from engine.request_output import RequestOutput
from engine.server.requests.refusal import Refusal


class Ticket:
    """Made, filled and read on the event loop; the engine's thread only hands it over.

    request          what is served
    is_streaming     whether the client is told of each token, or of the end only
    is_health_check  the server's own request: computed, and not counted among the clients'
    """

    __slots__ = ("request", "is_streaming", "is_health_check", "is_ended", "_latest", "_failure", "_changed")

    def __init__(self, request: Request, is_streaming: bool, is_health_check: bool = False) -> None:
        self.request = request
        self.is_streaming = is_streaming
        self.is_health_check = is_health_check
        self.is_ended = False  # set by the engine's thread: nothing more will come
        self._latest: RequestOutput | None = None
        self._failure: Refusal | None = None
        self._changed = asyncio.Event()

    @property
    def request_id(self) -> str:
        return self.request.request_id

    def put(self, outcome: RequestOutput | Refusal) -> None:
        """The newest output, or why there will be none."""
        if isinstance(outcome, Refusal):
            self._failure = outcome
        else:
            self._latest = outcome
        self._changed.set()

    async def next(self) -> RequestOutput:
        """The newest output not taken yet. Raises Refusal when the request failed."""
        await self._changed.wait()
        self._changed.clear()
        if self._failure is not None:
            self._changed.set()  # whoever asks again gets the same answer
            raise self._failure
        assert self._latest is not None
        if self._latest.finished:
            self._changed.set()  # the last one stays: nothing comes after it to wait for
        return self._latest

    async def finished(self) -> RequestOutput:
        """The last output. Raises Refusal when the request failed."""
        output = await self.next()
        while not output.finished:
            output = await self.next()
        return output
