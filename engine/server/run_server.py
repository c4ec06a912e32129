"""run_server: an application on a socket, from its first line to its last.

The first Ctrl-C, or SIGTERM, closes the door: no newcomers, running requests may finish for a while, the others end with
the reason `abort`; their clients are told, no connection is cut. A second one ends at once: their clients get 503. It also ends
when the engine does: a server that can only say no is better started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Iterator

import uvicorn

from engine.errors import ConfigError
from engine.server.engine_loop import EngineLoop
from engine.server.http_protocol import http_protocol
from engine.server.options import ServerOptions

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_BACKLOG = 2048
_GRACE_S = 5.0  # after the drain, for the last bytes to be sent
_LOOK_EVERY_S = 0.02
_LAST_WORDS_S = 0.5  # after a second Ctrl-C, for telling the clients
# Two threads take turns: by default each may keep the other waiting for 5 ms, for every packet again.
_SWITCH_INTERVAL_S = 0.0005


@dataclass(frozen=True)
class Shutdown:
    """How a server ended."""

    num_finished: int  # requests that still ran when the door was closed, and were let finish
    num_aborted: int
    is_forced: bool  # by a second Ctrl-C
    died_of: str | None = None  # the kind of error that ended the engine, where nobody asked for the end


def bind(options: ServerOptions) -> socket.socket:
    """A listening socket. Raises ConfigError, naming host or port, for an address that cannot be had."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        socket.getaddrinfo(options.host, None, family)
    except OSError:
        raise ConfigError("host", options.host, "a name or an address of this machine") from None
    try:
        listener = socket.create_server((options.host, options.port), family=family, backlog=_BACKLOG)
        # asyncio sets it only where the socket names its protocol, and this one does not: a reply's second piece would
        # wait 40 ms for the client to acknowledge the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError("port", options.port, "a port that no other program listens on; 0 for any free one") from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError("host", options.host, "a name or an address of this machine") from None
        raise ConfigError("port", options.port, f"a port this user may listen on ({os.strerror(error.errno or 0)})") from None


def run_server(
    app: ASGIApp,
    engine_loop: EngineLoop,
    options: ServerOptions,
    listener: socket.socket,
    on_ready: Callable[[], None] | None = None,
) -> Shutdown:
    """Serve until told to end. `on_ready` is called once when requests are taken."""
    server = DrainingServer(app, engine_loop, options, on_ready)
    previous = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        server.run(sockets=[listener])
    finally:
        sys.setswitchinterval(previous)
    return Shutdown(server.num_finished, server.num_aborted, server.force_exit, engine_loop.died_of)


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which lets the engine's requests finish before it closes."""

    def __init__(
        self, app: ASGIApp, engine_loop: EngineLoop, options: ServerOptions, on_ready: Callable[[], None] | None = None
    ) -> None:
        config = uvicorn.Config(
            app,
            # Over h11: the others that uvicorn finds where they are installed know no limit of a request's headers.
            http=http_protocol(options.headers_timeout_s),
            ws="none",
            log_config=None,
            log_level="critical",  # its messages may quote what a client sent
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            timeout_keep_alive=60,
            timeout_graceful_shutdown=options.drain_s + _GRACE_S,  # type: ignore[arg-type]
        )
        super().__init__(config)
        self.num_finished = 0
        self.num_aborted = 0
        self._engine_loop = engine_loop
        self._drain_s = options.drain_s
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started and self._on_ready is not None:
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._engine_loop.died_of is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._engine_loop.refuse_newcomers()
        drain = asyncio.ensure_future(self._drain())
        await super().shutdown(sockets=sockets)
        drain.cancel()
        if self.force_exit:
            await self._tell_clients()

    async def _tell_clients(self) -> None:
        self._engine_loop.dismiss_clients()
        deadline = asyncio.get_running_loop().time() + _LAST_WORDS_S
        while self.server_state.tasks and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_LOOK_EVERY_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals ask for the end, and are not raised again afterwards: having done as asked is success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        previous = [signal.signal(one, self.handle_exit) for one in signals]
        try:
            yield
        finally:
            for one, handler in zip(signals, previous):
                signal.signal(one, handler)

    async def _drain(self) -> None:
        deadline = asyncio.get_running_loop().time() + self._drain_s
        num_running = self._engine_loop.num_unfinished
        while self._engine_loop.num_unfinished and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.num_finished = num_running - self._engine_loop.num_unfinished
        self.num_aborted = self._engine_loop.num_unfinished
        self._engine_loop.abort_all()
