"""Gateways in front of servers, each with one fault: what stands between users and engines, and spoils their prefix cache.

    with served() as server, fronted(server, gateway=SaltEachRequest()) as url:
        httpx.post(url + "/v1/completions", json={...})

A Gateway passes everything on as it is. A subclass changes a request's body, a reply's body, a reply as a whole, the choice
of the server, or refuses. Replies are passed on whole, streams too: no test here is about when a chunk comes. All on 127.0.0.1.
"""

from __future__ import annotations

import itertools
import json
import secrets
import socket
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from typing import Any, AsyncIterator, Iterator, Sequence

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
METHODS = ["GET", "POST", "PUT", "DELETE"]


class Gateway:
    """Passes everything on. `servers` are set when it starts."""

    servers: Sequence[str] = ()
    hidden: tuple[str, ...] = ()  # paths that answer 404

    def server_for(self, path: str) -> str:
        return self.servers[0]

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        """Change a request's JSON object in place."""

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        """Change a reply's JSON object in place."""

    def change_text(self, path: str, text: str) -> str:
        """A reply that is no JSON (a stream, metrics)."""
        return text

    def refuse(self, path: str, body: dict[str, Any]) -> Response | None:
        """Answer in the server's place."""
        return None


class SaltEachRequest(Gateway):
    """Every request gets a salt of its own, as an over-careful tenant isolation does."""

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path in (COMPLETIONS, CHATS):
            body["cache_salt"] = secrets.token_hex(8)


class Slow(Gateway):
    """Each prompt takes so long for each of its tokens, and all after the first `num_quick` requests `stall_s` more."""

    def __init__(self, token_s: float = 0.0, num_quick: int = 0, stall_s: float = 0.0) -> None:
        self._token_s, self._stall_s, self._numbers, self._num_quick = token_s, stall_s, itertools.count(1), num_quick

    def refuse(self, path: str, body: dict[str, Any]) -> Response | None:
        if path == COMPLETIONS:
            num_tokens = len(body["prompt"]) if isinstance(body["prompt"], list) else body["prompt"].count(" ") + 1
            time.sleep(self._token_s * num_tokens + self._stall_s * (next(self._numbers) > self._num_quick))
        return None


class SaltWhatHasNone(Gateway):
    """Requests without a salt get one each; those that bring one keep it."""

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path in (COMPLETIONS, CHATS):
            body.setdefault("cache_salt", secrets.token_hex(8))


class SaltByContent(Gateway):
    """The salt is the prompt's own hash: whole prompts are found again, shared fronts are not."""

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path in (COMPLETIONS, CHATS):
            body["cache_salt"] = sha256(json.dumps([body.get("prompt"), body.get("messages")]).encode()).hexdigest()[:16]


class DropSalt(Gateway):
    """Fields that OpenAI does not know are dropped, and isolation with them."""

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        body.pop("cache_salt", None)


class PrependCounter(Gateway):
    """A number that grows stands in front of every prompt. `shows_ids` False: replies do not tell how the model saw it."""

    def __init__(self, shows_ids: bool = True) -> None:
        self._shows_ids, self._numbers = shows_ids, itertools.count(10)

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path not in (COMPLETIONS, CHATS):
            return
        number = next(self._numbers)
        if path == CHATS:
            body["messages"] = [{"role": "system", "content": f"request {number % 90 + 10}"}, *body["messages"]]
        elif isinstance(body["prompt"], list):
            body["prompt"] = [number, 7, 7, 7, *body["prompt"]]
        else:
            body["prompt"] = f"request {number % 90 + 10} {body['prompt']}"

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        if not self._shows_ids:
            hide_ids(body)


class PrependClock(Gateway):
    """A clock of `tick_s` stands in front of prompts of ids: repeats at once find, later ones do not. `shows_ids` as above."""

    def __init__(self, shows_ids: bool = True, tick_s: float = 1.0) -> None:
        self._shows_ids, self._tick_s = shows_ids, tick_s

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path == COMPLETIONS and isinstance(body["prompt"], list):
            body["prompt"] = [1, 2, int(time.time() / self._tick_s) % 20_000, *body["prompt"]]

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        if not self._shows_ids:
            hide_ids(body)


class PrependConstant(Gateway):
    """The same system text for all, in token ids."""

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path == COMPLETIONS and isinstance(body["prompt"], list):
            body["prompt"] = [9] * 20 + body["prompt"]


class ClockInChat(Gateway):
    """The chat template writes the time, to the nanosecond. `shows_ids` as above."""

    def __init__(self, shows_ids: bool = True) -> None:
        self._shows_ids = shows_ids

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path == CHATS:
            now = str(time.time_ns())[-9:]
            body["messages"] = [{"role": "system", "content": f"The time is {now}."}, *body["messages"]]

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        if not self._shows_ids:
            hide_ids(body)


