"""Gateways that hide or change what a server tells: usage, metrics, what engine it is."""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import JSONResponse, Response

from tests.servers.gateways.gateway import CHATS, COMPLETIONS, Gateway, hide_ids


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


class ReportCached(Gateway):
    """Writes cached_tokens itself: always 0 (`share` 0), or more than there is (`less` −1)."""

    def __init__(self, share: int = 1, less: int = 0) -> None:
        self._share, self._less = share, less

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        usage = body.get("usage")
        if isinstance(usage, dict):
            usage["prompt_tokens_details"] = {"cached_tokens": max(0, self._share * (usage["prompt_tokens"] - self._less))}


class HideDetailsInChat(Gateway):
    """Chat replies do not tell what was found."""

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        if path == CHATS:
            body["usage"]["prompt_tokens_details"] = None


class KeepMetrics(Gateway):
    """/metrics is read anew only every `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._kept, self._kept_s = seconds, "", 0.0

    def change_text(self, path: str, text: str) -> str:
        if path == "/metrics" and time.monotonic() - self._kept_s > self._seconds:
            self._kept, self._kept_s = text, time.monotonic()
        return self._kept if path == "/metrics" else text


class HideConfig(Gateway):
    """/metrics without the cache's configuration."""

    def change_text(self, path: str, text: str) -> str:
        return "\n".join(line for line in text.split("\n") if "cache_config_info" not in line)


class Hide(Gateway):
    """Some paths are not let through."""

    def __init__(self, *paths: str) -> None:
        self.hidden = paths


class Anonymous(Gateway):
    """What engine answers cannot be told; prompts are text, and no ids are told."""

    hidden = ("/metrics", "/version", "/server_info", "/get_server_info", "/tokenize", "/v1/tokenize", "/reset_prefix_cache")

    def change_reply(self, path: str, body: dict[str, Any]) -> None:
        for one in body.get("data", ()) if path == "/v1/models" else ():
            one["owned_by"] = "somebody"
        hide_ids(body)

    def refuse(self, path: str, body: dict[str, Any]) -> Response | None:
        if {"return_token_ids", "cache_salt"} & set(body) or isinstance(body.get("prompt"), list):
            return JSONResponse({"error": {"message": "unknown field or type", "type": "invalid_request_error"}}, 400)
        return None
