"""build_app: one engine loop as an HTTP application, in the flavor of vLLM's or SGLang's server.

    FrontDoor ──▶ routes ──▶ Intake ──Job──▶ Generation ──▶ EngineLoop
                                                │
                             Replies ◀──outputs─┘

Starlette is imported here and in the routes only; `import engine` loads none of it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.server.engine_loop import EngineLoop
from engine.server.options import ServerOptions
from engine.server.requests.refusal import Refusal
from engine.server.routes.admin_routes import AdminRoutes
from engine.server.routes.front_door import FrontDoor
from engine.server.routes.generation_routes import GONE, GenerationRoutes
from engine.server.routes.native_routes import NativeRoutes
from engine.server.routes.parts import ServerParts, connect_parts, error_reply
from engine.server.routes.text_routes import TextRoutes

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer
    from engine.server.metrics.prometheus import ServerMetrics

logger = logging.getLogger(__name__)


def build_app(
    engine_loop: EngineLoop, options: ServerOptions, text: TextTokenizer, metrics: ServerMetrics | None = None
) -> Starlette:
    """The application; the loop runs between its startup and its shutdown.

    metrics  follows the loop; None: no /metrics
    """
    parts = connect_parts(engine_loop, options, text, metrics)
    routes = [*GenerationRoutes(parts).routes(), *TextRoutes(parts).routes(), *AdminRoutes(parts).routes()]
    routes += [] if parts.is_vllm else NativeRoutes(parts).routes()
    middleware = [Middleware(FrontDoor, options=options)]
    if not parts.is_vllm:  # SGLang lets the pages of any origin in, vLLM of none unless told
        any_of_all = {"allow_origins": ["*"], "allow_methods": ["*"], "allow_headers": ["*"], "allow_credentials": True}
        middleware.append(Middleware(CORSMiddleware, **any_of_all))
    return Starlette(
        routes=[_guarded(route, parts) for route in routes],
        middleware=middleware,
        exception_handlers={HTTPException: _http_error},
        lifespan=_running(parts),
    )


def _guarded(route: Route, parts: ServerParts) -> Route:
    """A route whose failures are all told in the flavor's shape."""
    endpoint = route.endpoint

    async def guarded(request: Request) -> Any:
        try:
            return await endpoint(request)
        except Refusal as refusal:
            return error_reply(parts, refusal)
        except ClientDisconnect:
            return Response(status_code=GONE)
        except HTTPException:
            raise
        except Exception as error:
            # Its words may hold what the client sent: the kind is enough to look for it.
            logger.error("%s failed: %s", route.path, type(error).__name__)
            return error_reply(parts, Refusal("an internal error", status=500))

    wrapped = Route(route.path, guarded)
    wrapped.methods = route.methods  # as they are: a new route would take HEAD wherever it takes GET
    return wrapped


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


def _running(parts: ServerParts) -> Any:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        event_loop = asyncio.get_running_loop()
        parts.loop.start(lambda function: event_loop.call_soon_threadsafe(function))
        try:
            yield
        finally:
            await event_loop.run_in_executor(None, parts.loop.stop)
            parts.reader.close()

    return lifespan
