"""The OpenAI-compatible routes that generate: /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.server.answers.event_stream import EventStream
from engine.server.requests.job import Job
from engine.server.routes.parts import ServerParts

GONE = 499  # nobody reads it: the client closed the connection
MEDIA_TYPE = "text/event-stream; charset=utf-8"


class GenerationRoutes:
    """Bodies in, answers out."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts

    def routes(self) -> list[Route]:
        return [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]

    async def completions(self, request: Request) -> Any:
        parts = self._parts
        job = parts.rules.read_headers(await parts.read(request, parts.intake.completion), request.headers)
        if job.is_streaming:
            return self._stream(job, parts.replies.completion_chunks)
        return await self._whole(job, parts.replies.completion, request)

    async def chat(self, request: Request) -> Any:
        parts = self._parts
        job = parts.rules.read_headers(await parts.read(request, parts.intake.chat), request.headers)
        if job.is_streaming:
            return self._stream(job, parts.replies.chat_chunks)
        return await self._whole(job, parts.replies.chat, request)

    def _stream(self, job: Job, chunks: Any) -> EventStream:
        return self._parts.generation.stream(job, chunks, self._parts.replies.last_chunks, MEDIA_TYPE)

    async def _whole(self, job: Job, reply: Any, request: Request) -> Response:
        answer = await self._parts.generation.whole(job, reply, request.receive)
        return Response(status_code=GONE) if answer is None else JSONResponse(answer)
