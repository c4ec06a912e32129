"""Gateways that put something in front of each prompt: a number that grows, a clock, the same text for all."""

from __future__ import annotations

import itertools
import time
from typing import Any

from starlette.responses import JSONResponse, Response

from tests.servers.gateways.gateway import CHATS, COMPLETIONS, Gateway, hide_ids


class PrependCounter(Gateway):
    """A number that grows stands in front of every prompt."""

    def __init__(self) -> None:
        self._numbers = itertools.count(10)

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


class SameFront(Gateway):
    """The same ids stand in front of all prompts of ids. No ids are told."""

    def __init__(self, num_ids: int) -> None:
        self._front = [5] * num_ids

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path == COMPLETIONS and isinstance(body["prompt"], list):
            body["prompt"] = [*self._front, *body["prompt"]]

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        hide_ids(body)


class CutFronts(Gateway):
    """Of prompts of ids only the last `most` are passed on."""

    def __init__(self, most: int) -> None:
        self._most = most

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path == COMPLETIONS and isinstance(body["prompt"], list):
            body["prompt"] = body["prompt"][-self._most :]


class CountInTheMiddle(Gateway):
    """The id behind the first `kept` of a prompt is another one each time. No ids are told."""

    def __init__(self, kept: int) -> None:
        self._kept, self._numbers = kept, itertools.count(500)

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path == COMPLETIONS and isinstance(body["prompt"], list) and len(body["prompt"]) > self._kept:
            body["prompt"][self._kept] = next(self._numbers)

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        hide_ids(body)


class PrependClock(Gateway):
    """A clock of `tick_s` stands in front of prompts of ids: repeats at once find, later ones do not. No ids are told."""

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path == COMPLETIONS and isinstance(body["prompt"], list):
            body["prompt"] = [1, 2, int(time.time() / self._tick_s) % 20_000, *body["prompt"]]

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        hide_ids(body)


class ClockInChat(Gateway):
    """The chat template writes the time, to the nanosecond. `shows_ids` False: replies do not tell how the model saw it."""

    def __init__(self, shows_ids: bool = True) -> None:
        self._shows_ids = shows_ids

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path == CHATS:
            now = str(time.time_ns())[-9:]
            body["messages"] = [{"role": "system", "content": f"The time is {now}."}, *body["messages"]]

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        if not self._shows_ids:
            hide_ids(body)


class SlowClockInChat(Gateway):
    """Each chat begins with the date and the minute."""

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path == CHATS:
            now = time.strftime("It is %Y-%m-%d %H:%M.")
            body["messages"] = [{"role": "system", "content": now}, *body["messages"]]


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
