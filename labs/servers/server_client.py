"""ServerClient: the network in one place. Sends requests, reads replies, and says in one line what went wrong.

    TargetError
    ├── TargetUnavailable    nothing answers there
    ├── ServerRefused        the server answered with an error status
    ├── LateReply            no reply in time, or not all of it
    └── LimitReached         this run's own limit of requests or time

No prompt, salt, key or login enters a message, not even where a server quotes them in its own.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from typing import Any, Iterator, Mapping

import httpx

from labs.servers.deadline_transport import Deadline, DeadlineTransport
from labs.servers.pacer import Pacer
from labs.servers.server_address import ServerAddress
from labs.servers.server_wire import redirect_place, speaks_tls, tls_trouble
from labs.servers.server_words import cleaned, login_texts, message_in, texts_in
from labs.targets.base import TargetError, TargetUnavailable

MAX_REPLY_BYTES = 64 * 2**20  # a reply larger than this is no reply to what we send
MIN_WAIT_S = 1.0  # for a reply, when the run's time is over,
MAX_OVERTIME_S = 2.0  # but no request is sent so much later: a last reading is meant, and no further questions
NEARLY_S = 0.1  # a wait until the run's end may be over so much earlier
MAX_END_S = 1.0  # from [DONE] to the end of a stream
HEADERS = ("content-type", "server", "retry-after", "location")  # that are read of a reply


class ServerRefused(TargetError):
    """The server answered with an error status. `retry_after_s`: when it asks to come again; None: it does not say."""

    def __init__(self, message: str, status: int, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class LateReply(TargetError):
    """A reply, or the rest of one, did not come in the time that it had."""


class LimitReached(TargetError):
    """The run has sent as many requests, or taken as long, as it may."""


@dataclass(frozen=True)
class SendLimits:
    """What one run may ask of a server."""

    timeout_s: float = 300.0  # without a byte from the server
    max_requests: int = 20_000  # that compute tokens
    max_seconds: float = 3_600.0  # from the first request on


@dataclass(frozen=True)
class StreamEvent:
    """One server-sent event: its JSON, None for [DONE], and when it came."""

    data: dict[str, Any] | None
    at_s: float  # since the request was sent


class ServerClient:
    """One server's HTTP. May be used from several threads at once.

    api_key    sent as a bearer token; from the environment, never shown
    rate       requests per second that compute tokens, at most; None: as fast as they come
    transport  httpx's, for tests
    """

    def __init__(
        self,
        address: ServerAddress,
        *,
        api_key: str | None = None,
        limits: SendLimits = SendLimits(),
        rate: float | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.address = address
        self.shown = address.shown
        self.limits = limits
        self._api_key = api_key
        self._pacer = Pacer(rate)
        self._deadline = Deadline()
        # Packed replies are refused: a few bytes unpack to more than there is memory.
        headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
        self._http = httpx.Client(
            headers=headers,
            auth=None if api_key else address.login,
            transport=transport
            or DeadlineTransport(
                self._deadline,
                # Servers close what was idle for 5 s (uvicorn); a request must not meet a connection that is being closed.
                limits=httpx.Limits(max_connections=256, max_keepalive_connections=256, keepalive_expiry=2.0),
                verify=not address.base.startswith("http://"),  # reading the certificates takes longer than a small request
            ),
            follow_redirects=False,  # a key must not follow to another host
            trust_env=False,  # no proxy nobody asked for
        )
        self._may_be_tls = transport is None and address.base.startswith("http://")  # until it has answered, or was asked
        self._ends_streams = True
        self._lock = threading.Lock()
        self._num_sent = 0
        self._started_s: float | None = None

    @property
    def num_sent(self) -> int:
        """Requests sent so far that compute tokens."""
        return self._num_sent

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, *, timeout_s: float | None = None) -> httpx.Response:
        """The reply to a GET, whatever its status. Raises TargetError when there is none."""
        return self._send("GET", path, None, timeout_s)

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None) -> httpx.Response:
        """The reply to a POST, whatever its status. Raises TargetError when there is none."""
        return self._send("POST", path, body, timeout_s)

    def get_json(self, path: str) -> dict[str, Any]:
        """A GET's JSON object. Raises ServerRefused for an error status, TargetError for what is no object."""
        return self.json_of(path, self.get(path), {})

    def post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A POST's JSON object, likewise."""
        return self.json_of(path, self.post(path, body), body)

    def compute(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A POST that computes tokens, counted against the limits."""
        self.admit()
        return self.post_json(path, body)

    def admit(self, stop: threading.Event | None = None) -> None:
        """Wait until one more request that computes tokens may start, and count it. Raises LimitReached, TargetError after `stop`."""
        with self._lock:
            now_s = time.monotonic()
            self._started_s = now_s if self._started_s is None else self._started_s
            if self._num_sent >= self.limits.max_requests:
                raise LimitReached(f"{self._num_sent:,} requests were sent to {self.shown}: the most this run may send")
            left_s = self._started_s + self.limits.max_seconds - now_s
            if left_s < 0:
                raise self._too_long()
            self._num_sent += 1
        if not self._pacer.wait(stop, left_s):
            raise LimitReached(
                f"at this rate the next request would start after {self.limits.max_seconds:,.0f} s: the most this run may take on "
                f"{self.shown}"
            )
        if stop is not None and stop.is_set():
            raise TargetError("stopped, because another request failed")

    def stream(self, path: str, body: Mapping[str, Any], stop: threading.Event | None = None) -> Iterator[StreamEvent]:
        """The events of a POST that computes tokens, counted against the limits; [DONE] is the last.

        Raises TargetError when the stream ends before [DONE], breaks off, or holds something else than JSON objects.
        """
        self.admit(stop)
        started_s = time.perf_counter()
        timeout = self._start_clock(self.limits.timeout_s)
        try:
            with self._http.stream("POST", self.address.base + path, **_content(body), timeout=timeout) as response:
                self._may_be_tls = False
                if response.status_code >= 300:
                    raise self.refusal(path, self._whole(path, response), body)
                self._check_plain(path, response)
                lines = self._lines(path, response)
                for line in lines:
                    if not line.startswith("data:"):
                        continue  # an empty line, a comment, an event's name
                    at_s, text = time.perf_counter() - started_s, line[5:].strip()
                    if text == "[DONE]":
                        self._read_out(lines)
                        yield StreamEvent(None, at_s)
                        return
                    yield StreamEvent(self._event(path, text, body), at_s)
        except _FAILURES as error:
            raise self._failure(path, error) from error
        raise TargetError(f"{self.shown} ended its streamed reply to {path} before [DONE]: the reply is not whole")

    def json_of(self, path: str, response: httpx.Response, body: Mapping[str, Any]) -> dict[str, Any]:
        """A reply's JSON object. Raises ServerRefused for an error status, TargetError for what is no object."""
        if response.status_code >= 300:
            raise self.refusal(path, response, body)
        try:
            content = response.json()
        except (ValueError, RecursionError):
            kind = response.headers.get("content-type", "no content type").split(";")[0][:60]
            raise TargetError(f"{self.shown} answered {path} with something that is no JSON ({kind})") from None
        if not isinstance(content, dict):
            raise TargetError(f"{self.shown} answered {path} with JSON that is no object")
        return content

    def refusal(self, path: str, response: httpx.Response, body: Mapping[str, Any]) -> TargetError:
        """An error status as an exception, with the server's own words where they hold nothing of the request."""
        status = response.status_code
        if status in (401, 403):
            what = "the API key is not accepted" if self._api_key else "an API key is needed"
            return TargetUnavailable(
                f"{self.shown} answered {path} with {status}: {what}; "
                "accepted: a valid key in the environment variable LABCLI_API_KEY"
            )
        if status < 400:
            place = redirect_place(response.headers.get("location", ""), self._secrets(body))
            where = f"to {place}" if place else "elsewhere"
            return ServerRefused(f"{self.shown} answered {path} with {status}: it sends {where}, which is not followed", status)
        words = self._words(response, body)
        told = response.headers.get("retry-after", "")
        retry_after_s = float(told) if told.isascii() and told.isdigit() and len(told) < 6 else None
        return ServerRefused(f"{self.shown} answered {path} with {status}{f': {words}' if words else ''}", status, retry_after_s)

    def _event(self, path: str, text: str, body: Mapping[str, Any]) -> dict[str, Any]:
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):  # no JSON, or nested without end
            content = None
        if not isinstance(content, dict):
            raise TargetError(f"{self.shown} streamed something that is no JSON object in its reply to {path}")
        if content.get("error"):
            words = cleaned(message_in(content), self._secrets(body))
            raise TargetError(f"{self.shown} ended its streamed reply to {path} with an error{f': {words}' if words else ''}")
        return content

    def _words(self, response: httpx.Response, body: Mapping[str, Any]) -> str:
        try:
            content = response.json()
        except (ValueError, RecursionError):
            content = None
        text = message_in(content) if isinstance(content, dict) else "" if content is not None else response.text
        return cleaned(text, self._secrets(body))

    def _secrets(self, body: Mapping[str, Any]) -> list[str]:
        return [text for text in (self._api_key, *login_texts(self.address.login), *texts_in(body)) if text]

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float | None) -> httpx.Response:
        timeout = self._start_clock(min(timeout_s or self.limits.timeout_s, self.limits.timeout_s))
        try:
            with self._http.stream(method, self.address.base + path, **_content(body), timeout=timeout) as response:
                self._may_be_tls = False
                return self._whole(path, response)
        except _FAILURES as error:
            raise self._failure(path, error) from error

    def _whole(self, path: str, response: httpx.Response) -> httpx.Response:
        """A reply with its content, read within the limits of size and time."""
        self._check_plain(path, response)
        content = bytearray()
        for chunk in response.iter_bytes():
            content += chunk
            if len(content) > MAX_REPLY_BYTES:
                raise TargetError(f"{self.shown} answered {path} with more than {MAX_REPLY_BYTES // 2**20} MiB")
            self._check_time(path)  # a byte now and then keeps httpx waiting for ever
        # The few headers that are read, in ASCII. A charset is not believed: what we read is UTF-8.
        kept = {name: response.headers.get(name, "").encode("ascii", "replace").decode() for name in HEADERS}
        kept["content-type"] = kept["content-type"].partition(";")[0]
        headers = {name: value for name, value in kept.items() if value}
        return httpx.Response(response.status_code, headers=headers, content=bytes(content))

    def _lines(self, path: str, response: httpx.Response) -> Iterator[str]:
        """A stream's lines as they come; each within the limits of size and time."""
        pieces: list[bytes] = []  # of the line under way
        size = 0
        for chunk in response.iter_bytes():
            size += len(chunk)
            if size > MAX_REPLY_BYTES:
                raise TargetError(f"{self.shown} streamed more than {MAX_REPLY_BYTES // 2**20} MiB in its reply to {path}")
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                line = b"".join([*pieces, end])
                pieces.clear()
                if line.startswith(b"data:"):  # comments alone are no progress
                    self._start_clock(self.limits.timeout_s)
                yield line.decode("utf-8", errors="replace").rstrip("\r")
            pieces.append(rest)
            self._check_time(path)
        if any(pieces):
            yield b"".join(pieces).decode("utf-8", errors="replace")

    def _check_plain(self, path: str, response: httpx.Response) -> None:
        packed = response.headers.get("content-encoding", "").strip().lower()
        if packed not in ("", "identity"):
            raise TargetError(f"{self.shown} packed its reply to {path}, though asked not to")

    def _start_clock(self, seconds: float) -> httpx.Timeout:
        """Give the request, or the rest of its stream, so many seconds, but not more than are left of the run.

        Raises LimitReached when these have been over for a while.
        """
        with self._lock:
            now_s = time.monotonic()
            self._started_s = now_s if self._started_s is None else self._started_s
            left_s = self._started_s + self.limits.max_seconds - now_s
        if left_s < -MAX_OVERTIME_S:
            raise self._too_long()
        seconds = min(seconds, max(left_s, MIN_WAIT_S))
        self._deadline.renew(seconds)
        return httpx.Timeout(seconds, connect=min(10.0, seconds))

    def _check_time(self, path: str) -> None:
        if self._deadline.left_s < 0:
            raise self._late(f"did not finish its reply to {path}")

    def _read_out(self, lines: Iterator[str]) -> None:
        """Read what a stream sends after [DONE], which is nothing: only a connection that was read to its end is used again,
        and a new one for each request would be part of every time to first token."""
        if not self._ends_streams:
            return
        self._deadline.renew(MAX_END_S)
        try:
            for _ in lines:
                pass
        except (httpx.HTTPError, TargetError):
            pass  # the reply was whole before
        # A server that keeps its streams open is waited for once.
        self._ends_streams = self._deadline.left_s > 0

    def _failure(self, path: str, error: Exception) -> TargetError:
        told = str(error)
        if "SSL" in told or "CERTIFICATE" in told:
            return TargetUnavailable(f"{self.shown} {tls_trouble(told)}")
        if isinstance(error, (httpx.InvalidURL, UnicodeError)):
            return TargetUnavailable(
                f"{self.shown} is no address that can be looked up; accepted: http://HOST:PORT or https://HOST"
            )
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return TargetUnavailable(f"nothing answers at {self.shown}; accepted: the address of a running server")
        if isinstance(error, httpx.TimeoutException):
            return self._late(f"did not answer {path}")
        if isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError)) and self._is_behind_tls():
            secure = self.shown.replace("http://", "https://", 1)
            return TargetUnavailable(f"{self.shown} speaks TLS, and was asked without; accepted: {secure}")
        if isinstance(error, httpx.RemoteProtocolError) and "disconnected" not in told and "peer closed" not in told:
            return TargetError(f"{self.shown} answered {path} with something that is no HTTP")
        if isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)):
            return TargetError(f"{self.shown} closed the connection in the middle of its reply to {path}")
        return TargetError(f"{self.shown}: {path} failed ({type(error).__name__})")

    def _late(self, what: str) -> LateReply:
        """For a reply that was not there in time: the time of the run, or the one that each reply has."""
        with self._lock:
            left_s = self._started_s + self.limits.max_seconds - time.monotonic()
        why = "" if left_s > NEARLY_S else f": the {self.limits.max_seconds:,.0f} s were over that this run may take"
        return LateReply(f"{self.shown} {what} in time{why}")

    def _too_long(self) -> LimitReached:
        return LimitReached(f"the run has taken {self.limits.max_seconds:,.0f} s: the most it may take on {self.shown}")

    def _is_behind_tls(self) -> bool:
        """Whether what does not answer to http:// speaks TLS at that address; asked once, before anything was answered."""
        is_open, self._may_be_tls = self._may_be_tls, False
        return is_open and speaks_tls(self.address.base)


# Beside httpx's own: an address that its parser or the resolver cannot take.
_FAILURES = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)


def _content(body: Mapping[str, Any] | None) -> dict[str, Any]:
    """A body as httpx takes it; in ASCII, so that half a surrogate in a model's name can be sent as well."""
    if body is None:
        return {}
    return {"content": json.dumps(body, separators=(",", ":")).encode("ascii"), "headers": {"Content-Type": "application/json"}}