class SystemMessage(Gateway):
    """The same long system message in front of each chat and each text; prompts of ids are refused, and no ids are told."""

    hidden = ("/metrics", "/version", "/tokenize")
    TEXT = "You are a careful assistant of people who sail small boats. " * 12

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path == CHATS:
            body["messages"] = [{"role": "system", "content": self.TEXT}, *body["messages"]]
        elif path == COMPLETIONS:
            body["prompt"] = self.TEXT + body["prompt"]

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        hide_ids(body)
        for one in body.get("data", ()) if path == "/v1/models" else ():
            one["owned_by"] = "somebody"

    def refuse(self, path: str, body: dict[str, Any]) -> Response | None:
        if isinstance(body.get("prompt"), list):
            return JSONResponse({"error": {"message": "prompt must be a string"}}, 400)
        return None


class SlowClockInChat(Gateway):
    """Each chat begins with the date and the minute."""

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path == CHATS:
            now = time.strftime("It is %Y-%m-%d %H:%M.")
            body["messages"] = [{"role": "system", "content": now}, *body["messages"]]


class KeepMetrics(Gateway):
    """/metrics is read anew only every `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._kept, self._kept_s = seconds, "", 0.0

    def change_text(self, path: str, text: str) -> str:
        if path == "/metrics" and time.monotonic() - self._kept_s > self._seconds:
            self._kept, self._kept_s = text, time.monotonic()
        return self._kept if path == "/metrics" else text


class BusyAtTimes(Gateway):
    """One computed request in `every` is turned away with a 503, and asked to come again at once."""

    def __init__(self, every: int) -> None:
        self._every, self._numbers = every, itertools.count(1)

    def refuse(self, path: str, body: dict[str, Any]) -> Response | None:
        if path in (COMPLETIONS, CHATS) and next(self._numbers) % self._every == 0:
            return JSONResponse({"error": {"message": "busy"}}, 503, {"Retry-After": "0"})
        return None


class MissOnce(Gateway):
    """One request of each salt, of each text and of each chat gets a salt of its own: the second with each."""

    def __init__(self) -> None:
        self._num_seen: dict[str, int] = {}

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        prompt = body.get("prompt")
        if path not in (COMPLETIONS, CHATS) or (isinstance(prompt, list) and "cache_salt" not in body):
            return
        key = json.dumps([prompt, body.get("messages"), body.get("cache_salt")])
        self._num_seen[key] = self._num_seen.get(key, 0) + 1
        if self._num_seen[key] == 2:
            body["cache_salt"] = secrets.token_hex(8)


class RoundRobin(Gateway):
    """Each request goes to the next server; /metrics too."""

    def __init__(self) -> None:
        self._turn = itertools.count()

    def server_for(self, path: str) -> str:
        return self.servers[next(self._turn) % len(self.servers)]


class ByPrompt(RoundRobin):
    """Prompts have a home each; whatever else is asked goes to any: affinity as it should be, behind one address."""

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        self._home = self.servers[sha256(json.dumps(body.get("prompt")).encode()).digest()[0] % len(self.servers)]

    def server_for(self, path: str) -> str:
        return self._home if path in (COMPLETIONS, CHATS) else super().server_for(path)


class StripUsage(Gateway):
    """Replies without usage."""

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        body.pop("usage", None)

    def change_text(self, path: str, text: str) -> str:
        return "\n".join(line for line in text.split("\n") if '"usage"' not in line) if path == COMPLETIONS else text


class StripStreamedUsage(Gateway):
    """The last chunk of a stream, whose choices are empty, is dropped."""

    def change_text(self, path: str, text: str) -> str:
        return (
            "\n".join(line for line in text.split("\n") if '"choices":[]' not in line.replace(" ", ""))
            if path == COMPLETIONS
            else text
        )


class StripDetails(Gateway):
    """usage without prompt_tokens_details."""

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        if isinstance(body.get("usage"), dict):
            body["usage"]["prompt_tokens_details"] = None


class NullForMiss(Gateway):
    """A miss is told as null, as some servers do."""

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        usage = body.get("usage")
        if isinstance(usage, dict) and not (usage.get("prompt_tokens_details") or {}).get("cached_tokens"):
            usage["prompt_tokens_details"] = None


class ReportCached(Gateway):
    """Writes cached_tokens itself: always 0 (`share` 0), nearly all (`less` 1), or more than there is (`less` −1)."""

    def __init__(self, share: int = 1, less: int = 0) -> None:
        self._share, self._less = share, less

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        usage = body.get("usage")
        if isinstance(usage, dict):
            usage["prompt_tokens_details"] = {"cached_tokens": max(0, self._share * (usage["prompt_tokens"] - self._less))}


class Hide(Gateway):
    """Some paths are not let through."""

    def __init__(self, *paths: str) -> None:
        self.hidden = paths


class HideConfig(Gateway):
    """/metrics without the cache's configuration."""

    def change_text(self, path: str, text: str) -> str:
        return "\n".join(line for line in text.split("\n") if "cache_config_info" not in line)


