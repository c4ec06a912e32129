"""FrontDoor: what every request passes before a route: the key, and on the way back the name of this software.

vLLM     asks for the key under /v1, /v2 and /inference; /tokenize, /metrics and /health are open
SGLang   asks for it everywhere but /health, /ready and /metrics
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from engine.server.options import ServerOptions

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_VLLM_GUARDED = ("/v1", "/v2", "/inference")
_SGLANG_OPEN = ("/health", "/ready", "/metrics")


class FrontDoor:
    """ASGI around the routes."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._options = options
        self._server = options.software.encode("ascii", "replace")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_name(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"server", self._server)]
            await send(message)

        if self._is_let_in(scope):
            await self._app(scope, receive, send_with_name)
            return
        body = b'{"error":"Unauthorized"}'
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send_with_name({"type": "http.response.start", "status": 401, "headers": headers})
        await send_with_name({"type": "http.response.body", "body": body})

    def _is_let_in(self, scope: Scope) -> bool:
        key = self._options.api_key
        if key is None or scope["method"] == "OPTIONS" or not self._is_guarded(scope["path"]):
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        # In the same time whatever is wrong with it.
        return scheme.lower() == b"bearer" and hmac.compare_digest(token, key.encode("ascii"))

    def _is_guarded(self, path: str) -> bool:
        if self._options.flavor == "vllm":
            return path.startswith(_VLLM_GUARDED)
        return not path.startswith(_SGLANG_OPEN)
