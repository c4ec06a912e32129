"""The body of a request, from the socket to a checked JSON object: bounded in size and time.

Every fault is one Refusal; the body's content is in none of them.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from engine.server.options import ServerOptions
from engine.server.requests.body_room import BodyShare
from engine.server.requests.refusal import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request


async def read_body(request: Request, options: ServerOptions, share: BodyShare) -> bytes:
    """The whole body. Raises Refusal: 413 when it is too big, 408 when it comes too slowly, 503 when `share` may not grow."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > options.max_body_bytes:
        raise _too_big(options)
    try:
        async with asyncio.timeout(options.body_timeout_s):
            return await _read(request, options, share)
    except TimeoutError:
        raise Refusal(f"the body did not arrive within {options.body_timeout_s:g} s", status=408) from None


async def _read(request: Request, options: ServerOptions, share: BodyShare) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > options.max_body_bytes:
            raise _too_big(options)
        share.grow(size)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_big(options: ServerOptions) -> Refusal:
    return Refusal(f"the body is too big; accepted: up to {options.max_body_bytes:,} bytes", status=413)


def check_content_type(request: Request) -> None:
    """Raises Refusal for anything but JSON, whatever its charset and case: as both real servers do."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise invalid("Unsupported Media Type: Only 'application/json' is allowed")


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises Refusal for anything else, and for numbers and texts that JSON has no words for."""
    try:
        parsed = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
    except Refusal:
        raise
    except UnicodeDecodeError:
        raise invalid("the body is not valid UTF-8") from None
    except ValueError:  # also a whole number of thousands of digits
        raise invalid("the body is not valid JSON") from None
    except RecursionError:
        raise invalid("the body is nested too deeply") from None
    if not isinstance(parsed, dict):
        raise invalid("the body is not a JSON object")
    if b"\\u" in body:
        _check_texts(parsed)
    return parsed


def invalid(message: str, param: str | None = None) -> Refusal:
    """A body that cannot be read, in the words' type that both servers use for it."""
    return Refusal(message, param=param, error_type="Bad Request")


def _refuse_constant(name: str) -> float:
    raise invalid(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise invalid("a number is too large")
    return value


def _check_texts(parsed: dict[str, Any]) -> None:
    try:
        json.dumps(parsed, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise invalid("the body is nested too deeply") from None
    except UnicodeEncodeError:
        raise invalid("a text is not valid Unicode: half of a surrogate pair") from None
