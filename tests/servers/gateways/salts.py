"""Gateways that set, replace or drop a request's salt: equal prompts no longer find each other, or all do."""

from __future__ import annotations

import json
import secrets
from hashlib import sha256
from typing import Any

from tests.servers.gateways.gateway import CHATS, COMPLETIONS, Gateway


class SaltEachRequest(Gateway):
    """Every request gets a salt of its own, as an over-careful tenant isolation does."""

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path in (COMPLETIONS, CHATS):
            body["cache_salt"] = secrets.token_hex(8)


class SaltEachConnection(Gateway):
    """Every connection's requests share a salt of its own, but where they bring one."""

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path in (COMPLETIONS, CHATS):
            body.setdefault("cache_salt", f"of connection {self.connection}")


class SaltLongPrompts(Gateway):
    """Prompts of more ids than `longest` get a salt each."""

    def __init__(self, longest: int) -> None:
        self._longest = longest

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path == COMPLETIONS and isinstance(body["prompt"], list) and len(body["prompt"]) > self._longest:
            body["cache_salt"] = secrets.token_hex(8)


class SaltByContent(Gateway):
    """The salt is the prompt's own hash: whole prompts are found again, shared fronts are not."""

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path in (COMPLETIONS, CHATS):
            body["cache_salt"] = sha256(json.dumps([body.get("prompt"), body.get("messages")]).encode()).hexdigest()[:16]


class DropSalt(Gateway):
    """Fields that OpenAI does not know are dropped, and isolation with them."""

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        body.pop("cache_salt", None)


class DropSaltInChat(Gateway):
    """The same in chat alone."""

    def change_request(self, path: str, body: dict[str, Any]) -> None:
        if path == CHATS:
            body.pop("cache_salt", None)


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
