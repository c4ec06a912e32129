"""A server on raw sockets that answers as its illness wants: with bytes that no framework would let through.

    with broken(FakeServer(), OF_STREAMS["no [DONE]"]) as url:
        OpenServer(ServerRun(ServerAddress.of(url)))

The healthy mind (tests/labs/targets/fake_server.py) knows the right reply to every request; an illness (illness.py) decides
what becomes of it on the wire. It listens on 127.0.0.1 only, and all its threads end with the `with`.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Iterator, Mapping

import httpx

if TYPE_CHECKING:
    from tests.servers.illness import Illness

Mind = Callable[[httpx.Request], httpx.Response]
MAX_HEAD_BYTES = 65_536
TLS_GREETING = 0x16  # the first byte of a client that speaks TLS
_REASONS = {200: "OK", 307: "Temporary Redirect", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests", 500: "Error"}


class HungUp(Exception):
    """The other side, or the illness, has closed the connection."""


@dataclass(frozen=True)
class Answer:
    """A whole reply, before anything happens to it."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def head(self, **changed: str | None) -> bytes:
        """Status line and headers; a header changed to None is left out."""
        headers = {
            **self.headers,
            "content-length": str(len(self.content)),
            **{k.replace("_", "-"): v for k, v in changed.items()},
        }
        lines = [f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Whatever')}"]
        lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")


@dataclass
class Visit:
    """One request under way, for an illness to spoil. Whatever it sends goes out as it is."""

    method: str
    path: str  # without the query
    headers: Mapping[str, str]
    body: bytes
    number: int  # of the requests that this illness is about, from 1
    mind: Callable[[], Answer]  # the healthy reply; counts in the mind's cache and counters
    connection: socket.socket
    die: Callable[[], None]  # ends the server
    over: threading.Event  # set when the server ends
    is_open: bool = field(default=False)  # whether the connection may serve another request

    def send(self, data: bytes) -> None:
        try:
            self.connection.sendall(data)
        except OSError:
            raise HungUp from None

    def reply(self, status: int, content: bytes, kind: str = "application/json", **headers: str) -> None:
        """A whole reply in good form."""
        answer = Answer(status, {"content-type": kind}, content)
        self.send(answer.head(**headers) + content)
        self.is_open = True

    def pass_on(self, answer: Answer | None = None) -> None:
        """The healthy reply, or another one, in good form."""
        answer = answer or self.mind()
        self.send(answer.head() + answer.content)
        self.is_open = True

    def dribble(self, data: bytes, gap_s: float) -> None:
        """One byte after the other, until all is sent, the client leaves or the server ends."""
        for index in range(len(data)):
            self.send(data[index : index + 1])
            if self.over.wait(gap_s):
                raise HungUp

    def listen(self) -> None:
        """Take what comes first; unread, it would turn a hang-up into a reset."""
        with suppress(OSError):
            self.connection.recv(65_536)

    def stay_silent(self) -> None:
        """Until the server ends."""
        self.over.wait()

    def reset(self) -> None:
        """Close so that the client gets a reset, not an end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise HungUp


class BrokenServer:
    """Accepts connections on a free port; `url` is where. Each connection has its thread."""

    def __init__(self, mind: Mind, illness: Illness) -> None:
        self._mind, self._illness = mind, illness
        self._lock, self._over = threading.Lock(), threading.Event()
        self._num_ill = 0
        self._threads: list[threading.Thread] = []
        self._connections: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._begin(self._accept)

    def die(self) -> None:
        """From now on nothing answers here, and what was connected is cut."""
        self._over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for one in connections:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and wait until its threads have ended."""
        self.die()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive(), "a thread of the broken server did not end"

    def _begin(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="broken server", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._begin(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)
        try:
            if self._illness.is_rude:
                self._illness.act(self._visit(connection, _NOTHING))
                return
            buffer = bytearray()
            while self._serve_one(connection, buffer) and not self._over.is_set():
                pass
        except (HungUp, OSError):
            pass
        finally:
            with self._lock:
                self._connections.discard(connection)
            with suppress(OSError):
                connection.close()

    def _serve_one(self, connection: socket.socket, buffer: bytearray) -> bool:
        """Read a request and answer it; whether the connection may go on."""
        asked = _read_request(connection, buffer)
        if asked is None:
            return False
        visit = self._visit(connection, asked)
        if visit.number:
            self._illness.act(visit)
        else:
            visit.pass_on()
        return visit.is_open

    def _visit(self, connection: socket.socket, asked: Asked) -> Visit:
        is_ill = self._illness.concerns(asked.path, asked.body)
        with self._lock:
            self._num_ill += is_ill
            number = self._num_ill if is_ill else 0

        def mind() -> Answer:
            with self._lock:
                reply = self._mind(
                    httpx.Request(asked.method, self.url + asked.target, headers=asked.headers, content=asked.body)
                )
            return Answer(reply.status_code, {"content-type": reply.headers.get("content-type", "text/plain")}, reply.content)

        return Visit(asked.method, asked.path, asked.headers, asked.body, number, mind, connection, self.die, self._over)


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


_NOTHING = Asked("", "", {}, b"")


def _read_request(connection: socket.socket, buffer: bytearray) -> Asked | None:
    """The next request; what comes after it stays in the buffer. None at the connection's end, and for what is no HTTP."""
    while b"\r\n\r\n" not in buffer:
        if not _read_more(connection, buffer) or len(buffer) > MAX_HEAD_BYTES:
            return None
        if buffer[0] == TLS_GREETING:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
            return None
    head, _, rest = bytes(buffer).partition(b"\r\n\r\n")
    request_line, *lines = head.decode("latin-1").split("\r\n")
    parts = request_line.split(" ")
    if len(parts) != 3:
        return None
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.pop("content-length", "0"))
    buffer[:] = rest
    while len(buffer) < length:
        if not _read_more(connection, buffer):
            return None
    body = bytes(buffer[:length])
    del buffer[:length]
    kept = {name: value for name, value in headers.items() if name in ("authorization", "content-type")}
    return Asked(parts[0], parts[1], kept, body)


def _read_more(connection: socket.socket, buffer: bytearray) -> bool:
    data = connection.recv(65_536)
    buffer += data
    return bool(data)


@contextmanager
def broken(mind: Mind, illness: Illness) -> Iterator[str]:
    """The base URL of an ill server that runs inside."""
    server = BrokenServer(mind, illness)
    try:
        yield server.url
    finally:
        server.close()
