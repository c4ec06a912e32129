"""Gateways that send a request elsewhere, late, twice, or back: several servers, busy ones, failing ones, slow ones."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from hashlib import sha256
from typing import Any

import httpx
from starlette.responses import JSONResponse, Response

from tests.servers.gateways.gateway import CHATS, COMPLETIONS, Gateway


class RoundRobin(Gateway):
    """Each request goes to the next server; /metrics too."""

    def __init__(self) -> None:
        self._turn = itertools.count()

    def server_for(self, path: str) -> str:
        return self.servers[next(self._turn) % len(self.servers)]


class ByConnection(Gateway):
    """All that comes over one connection goes to one server, /metrics too, as behind a Kubernetes Service."""

    def __init__(self) -> None:
        self._homes: dict[int, int] = {}

    def server_for(self, path: str) -> str:
        return self.servers[self._homes.setdefault(self.connection, len(self._homes)) % len(self.servers)]


class Idlest(Gateway):
    """To the server with the fewest requests under way; of equals to the first."""

    def __init__(self) -> None:
        self._loads: Counter[str] = Counter()

    def server_for(self, path: str) -> str:
        server = min(self.servers, key=lambda one: self._loads[one])
        self._loads[server] += 1
        return server

    def ended(self, server: str) -> None:
        self._loads[server] -= 1


class SendTwice(Gateway):
    """Each request is sent before, by what reads along; the later reply is passed on."""

    def __init__(self) -> None:
        self._client = httpx.Client(verify=False)

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path in (COMPLETIONS, CHATS) and not body.get("stream"):
            self._client.post(self.servers[0] + path, json=body)


class KeepReplies(Gateway):
    """A request that was answered before gets that very reply."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {}

    def refuse(self, path: str, body: dict[str, Any]) -> Response | None:
        self._key = path + json.dumps(body, sort_keys=True)
        return JSONResponse(self._kept[self._key]) if self._key in self._kept else None

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        if path in (COMPLETIONS, CHATS):
            self._kept[self._key] = body


class ByPrompt(RoundRobin):
    """Fronts of prompts have a home each; whatever else is asked goes to any: affinity as it should be, behind one address.

    num_ids  of the front; None: whole prompts have a home each, and shared fronts are met by chance
    """

    def __init__(self, num_ids: int | None = 8) -> None:
        super().__init__()
        self._num_ids = num_ids

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        prompt = body.get("prompt")
        front = json.dumps(prompt[: self._num_ids] if isinstance(prompt, list) else prompt)
        self._home = self.servers[sha256(front.encode()).digest()[0] % len(self.servers)]

    def server_for(self, path: str) -> str:
        return self._home if path in (COMPLETIONS, CHATS) else super().server_for(path)


class BusyAtTimes(Gateway):
    """One computed request in `every` is turned away with a 503, and asked to come again at once."""

    def __init__(self, every: int) -> None:
        self._every, self._numbers = every, itertools.count(1)

    def refuse(self, path: str, body: dict[str, Any]) -> Response | None:
        if path in (COMPLETIONS, CHATS) and next(self._numbers) % self._every == 0:
            return JSONResponse({"error": {"message": "busy"}}, 503, {"Retry-After": "0"})
        return None


class FailSometimes(Gateway):
    """One computed request in `every` gets a 500."""

    def __init__(self, every: int) -> None:
        self._every, self._numbers = every, itertools.count(1)

    def refuse(self, path: str, body: dict[str, Any]) -> Response | None:
        if path in (COMPLETIONS, CHATS) and next(self._numbers) % self._every == 0:
            return JSONResponse({"error": {"message": "upstream is gone"}}, 500)
        return None


class RefuseStreams(Gateway):
    """Streaming is switched off."""

    def refuse(self, path: str, body: dict[str, Any]) -> Response | None:
        return JSONResponse({"error": {"message": "streaming is not supported"}}, 400) if body.get("stream") else None


class Slow(Gateway):
    """Each prompt takes so long for each of its tokens, and all after the first `num_quick` requests `stall_s` more."""

    def __init__(self, token_s: float = 0.0, num_quick: int = 0, stall_s: float = 0.0) -> None:
        self._token_s, self._stall_s, self._numbers, self._num_quick = token_s, stall_s, itertools.count(1), num_quick

    def refuse(self, path: str, body: dict[str, Any]) -> Response | None:
        if path == COMPLETIONS:
            num_tokens = len(body["prompt"]) if isinstance(body["prompt"], list) else body["prompt"].count(" ") + 1
            time.sleep(self._token_s * num_tokens + self._stall_s * (next(self._numbers) > self._num_quick))
        return None
