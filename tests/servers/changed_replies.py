"""Acts that send a reply in good form with something else inside: other values, half of it, garbage, another page of metrics."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import replace
from functools import cache
from typing import Any, Callable

from tests.servers.broken_server import Answer, Visit
from tests.servers.illness import Act

Change = Callable[[dict[str, Any]], Any]


def edited(change: Change) -> Act:
    """A healthy reply with each JSON object of it changed, streamed or whole. What `change` returns, if anything, is sent."""

    def act(visit: Visit) -> None:
        answer = visit.mind()
        visit.pass_on(replace(answer, content=_edit(answer.content, change)))

    return act


def _edit(content: bytes, change: Change) -> bytes:
    def one(text: bytes) -> bytes:
        try:
            found = json.loads(text)
        except ValueError:
            return text  # [DONE], or no JSON at all
        changed = change(found)
        return json.dumps(found if changed is None else changed).encode()

    if not content.startswith(b"data:"):
        return one(content)
    events = [event.removeprefix(b"data:").strip() for event in content.split(b"\n\n") if event]
    return b"".join(b"data: " + one(event) + b"\n\n" for event in events)


def with_usage(**changed: Any) -> Act:
    """A reply with other values in its usage; `cached` stands in its details."""

    def change(found: dict[str, Any]) -> None:
        if isinstance(found.get("usage"), dict):
            found["usage"] |= {name: value for name, value in changed.items() if name != "cached"}
            if "cached" in changed:
                found["usage"]["prompt_tokens_details"] = {"cached_tokens": changed["cached"]}

    return edited(change)


def with_models(models: Any) -> Act:
    """Another list of models."""
    return lambda visit: visit.reply(200, json.dumps(models).encode())


def with_metrics(change: Callable[[str], str]) -> Act:
    """Another page of metrics."""

    def act(visit: Visit) -> None:
        answer = visit.mind()
        visit.pass_on(replace(answer, content=change(answer.content.decode()).encode()))

    return act


def with_status(status: int, **headers: str) -> Act:
    """An error that quotes what it was sent, as some servers do: none of that may be shown to anybody else."""

    def act(visit: Visit) -> None:
        message = f"something broke at {visit.headers.get('authorization')}: {visit.body.decode(errors='replace')}"
        visit.reply(status, json.dumps({"error": {"message": message}}).encode(), **headers)

    return act


def without_reason(found: dict[str, Any]) -> None:
    for choice in found.get("choices") or []:
        choice["finish_reason"] = None


def without_choices(found: dict[str, Any]) -> None:
    found["choices"] = []


def error_inside(found: dict[str, Any]) -> Any:
    return {"error": {"message": "the engine is gone", "code": 500}}


def other_ids(found: dict[str, Any]) -> None:
    for choice in found.get("choices") or []:
        if "prompt_token_ids" in choice:
            choice["prompt_token_ids"] = [one + 1 for one in choice["prompt_token_ids"]]


def half_a_json(visit: Visit) -> None:
    answer = visit.mind()
    visit.pass_on(replace(answer, content=answer.content[: len(answer.content) // 2]))


def without_done(visit: Visit) -> None:
    answer = visit.mind()
    visit.pass_on(replace(answer, content=answer.content.replace(b"data: [DONE]", b"")))


def deep_json(visit: Visit) -> None:
    visit.reply(200, b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def no_utf8(visit: Visit) -> None:
    visit.reply(200, b'{"choices": [{"text": "\xff\xfe\x80"}]}')


def odd_charset(visit: Visit) -> None:
    visit.pass_on(replace(visit.mind(), headers={"content-type": "text/plain; charset=base64"}))


def long_line(visit: Visit) -> None:
    visit.pass_on(Answer(200, {"content-type": "text/event-stream"}, b"data: " + b"x" * 10_000_000))


def gzip_bomb(visit: Visit) -> None:
    visit.pass_on(Answer(200, {"content-type": "application/json", "content-encoding": "gzip, gzip"}, _bomb()))


@cache
def _bomb() -> bytes:
    """A few hundred bytes that are 64 MiB when they are unpacked twice."""
    packer = zlib.compressobj(1, wbits=31)
    inner = b"".join(packer.compress(bytes(2**20)) for _ in range(64)) + packer.flush()
    return gzip.compress(inner)


def other_names(page: str) -> str:
    return page.replace("prefix_cache", "prompt_reuse").replace("prefill_effective", "prefill_useful")


def every_number(text: str) -> Callable[[str], str]:
    def change(page: str) -> str:
        return "".join(f"{line.rpartition(' ')[0]} {text}\n" for line in page.splitlines())

    return change


def beginning_again(page: str) -> str:
    """Counters that begin again at nothing whenever they have come to 2,000, as after restarts."""
    lines = [line.rpartition(" ") for line in page.splitlines()]
    return "".join(f"{name} {float(value) % 2_000}\n" if "_total" in name else f"{name} {value}\n" for name, _, value in lines)