class Anonymous(Gateway):
    """What engine answers cannot be told. `takes_ids` False: prompts are text, and no ids are told."""

    hidden = ("/metrics", "/version", "/server_info", "/get_server_info", "/tokenize", "/v1/tokenize", "/reset_prefix_cache")

    def __init__(self, takes_ids: bool = True) -> None:
        self._takes_ids = takes_ids

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        for one in body.get("data", ()) if path == "/v1/models" else ():
            one["owned_by"] = "somebody"
        if not self._takes_ids:
            hide_ids(body)

    def refuse(self, path: str, body: dict[str, Any]) -> Response | None:
        strict = {"return_token_ids", "cache_salt"} & set(body)
        if strict or (not self._takes_ids and isinstance(body.get("prompt"), list)):
            return JSONResponse({"error": {"message": "unknown field or type", "type": "invalid_request_error"}}, 400)
        return None


class RefuseStreams(Gateway):
    """Streaming is switched off."""

    def refuse(self, path: str, body: dict[str, Any]) -> Response | None:
        return JSONResponse({"error": {"message": "streaming is not supported"}}, 400) if body.get("stream") else None


class FailSometimes(Gateway):
    """One computed request in `every` gets a 500."""

    def __init__(self, every: int) -> None:
        self._every, self._numbers = every, itertools.count(1)

    def refuse(self, path: str, body: dict[str, Any]) -> Response | None:
        if path in (COMPLETIONS, CHATS) and next(self._numbers) % self._every == 0:
            return JSONResponse({"error": {"message": "upstream is gone"}}, 500)
        return None


class DoubleOpening(Gateway):
    """A tokenizer that opens every text with one id, and a chat template that writes it once more."""

    OPENING = 3

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        if path == "/tokenize" and isinstance(body.get("tokens"), list):
            body["tokens"] = [self.OPENING, *body["tokens"]]
        if path == CHATS:
            for one in (body, *body.get("choices", ())):
                if isinstance(one.get("prompt_token_ids"), list):
                    one["prompt_token_ids"] = [self.OPENING, self.OPENING, *one["prompt_token_ids"]]


def hide_ids(body: dict[str, Any]) -> None:
    """Take the token ids out of a reply."""
    for one in (body, *body.get("choices", ())):
        for name in ("prompt_token_ids", "token_ids"):
            one.pop(name, None)


@contextmanager
def fronted(*servers: str, gateway: Gateway) -> Iterator[str]:
    """The base URL of a gateway that runs inside."""
    gateway.servers = servers
    # Named as TCP, asyncio sends small replies at once; otherwise each waits 40 ms for an acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    # No log, and no Server header of its own: replies carry what stands behind.
    config = uvicorn.Config(_app(gateway), lifespan="on", log_config=None, server_header=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="gateway")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the gateway did not end"


def _app(gateway: Gateway) -> Starlette:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as app.state.client:
            yield

    async def pass_on(request: Request) -> Response:
        path, content = request.url.path, await request.body()
        if path in gateway.hidden:
            return JSONResponse({"detail": "Not Found"}, 404)
        body = json.loads(content) if content else None
        if isinstance(body, dict):
            refusal = gateway.refuse(path, body)
            if refusal is not None:
                return refusal
            gateway.change_request(path, body)
            content = json.dumps(body).encode()
        headers = {name: value for name, value in request.headers.items() if name in ("authorization", "content-type")}
        url = gateway.server_for(path) + path
        reply = await request.app.state.client.request(request.method, url, content=content, headers=headers)
        headers = {name: value for name, value in reply.headers.items() if name in ("content-type", "server")}
        return Response(_changed(gateway, path, reply), reply.status_code, headers)

    return Starlette(routes=[Route("/{path:path}", pass_on, methods=METHODS)], lifespan=lifespan)


def _changed(gateway: Gateway, path: str, reply: httpx.Response) -> str:
    if "json" not in reply.headers.get("content-type", ""):
        return gateway.change_text(path, reply.text)
    body = reply.json()
    if isinstance(body, dict) and reply.status_code < 400:
        gateway.change_reply(path, body)
    return json.dumps(body)
