"""Routes that generate: /v1/completions, /v1/chat/completions, and SGLang's /generate."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.server.answers.event_stream import EventStream
from engine.server.answers.sglang_replies import SGLangReplies
from engine.server.requests.job import Job
from engine.server.routes.parts import ServerParts

GONE = 499  # nobody reads it: the client closed the connection


class GenerationRoutes:
    """Bodies in, answers out."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._media_type = "text/event-stream; charset=utf-8"

    def routes(self) -> list[Route]:
        routes = [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]
        if isinstance(self._parts.replies, SGLangReplies):
            routes.append(Route("/generate", self.generate, methods=["POST", "PUT"]))
        return routes

    async def completions(self, request: Request) -> Any:
        parts = self._parts
        job = await parts.read(request, parts.intake.completion)
        if job.is_streaming:
            return self._stream(job, parts.replies.completion_chunks)
        return await self._whole(job, parts.replies.completion, request)

    async def chat(self, request: Request) -> Any:
        parts = self._parts
        job = await parts.read(request, parts.intake.chat)
        if job.is_streaming:
            return self._stream(job, parts.replies.chat_chunks)
        return await self._whole(job, parts.replies.chat, request)

    async def generate(self, request: Request) -> Any:
        parts = self._parts
        assert isinstance(parts.replies, SGLangReplies)
        job = await parts.read(request, parts.intake.native, any_type=True)
        return await self._whole(job, parts.replies.native, request)

    def _stream(self, job: Job, chunks: Any) -> EventStream:
        return self._parts.generation.stream(job, chunks, self._parts.replies.usage_chunk, self._media_type)

    async def _whole(self, job: Job, reply: Any, request: Request) -> Response:
        answer = await self._parts.generation.whole(job, reply, request.receive)
        return Response(status_code=GONE) if answer is None else JSONResponse(answer)
