"""Random damage to healthy replies: keys dropped, values of other types, bytes cut and changed; the same seed does the same."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any, Callable

import httpx

ODD_VALUES = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, 10**400, -(10**20), 0.5, 1e308, float("nan"), float("inf"), "", "16", "-1", "²", "NaN", "True",
    "x" * 5_000, "1" * 5_000, "\x00\x1b[31m\n", "\ud800", "é🙂", [], [1], [None], ["16"], [[1, 2]], [-1], [10**30], {}, {"id": 1}, {"error": "x"}, [{}],
)  # fmt: skip
ODD_TEXTS = (
    b"NaN",
    b"-5",
    b"1e999",
    b"\xff\xfe",
    b"\x00",
    b"\n\n",
    b"data: ",
    b"[DONE]",
    b"{",
    b"}",
    b'"',
    b",",
    b"1" * 5_000,
    b"true",
    b"null",
)
ODD_STATUSES = (100, 204, 206, 300, 304, 307, 400, 401, 403, 404, 405, 413, 422, 429, 500, 502, 503, 599, 999)
ODD_KINDS = (
    "text/plain; charset=base64",
    "text/html",
    "application/json; charset=utf-16",
    "",
    "text/plain; charset=undefined",
    "\xff",
)


@dataclass
class DamagedMind:
    """A healthy mind whose replies are damaged now and then.

    share  of the replies
    paths  the damaged ones; empty: all
    """

    mind: Callable[[httpx.Request], httpx.Response]
    rng: random.Random
    share: float
    paths: tuple[str, ...] = ()
    content: bytes = b""  # of the latest reply

    def __call__(self, request: httpx.Request) -> httpx.Response:
        reply = self.mind(request)
        if (not self.paths or request.url.path in self.paths) and self.rng.random() < self.share:
            reply = damaged(reply, self.rng)
        self.content = reply.content
        return reply


def damaged(reply: httpx.Response, rng: random.Random) -> httpx.Response:
    """The reply with one or two things wrong."""
    status, content, kind = reply.status_code, reply.content, reply.headers.get("content-type", "text/plain")
    for _ in range(rng.choice((1, 1, 1, 2))):
        way = rng.random()
        if way < 0.70:
            content = _damaged_json(content, rng)
        elif way < 0.90:
            content = _damaged_bytes(content, rng)
        elif way < 0.95:
            status = rng.choice(ODD_STATUSES)
        else:
            kind = rng.choice(ODD_KINDS)
    return httpx.Response(status, headers=[(b"content-type", kind.encode("latin-1"))], content=content)


def _damaged_json(content: bytes, rng: random.Random) -> bytes:
    """One value, somewhere in one of its JSON objects, is another or gone; a text that holds none loses or gains bytes."""
    events = content.split(b"\n\n") if content.startswith(b"data:") else [content]
    index = rng.randrange(len(events))
    begin = b"data: " if events[index].startswith(b"data:") else b""
    try:
        found = json.loads(events[index].removeprefix(b"data:"))
    except ValueError:
        return _damaged_bytes(content, rng)
    events[index] = begin + json.dumps(changed(found, rng)).encode("utf-8", "surrogatepass")
    return b"\n\n".join(events)


def changed(found: Any, rng: random.Random) -> Any:
    """A JSON value in which one thing, somewhere, is another or gone."""
    places = list(_places(found))
    if not places:
        return rng.choice(ODD_VALUES)
    holder, key = rng.choice(places)
    way = rng.random()
    if way < 0.3:
        del holder[key]
    elif way < 0.4 and isinstance(holder, list):
        holder.insert(key, rng.choice(ODD_VALUES))
    elif way < 0.5 and isinstance(holder[key], int):
        holder[key] += rng.choice((-1, 1, 16, -16))
    else:
        holder[key] = rng.choice(ODD_VALUES)
    return found


def _places(found: Any) -> Any:
    """Every (object or list, key) in it."""
    for key in list(found) if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ():
        yield found, key
        yield from _places(found[key])


def _damaged_bytes(content: bytes, rng: random.Random) -> bytes:
    at, size = rng.randrange(len(content) + 1), rng.choice((1, 1, 4, 50))
    way = rng.random()
    if way < 0.25:
        return content[:at]
    if way < 0.5:
        return content[:at] + content[at + size :]
    if way < 0.75:
        return content[:at] + rng.choice(ODD_TEXTS) + content[at:]
    return content[:at] + rng.randbytes(size) + content[at + size :]
