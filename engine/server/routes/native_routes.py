"""Routes that SGLang alone has: /generate, /abort_request, /health_generate, and some that only look.

A health check computes a token, unless requests run anyway: it is counted in the steps, and not among the requests; token 0 is
cached afterwards. There also a plain /health does so, unless told not to; here it only looks.
A stream that cannot begin is refused with its status; there it is a stream of one error.
With `n` each prompt is computed before its answers are begun. Where that is aborted the answers are too; there they are begun
all the same. Ctrl-C meanwhile: the prompt counts as a request that was let finish, its answers as newcomers, who get 503.
"""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.server.answers.native_replies import NativeReplies
from engine.server.requests.json_body import parse_object
from engine.server.requests.refusal import Refusal
from engine.server.requests.request_body import AbortBody, read_fields
from engine.server.requests.sglang_rules import SGLangRules
from engine.server.routes.exact_route import exact_route
from engine.server.routes.generation_routes import GONE, MEDIA_TYPE
from engine.server.routes.parts import ServerParts, error_reply
from engine.server.server_info import models_body


class NativeRoutes:
    """SGLang's own way to be asked."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._replies = NativeReplies(parts.text)

    def routes(self) -> list[Route]:
        return [
            exact_route("/generate", self.generate, "POST", "PUT"),
            exact_route("/abort_request", self.abort_request, "POST"),
            exact_route("/health_generate", self.health_generate),
            *(exact_route(path, self.ready) for path in ("/ready", "/ping")),
            exact_route("/", self.root, "GET", "HEAD"),
            exact_route("/v1/models/{name:path}", self.model),
        ]

    async def generate(self, request: Request) -> Any:
        parts, replies = self._parts, self._replies
        assert isinstance(parts.rules, SGLangRules)
        try:
            job = await parts.read(request, parts.intake.native)
            for name in (*job.names, *job.warm_up_names):
                if parts.generation.is_taken(name):
                    raise Refusal(f"Duplicate request ID detected: {name[:64]}", param="rid")
            ready = await parts.generation.warm_up(job, request.receive)
            if ready is None:
                return Response(status_code=GONE)
            if ready.is_streaming:
                return parts.generation.stream(ready, replies.events_of(job), replies.last_events, MEDIA_TYPE)
            answer = await parts.generation.whole(ready, replies.whole, request.receive)
        except Refusal as refusal:
            return error_reply(parts, refusal, parts.rules.native_error_body(refusal))
        return Response(status_code=GONE) if answer is None else JSONResponse(answer)

    async def abort_request(self, request: Request) -> Response:
        """End the request of a name, or all: their clients get what there is. A name that nobody has is fine."""
        asked = await self._parts.read(request, lambda body: read_fields(AbortBody, parse_object(body)))
        if asked.abort_all:
            self._parts.generation.abort_all()
        elif asked.rid:
            self._parts.generation.abort(asked.rid)
        return Response()

    async def health_generate(self, request: Request) -> Response:
        """Whether a token comes out."""
        parts = self._parts
        if parts.loop.num_unfinished == 0:
            try:
                await parts.generation.whole(parts.intake.health_check(), self._replies.whole, request.receive)
            except Refusal:
                return Response(status_code=503)
        return await self.ready(request)

    async def ready(self, request: Request) -> Response:
        return Response(status_code=200 if self._parts.loop.is_healthy else 503)

    async def root(self, request: Request) -> JSONResponse:
        return JSONResponse("SGLang is running")

    async def model(self, request: Request) -> JSONResponse:
        name = request.path_params["name"]
        (card,) = models_body(self._parts.options, self._parts.loop.engine, int(time.time()))["data"]
        if name == card["id"]:
            return JSONResponse(card)
        # OpenAI's shape for once, as there.
        error = {"message": f"The model '{name}' does not exist", "type": "invalid_request_error"}
        return JSONResponse({"error": {**error, "param": "model", "code": "model_not_found"}}, 404)
