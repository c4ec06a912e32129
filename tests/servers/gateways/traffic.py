"""Gateways that send a request elsewhere, late, or back: several servers, busy ones, failing ones, slow ones."""

from __future__ import annotations

import itertools
import json
import time
from hashlib import sha256
from typing import Any

from starlette.responses import JSONResponse, Response

from tests.servers.gateways.gateway import CHATS, COMPLETIONS, Gateway


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
