"""EventStream: server-sent events to a client that may go away, or read slowly, at any moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, AsyncIterator, Callable

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


async def disconnected(receive: Receive) -> None:
    """Returns when the client is gone. Only after its whole body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """An ASGI response of events, each `data: ...` and an empty line.

    events      texts to send
    media_type  as the real server writes it
    timeout_s   for a client to take one event
    on_end      called once, however it ends
    """

    def __init__(self, events: AsyncIterator[str], media_type: str, timeout_s: float, on_end: Callable[[], None]) -> None:
        self._events = events
        self._media_type = media_type
        self._timeout_s = timeout_s
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = asyncio.ensure_future(self._write(send))
        watcher = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({writer, watcher}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._on_end()
            writer.cancel()
            watcher.cancel()
            outcomes = await asyncio.gather(writer, watcher, return_exceptions=True)
        if isinstance(outcomes[0], Exception) and not isinstance(outcomes[0], (OSError, TimeoutError)):
            raise outcomes[0]

    async def _write(self, send: Send) -> None:
        headers = [(b"content-type", self._media_type.encode("ascii"))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for event in self._events:
            async with asyncio.timeout(self._timeout_s):
                await send({"type": "http.response.body", "body": f"data: {event}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
