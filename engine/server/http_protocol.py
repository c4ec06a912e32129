"""http_protocol: uvicorn's HTTP/1.1 over h11, with a clock for clients that connect and do not say what they want.

uvicorn closes a connection that stays silent after a reply (`timeout_keep_alive`), and stops that clock at the next byte.
Before the first request, and from a request's first byte to the end of its headers, it has none: each such client would keep a
connection for ever. From the headers on the body has its own clock, and then the request.

         connected           headers complete     reply sent      first byte        headers complete
    ────────┬───────────────────────┬──────────────────┬───────────────┬───────────────────┬──────▶
            │◀──── timeout_s ──────▶│   body, request  │◀─ keep alive ▶│◀── timeout_s ────▶│

Of uvicorn's own it uses asyncio's callbacks and the h11 connection `conn`; tests see on a raw socket whether that still holds.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def http_protocol(timeout_s: float) -> type[H11Protocol]:
    """The protocol of a connection, for uvicorn.Config(http=...), which closes one whose headers are not complete in time."""

    class PunctualProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._start_clock()

        def data_received(self, data: bytes) -> None:
            try:
                super().data_received(data)
            except h11.LocalProtocolError:  # uvicorn's 400 for what is no HTTP, where a reply has begun or is sent already
                self.transport.abort()
                return
            if self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY):  # a request has come: a reply is due
                self._stop_clock()
            elif self._deadline is None:
                self._start_clock()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_clock()
            super().connection_lost(exc)

        def _start_clock(self) -> None:
            self._deadline = asyncio.get_running_loop().call_later(timeout_s, self._close)

        def _stop_clock(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _close(self) -> None:
            # One that owes nothing is told nothing: it may be a browser, ahead of its user, or take it for its next reply.
            if self.conn.trailing_data[0] or self.conn.their_state is not h11.IDLE:
                self.transport.write(_TOO_SLOW)
            self.transport.close()

    return PunctualProtocol
