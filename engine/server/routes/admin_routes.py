"""Routes about the server itself: health, models, metrics, version, and the reset of the prefix cache.

vLLM's reset exists in its dev mode only and always answers 200: the body tells whether it happened. SGLang's flush always
exists, answers 400 while any request runs or waits, and can wait for them.
"""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.server.answers.event_stream import disconnected
from engine.server.requests.json_body import invalid
from engine.server.routes.exact_route import exact_route
from engine.server.routes.generation_routes import GONE
from engine.server.routes.parts import ServerParts
from engine.server.server_info import VLLM_VERSION, model_info, models_body, server_info, vllm_server_info

_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
_NOT_FLUSHED = "Flush cache failed.\n"
_FLUSH_UNDER_WAY = "Another flush_cache is already in progress."
_FLUSH_TOO_LATE = "Timed out waiting for idle state."
_LOOK_EVERY_S = 0.01  # while a flush waits
_TRUE_WORDS = {"true", "1", "yes", "on", "t", "y"}
_FALSE_WORDS = {"false", "0", "no", "off", "f", "n"}


class AdminRoutes:
    """What a server tells of itself, and is told to do."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._started_s = int(time.time())
        self._is_flushing = False

    def routes(self) -> list[Route]:
        parts = self._parts
        routes = [exact_route("/health", self.health), exact_route("/v1/models", self.models)]
        if parts.metrics is not None and parts.options.metrics_endpoint:
            routes.append(Route("/metrics", self.metrics, methods=["GET", "HEAD", "POST"]))
        return routes + (self._vllm_routes() if parts.is_vllm else self._sglang_routes())

    def _vllm_routes(self) -> list[Route]:
        routes = [
            exact_route("/version", self.version),
            exact_route("/ping", self.health, "GET", "POST"),
            exact_route("/load", self.load),
        ]
        if self._parts.options.reset_endpoint:  # its dev mode
            routes.append(exact_route("/reset_prefix_cache", self.reset_prefix_cache, "POST"))
            routes += [exact_route(path, self.reset_other_cache, "POST") for path in ("/reset_mm_cache", "/reset_encoder_cache")]
            routes.append(exact_route("/server_info", self.vllm_server_info))
        return routes

    def _sglang_routes(self) -> list[Route]:
        routes = [exact_route("/flush_cache", self.flush_cache, "GET", "POST")]
        routes += [exact_route(path, self.server_info) for path in ("/server_info", "/get_server_info")]
        routes += [exact_route(path, self.model_info) for path in ("/model_info", "/get_model_info")]
        return routes

    async def health(self, request: Request) -> Response:
        return Response(status_code=200 if self._parts.loop.is_healthy else 503)

    async def models(self, request: Request) -> JSONResponse:
        return JSONResponse(models_body(self._parts.options, self._parts.loop.engine, self._started_s))

    async def metrics(self, request: Request) -> Response:
        assert self._parts.metrics is not None
        body, content_type = self._parts.metrics.render()
        return Response(body, headers={"content-type": content_type})

    async def version(self, request: Request) -> JSONResponse:
        return JSONResponse({"version": VLLM_VERSION})

    async def load(self, request: Request) -> JSONResponse:
        return JSONResponse({"server_load": 0})  # nought unless vLLM is told to count, and it is not by default

    async def vllm_server_info(self, request: Request) -> JSONResponse:
        form = request.query_params.get("config_format", "text")
        if form not in ("text", "json"):
            raise invalid("config_format: Input should be 'text' or 'json'", param="config_format")
        return JSONResponse(vllm_server_info(self._parts.loop.engine, as_text=form == "text"))

    async def server_info(self, request: Request) -> JSONResponse:
        return JSONResponse(server_info(self._parts.options, self._parts.loop.engine))

    async def model_info(self, request: Request) -> JSONResponse:
        return JSONResponse(model_info(self._parts.options, self._parts.loop.engine))

    async def reset_prefix_cache(self, request: Request) -> JSONResponse:
        reset_running = _flag(request, "reset_running_requests")
        _flag(request, "reset_external")  # there is no external cache to reset
        return JSONResponse({"success": await asyncio.wrap_future(self._parts.loop.reset(reset_running))})

    async def reset_other_cache(self, request: Request) -> Response:
        return Response()  # of images and of encoders' outputs: there is none

    async def flush_cache(self, request: Request) -> Response:
        timeout_s = min(_seconds(request), self._parts.options.request_timeout_s)
        if self._is_flushing:
            return Response(_FLUSH_UNDER_WAY, 400)
        self._is_flushing = True
        flushing = asyncio.ensure_future(self._flush(timeout_s))
        watcher = asyncio.ensure_future(disconnected(request.receive))
        try:
            await asyncio.wait({flushing, watcher}, return_when=asyncio.FIRST_COMPLETED)
            return flushing.result() if flushing.done() else Response(status_code=GONE)
        finally:
            self._is_flushing = False
            flushing.cancel()
            watcher.cancel()

    async def _flush(self, timeout_s: float) -> Response:
        deadline_s = time.monotonic() + timeout_s
        while not await asyncio.wrap_future(self._parts.loop.flush()):
            if timeout_s <= 0:
                return Response(_NOT_FLUSHED, 400)
            if time.monotonic() >= deadline_s:
                return Response(_FLUSH_TOO_LATE, 400)
            await asyncio.sleep(_LOOK_EVERY_S)
        return Response(_FLUSHED)


def _flag(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "false").lower()
    if value not in _TRUE_WORDS | _FALSE_WORDS:
        raise invalid(f"{name}: Input should be a valid boolean", param=name)
    return value in _TRUE_WORDS


def _seconds(request: Request) -> float:
    try:
        seconds = float(request.query_params.get("timeout", "0"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise invalid("timeout: Input should be a number of seconds, from 0", param="timeout")
    return seconds
