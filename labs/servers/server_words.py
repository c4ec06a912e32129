"""A server's own words about a request, for messages: one short line, without what the request held.

Servers quote: whole prompts, their beginning, JSON inside JSON, lists of token ids. None of that belongs on a screen or in a
record.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from typing import Any, Iterable, Iterator, Mapping
from urllib.parse import quote

MAX_READ = 4_000  # characters of a reply in which words are looked for; a page of digits would keep the search busy for hours
MAX_MESSAGE = 160  # characters of a server's own words
MIN_QUOTED = 16  # characters of a text's beginning that count as a quotation


def message_in(content: Mapping[str, Any]) -> str:
    """The message of an error body: vLLM's and OpenAI's {"error": {"message"}}, SGLang's {"message"}, FastAPI's {"detail"}."""
    error = content.get("error")
    for found in (error.get("message") if isinstance(error, dict) else error, content.get("message"), content.get("detail")):
        if isinstance(found, str):
            return found
    return ""


def texts_in(body: Any) -> Iterator[str]:
    """Every text of a request's body, but for names of fields and models."""
    if isinstance(body, str):
        yield body
    elif isinstance(body, Mapping):
        for key, value in body.items():
            if key not in ("model", "role", "type"):
                yield from texts_in(value)
    elif isinstance(body, (list, tuple)) and not (body and isinstance(body[0], int)):
        for one in body:
            yield from texts_in(one)


def login_texts(login: tuple[str, str] | None) -> Iterator[str]:
    """Every way in which a server may quote a name and a password: each, both, and as Basic authentication writes them."""
    if login is None:
        return
    both = ":".join(login)
    yield from (*login, both, quote(login[0]), quote(login[1]))
    # Its end changes with what stands behind, and may be cut off: the sure part is taken.
    yield b64encode(both.encode()).decode().rstrip("=")


def cleaned(text: str, secrets: Iterable[str]) -> str:
    """One short line without what was sent: texts of the request are cut out, and so are runs of numbers (token ids)."""
    line = " ".join(text[:MAX_READ].split())
    for secret in sorted(secrets, key=len, reverse=True):
        # As it was sent, and as JSON inside a text spells it.
        for spelled in dict.fromkeys((secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])):
            line = _without(line, " ".join(spelled.split()))
    line = re.sub(r"(?:\d+\s*,\s*){3,}\d+", "…", line)
    # A validation error may quote the input in another spelling: then nothing of it is shown.
    line = re.split(r"['\"]?input['\"]?\s*:", line)[0]
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def _without(line: str, secret: str) -> str:
    """The line without the secret, and without a beginning of it: some servers quote that of a long text."""
    if not secret:
        return line
    line = line.replace(secret, "…")
    opening = secret[:MIN_QUOTED]
    while len(secret) > MIN_QUOTED and opening in line:
        before, _, quoted = line.partition(opening)
        num_equal = len(os.path.commonprefix((quoted, secret[MIN_QUOTED:])))
        line = f"{before}…{quoted[num_equal:]}"
    return line
