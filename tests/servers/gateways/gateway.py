"""Gateway: what stands between users and engines. This one passes everything on as it is.

    with served() as server, fronted(server, gateway=SaltEachRequest()) as url:
        httpx.post(url + "/v1/completions", json={...})

A subclass, with one fault, changes a request's body, a reply's body, a reply as a whole, the choice of the server, or refuses.
The files beside this one hold them. Replies are passed on whole, streams too: no test here is about when a chunk comes. All on
127.0.0.1.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import asynccontextmanager, contextmanager
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
    connection = 0  # of the request under way: the client's port

    def server_for(self, path: str) -> str:
        return self.servers[0]

    def ended(self, server: str) -> None:
        """A server has answered."""

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


def hide_ids(body: dict[str, Any]) -> None:
    """Take the token ids out of a reply."""
    for one in (body, *body.get("choices", ())):
        for name in ("prompt_token_ids", "token_ids"):
            one.pop(name, None)


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
        gateway.connection = request.client.port
        if isinstance(body, dict):
            refusal = gateway.refuse(path, body)
            if refusal is not None:
                return refusal
            gateway.change_request(path, body)
            content = json.dumps(body).encode()
        headers = {name: value for name, value in request.headers.items() if name in ("authorization", "content-type")}
        server = gateway.server_for(path)
        try:
            reply = await request.app.state.client.request(request.method, server + path, content=content, headers=headers)
        finally:
            gateway.ended(server)
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
