"""ServerParts: the rooms that the routes of one server share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from engine.server.answers.sglang_replies import SGLangReplies
from engine.server.answers.vllm_replies import VLLMReplies
from engine.server.engine_loop import EngineLoop
from engine.server.options import ServerOptions
from engine.server.requests.body_reader import BodyReader
from engine.server.requests.body_room import BodyRoom
from engine.server.requests.intake import Intake
from engine.server.requests.json_body import check_content_type, read_body
from engine.server.requests.refusal import Refusal
from engine.server.requests.server_rules import ServerRules
from engine.server.requests.sglang_rules import SGLangRules
from engine.server.requests.vllm_rules import VLLMRules
from engine.server.routes.generation import Generation

if TYPE_CHECKING:
    from starlette.requests import Request

    from engine.model.tokenizer import TextTokenizer
    from engine.server.metrics.prometheus import ServerMetrics

Made = TypeVar("Made")


@dataclass(frozen=True)
class ServerParts:
    """One engine, and all that stands between it and HTTP."""

    options: ServerOptions
    loop: EngineLoop
    text: TextTokenizer
    metrics: ServerMetrics | None
    rules: ServerRules
    replies: VLLMReplies | SGLangReplies
    intake: Intake
    generation: Generation
    reader: BodyReader
    room: BodyRoom

    @property
    def is_vllm(self) -> bool:
        return self.options.flavor == "vllm"

    async def read(self, request: Request, parse: Callable[[bytes], Made]) -> Made:
        """A body, read here and parsed on the reader's thread. Raises Refusal."""
        check_content_type(request)
        with self.room.held() as share:
            return await self.reader.read(await read_body(request, self.options, share), parse)


def connect_parts(loop: EngineLoop, options: ServerOptions, text: TextTokenizer, metrics: ServerMetrics | None) -> ServerParts:
    """The parts of a server of the options' flavor."""
    rules: ServerRules
    if options.flavor == "vllm":
        rules, replies = VLLMRules(options, loop.engine), VLLMReplies(options, loop.engine, text)
    else:
        rules, replies = SGLangRules(options, loop.engine), SGLangReplies(options, loop.engine, text)
    on_rejected = metrics.reject if metrics is not None else _tell_nobody
    return ServerParts(
        options=options,
        loop=loop,
        text=text,
        metrics=metrics,
        rules=rules,
        replies=replies,
        intake=Intake(loop.engine, rules, text),
        generation=Generation(loop, options, rules, text, on_rejected),
        reader=BodyReader(),
        room=BodyRoom(options.max_held_bytes),
    )


def error_reply(parts: ServerParts, refusal: Refusal, body: dict[str, Any] | None = None) -> Any:
    """A Refusal as an HTTP response; `body` where it is not the flavor's usual one."""
    from starlette.responses import JSONResponse

    headers = {} if refusal.retry_after_s is None else {"Retry-After": str(refusal.retry_after_s)}
    if refusal.status == 408:
        headers["Connection"] = "close"  # the rest of the body would keep the connection for as long as its client likes
    return JSONResponse(parts.rules.error_body(refusal) if body is None else body, refusal.status, headers)


def _tell_nobody(reason: str) -> None:
    pass
