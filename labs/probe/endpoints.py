"""Endpoints: where a server takes prompts, how each wants to be asked, and what comes back.

    /v1/completions        {"prompt": ids or text}            of short prompts the ids are asked back
    /v1/chat/completions   {"messages": […]}                  the same
    /generate              {"input_ids": …} or {"text": …}    SGLang's own: tells cached tokens without a flag

Every request is for one token, greedy, unless its body says more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Mapping

from labs.servers.server_client import ServerClient, ServerRefused
from labs.servers.server_facts import ServerFacts
from labs.servers.server_reply import ServerReply, Usage

COMPLETIONS, CHATS, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
TOO_LONG, NOT_THERE = (400, 413, 422), (404, 405)  # statuses
MAX_SHOWN_IDS = 1_100  # tokens of prompts whose ids are asked back; longer ones are only counted


@dataclass(frozen=True)
class Answer:
    """One reply, what /generate says it found, and when the request began and ended, by time.perf_counter()."""

    reply: ServerReply
    native_cached: int | None
    begin_s: float
    end_s: float


class Endpoints:
    """Those of one server. A body is {"prompt": …} or `messages_of(text)`, with a "cache_salt" or without."""

    def __init__(self, facts: ServerFacts) -> None:
        self._facts = facts
        self._asks_ids = True
        self.is_native = False
        self.has_native = facts.kind == "sglang"

    def use_native(self) -> None:
        """From now on send prompts to /generate."""
        self.is_native = True

    def leave_native(self) -> None:
        """From now on send prompts to completions again: a gateway may let nothing else through."""
        self.is_native = self.has_native = False

    def answer(self, client: ServerClient, body: Mapping[str, Any], size: int) -> Answer:
        """Send a body of about `size` tokens. Raises TargetError; ServerRefused among them for what the server does not take."""
        begin_s = time.perf_counter()
        if self.is_native and "prompt" in body:
            reply, cached = self._native_reply(client, body)
        else:
            reply, cached = self._reply(client, body, size), None
        return Answer(reply, cached, begin_s, time.perf_counter())

    def streamed_usage(self, client: ServerClient, body: Mapping[str, Any]) -> Usage:
        """The usage at the end of a stream that was asked for it. Raises as `answer`."""
        asked = {**body, **self._common(), "stream": True, "stream_options": {"include_usage": True}}
        return ServerReply.of_events(client.stream(_path(body), asked), client.shown).usage

    def _reply(self, client: ServerClient, body: Mapping[str, Any], size: int) -> ServerReply:
        path, asked = _path(body), {**self._common(), **body}
        if self._asks_ids and size <= MAX_SHOWN_IDS:
            try:
                return ServerReply.of_json(client.compute(path, {**asked, "return_token_ids": True}), 0.0, client.shown)
            except ServerRefused as error:
                # Servers that check their fields strictly know no such field.
                if self._facts.kind != "openai" or error.status not in TOO_LONG:
                    raise
                self._asks_ids = False
        return ServerReply.of_json(client.compute(path, asked), 0.0, client.shown)

    def _native_reply(self, client: ServerClient, body: Mapping[str, Any]) -> tuple[ServerReply, int | None]:
        prompt = body["prompt"]
        asked: dict[str, Any] = {"sampling_params": {"max_new_tokens": body.get("max_tokens", 1), "temperature": 0}}
        asked["text" if isinstance(prompt, str) else "input_ids"] = prompt
        if body.get("cache_salt") is not None:
            asked["cache_salt"] = body["cache_salt"]
        reply = ServerReply.of_generate(client.compute(GENERATE, asked), 0.0, 0.0, client.shown)
        # Its usage is /generate's own: what completions report is another question.
        return replace(reply, usage=Usage(reply.usage.prompt_tokens)), reply.usage.cached_tokens

    def _common(self) -> dict[str, Any]:
        return {"model": self._facts.model, "max_tokens": 1, "temperature": 0}


def messages_of(text: str) -> dict[str, Any]:
    """The body of a text that a person says."""
    return {"messages": [{"role": "user", "content": text}]}


def _path(body: Mapping[str, Any]) -> str:
    return CHATS if "messages" in body else COMPLETIONS
