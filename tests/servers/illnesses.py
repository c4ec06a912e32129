"""Illnesses of servers, by name: what a broken server does to the replies that a healthy one would give.

    ILLNESSES["half a JSON"]                            to each completion, from the first on
    late(ILLNESSES["half a JSON"], 12)                  from the twelfth completion on: in the middle of a lab
    now_and_then(ILLNESSES["500"], 3)                   to each third

Seen in the wild or in the standards' small print: gateways that answer in HTML, proxies that cut streams, engines that die,
dashboards' NaN, releases with other shapes of `usage`.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Callable

from tests.servers.broken_server import Answer, HungUp, Visit

Act = Callable[[Visit], None]
Change = Callable[[dict[str, Any]], Any]

MODELS, COMPLETIONS, METRICS = "/v1/models", "/v1/completions", "/metrics"
GENERATING = (COMPLETIONS, "/v1/chat/completions", "/generate")
HTML = b"<!DOCTYPE html>\n\n<html><body><h1>Please log in</h1></body></html>\n"
LORIS_GAP_S = 0.05  # between two bytes: shorter than any time limit for one, and far too long for a reply
LORIS_BYTES = 80  # so many, then it hangs up: who waits for each byte anew waits for all of them


@dataclass(frozen=True)
class Illness:
    """One way to be ill.

    act      does it to one request
    paths    the requests it is about; empty: all
    is_rude  acts as soon as a connection is made, before anything is asked
    """

    act: Act
    paths: tuple[str, ...] = GENERATING
    only_streams: bool = False
    is_rude: bool = False

    def concerns(self, path: str, body: bytes) -> bool:
        return (not self.paths or path in self.paths) and (not self.only_streams or b'"stream":true' in body.replace(b" ", b""))


def late(illness: Illness, first: int) -> Illness:
    """Healthy up to a request."""
    return replace(illness, act=lambda visit: (illness.act if visit.number >= first else Visit.pass_on)(visit))


def now_and_then(illness: Illness, every: int) -> Illness:
    """Healthy but for each so-manieth request."""
    return replace(illness, act=lambda visit: (Visit.pass_on if visit.number % every else illness.act)(visit))


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


def _truncated(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head() + answer.content[: len(answer.content) // 2])
    raise HungUp


def _without_done(visit: Visit) -> None:
    answer = visit.mind()
    visit.pass_on(replace(answer, content=answer.content.replace(b"data: [DONE]", b"")))


def _no_reason(found: dict[str, Any]) -> None:
    for choice in found.get("choices") or []:
        choice["finish_reason"] = None


def _no_choices(found: dict[str, Any]) -> None:
    found["choices"] = []


def _error_inside(found: dict[str, Any]) -> Any:
    return {"error": {"message": "the engine is gone", "code": 500}}


def _other_ids(found: dict[str, Any]) -> None:
    for choice in found.get("choices") or []:
        if "prompt_token_ids" in choice:
            choice["prompt_token_ids"] = [one + 1 for one in choice["prompt_token_ids"]]


def _half_a_json(visit: Visit) -> None:
    answer = visit.mind()
    visit.pass_on(replace(answer, content=answer.content[: len(answer.content) // 2]))


def _long_line(visit: Visit) -> None:
    visit.pass_on(Answer(200, {"content-type": "text/event-stream"}, b"data: " + b"x" * 10_000_000))


def _short_body(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head(content_length=str(len(answer.content) + 100)) + answer.content)
    raise HungUp


def _long_body(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head(content_length=str(len(answer.content) // 2)) + answer.content)
    visit.is_open = True  # the other half is taken for the next reply


def _bad_length(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head(content_length="-7") + answer.content)


def _chunked_garbage(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head(content_length=None, transfer_encoding="chunked") + b"5\r\nhello\r\nZZ\r\ngarbage")


@cache
def _bomb() -> bytes:
    """A few hundred bytes that are 64 MiB when they are unpacked twice."""
    packer = zlib.compressobj(1, wbits=31)
    inner = b"".join(packer.compress(bytes(2**20)) for _ in range(64)) + packer.flush()
    return gzip.compress(inner)


def _gzip_bomb(visit: Visit) -> None:
    visit.pass_on(Answer(200, {"content-type": "application/json", "content-encoding": "gzip, gzip"}, _bomb()))


def _slow_body(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head())
    visit.dribble(answer.content[:LORIS_BYTES], LORIS_GAP_S)
    raise HungUp


def _slow_head(visit: Visit) -> None:
    answer = visit.mind()
    visit.dribble(answer.head()[:LORIS_BYTES], LORIS_GAP_S)
    raise HungUp


def _processing_for_ever(visit: Visit) -> None:
    visit.dribble(b"HTTP/1.1 102 Processing\r\n\r\n" * 1_000, LORIS_GAP_S / 10)


def _comments_only(visit: Visit) -> None:
    visit.send(Answer(200, {"content-type": "text/event-stream"}, b"").head(content_length=None))
    visit.dribble(b": still working\n\n" * 1_000, LORIS_GAP_S / 10)


def _half_head(visit: Visit) -> None:
    visit.send(b"HTTP/1.1 200 OK\r\ncontent-ty")
    raise HungUp


def _hung_up(visit: Visit) -> None:
    raise HungUp


def _deep_json(visit: Visit) -> None:
    visit.reply(200, b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def _no_utf8(visit: Visit) -> None:
    visit.reply(200, b'{"choices": [{"text": "\xff\xfe\x80"}]}')


def _odd_charset(visit: Visit) -> None:
    visit.pass_on(replace(visit.mind(), headers={"content-type": "text/plain; charset=base64"}))


def _latin_headers(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head(x_name="Köln").decode().encode("latin-1") + answer.content)
    visit.is_open = True


def _bad_cookie(visit: Visit) -> None:
    answer = visit.mind()
    visit.send(answer.head(set_cookie="=;;; expires=never; domain=..; path") + answer.content)
    visit.is_open = True


def _processing(visit: Visit) -> None:
    visit.send(b"HTTP/1.1 102 Processing\r\n\r\n" * 3)
    visit.pass_on()


def _without_http(text: bytes) -> Act:
    def act(visit: Visit) -> None:
        visit.listen()
        visit.send(text)

    return act


def _dead(visit: Visit) -> None:
    visit.die()
    raise HungUp


def _other_names(page: str) -> str:
    return page.replace("prefix_cache", "prompt_reuse").replace("prefill_effective", "prefill_useful")


def _every_number(text: str) -> Callable[[str], str]:
    def change(page: str) -> str:
        return "".join(f"{line.rpartition(' ')[0]} {text}\n" for line in page.splitlines())

    return change


def _beginning_again(page: str) -> str:
    """Counters that begin again at nothing whenever they have come to 2,000, as after restarts."""
    lines = [line.rpartition(" ") for line in page.splitlines()]
    return "".join(f"{name} {float(value) % 2_000}\n" if "_total" in name else f"{name} {value}\n" for name, _, value in lines)


REDIRECT = {"location": "http://elsewhere.invalid/v1/models"}

# Where the server cannot be used from the first reply on.
AT_THE_DOOR = {
    "never answers": Illness(Visit.stay_silent, paths=()),
    "silent from the start": Illness(Visit.stay_silent, is_rude=True),
    "closes at accept": Illness(_hung_up, is_rude=True),
    "resets at accept": Illness(Visit.reset, is_rude=True),
    "closes in the headers": Illness(_half_head, paths=()),
    "a byte now and then, headers included": Illness(_slow_head, paths=()),
    "a byte now and then": Illness(_slow_body, paths=()),
    "processing for ever": Illness(_processing_for_ever, paths=()),
    "an answer without HTTP": Illness(_without_http(HTML), is_rude=True),
    "SSH": Illness(_without_http(b"SSH-2.0-OpenSSH_9.9\r\n"), is_rude=True),
    "HTML with 200": Illness(lambda visit: visit.reply(200, HTML, "text/html"), paths=()),
    "redirects": Illness(lambda visit: visit.reply(307, b"", "text/html", **REDIRECT), paths=()),
    "models: 500": Illness(with_status(500), paths=(MODELS,)),
    "models: none": Illness(with_models({"data": []}), paths=(MODELS,)),
    "models: null": Illness(with_models({"data": None}), paths=(MODELS,)),
    "models: a list": Illness(with_models([{"id": "fake"}]), paths=(MODELS,)),
    "models: numbers": Illness(with_models({"data": [1, 2]}), paths=(MODELS,)),
    "models: without id": Illness(with_models({"data": [{"name": "fake"}]}), paths=(MODELS,)),
    "models: id is a number": Illness(with_models({"data": [{"id": 7}]}), paths=(MODELS,)),
    "models: half": Illness(_half_a_json, paths=(MODELS,)),
    "gzip bomb": Illness(_gzip_bomb, paths=()),
    "deep JSON": Illness(_deep_json, paths=()),
    "no UTF-8": Illness(_no_utf8, paths=()),
    "chunked garbage": Illness(_chunked_garbage, paths=()),
    "a negative length": Illness(_bad_length, paths=()),
}

# Of completions: nothing can be measured while they last.
OF_COMPLETIONS = {
    "500": Illness(with_status(500)),
    "429": Illness(with_status(429, **{"retry-after": "7"})),
    "HTML with 200": Illness(lambda visit: visit.reply(200, HTML, "text/html")),
    "redirects": Illness(lambda visit: visit.reply(307, b"", "text/html", **REDIRECT)),
    "half a JSON": Illness(_half_a_json),
    "truncated": Illness(_truncated),
    "a long body": Illness(_long_body),
    "a negative length": Illness(_bad_length),
    "chunked garbage": Illness(_chunked_garbage),
    "gzip bomb": Illness(_gzip_bomb),
    "deep JSON": Illness(_deep_json),
    "a line of 10 MB": Illness(_long_line),
    "never answers": Illness(Visit.stay_silent),
    "a byte now and then": Illness(_slow_body),
    "a byte now and then, headers included": Illness(_slow_head),
    "comments only": Illness(_comments_only),
    "closes": Illness(_hung_up),
    "resets": Illness(Visit.reset),
    "closes in the headers": Illness(_half_head),
    "no choices": Illness(edited(_no_choices)),
    "no finish_reason": Illness(edited(_no_reason)),
    "an error with 200": Illness(edited(_error_inside)),
    "other prompt ids": Illness(edited(_other_ids)),
    "more cached than sent": Illness(with_usage(cached=1_000_000)),
    "another prompt length": Illness(with_usage(prompt_tokens=3)),
    "dies": Illness(_dead),
}

# Of one witness: the other one is enough.
OF_ONE_WITNESS = {
    "cached tokens are a text": Illness(with_usage(cached="16")),
    "cached tokens are negative": Illness(with_usage(cached=-16)),
    "cached tokens are a fraction": Illness(with_usage(cached=15.5)),
    "cached tokens are true": Illness(with_usage(cached=True)),
    "usage is a text": Illness(edited(lambda found: {**found, "usage": "many"})),
    "usage is a list": Illness(edited(lambda found: {**found, "usage": [1, 2]})),
    "details are a list": Illness(with_usage(prompt_tokens_details=[16])),
    "metrics are NaN": Illness(with_metrics(_every_number("NaN")), paths=(METRICS,)),
    "metrics are infinite": Illness(with_metrics(_every_number("+Inf")), paths=(METRICS,)),
    "metrics are negative": Illness(with_metrics(_every_number("-5")), paths=(METRICS,)),
    "metrics have other names": Illness(with_metrics(_other_names), paths=(METRICS,)),
    "metrics in HTML": Illness(lambda visit: visit.reply(200, HTML, "text/html"), paths=(METRICS,)),
    "metrics: 500": Illness(with_status(500), paths=(METRICS,)),
    "metrics truncated": Illness(_truncated, paths=(METRICS,)),
    "counters begin again": Illness(with_metrics(_beginning_again), paths=(METRICS,)),
}

# Of words only: all is well.
HARMLESS = {
    "replies in an odd charset": Illness(_odd_charset, paths=()),
    "headers in Latin": Illness(_latin_headers, paths=()),
    "a cookie that is none": Illness(_bad_cookie, paths=()),
    "processing": Illness(_processing, paths=()),
    "a huge prompt length": Illness(with_usage(prompt_tokens=10**4_000)),
    "a short body": Illness(_short_body, only_streams=True),
}

# Of streams: whole replies are as good, but for the time to the first token.
OF_STREAMS = {
    "no [DONE]": Illness(_without_done, only_streams=True),
    "streams truncated": Illness(_truncated, only_streams=True),
    "streams without finish_reason": Illness(edited(_no_reason), only_streams=True),
    "streams refused": Illness(with_status(400), only_streams=True),
    "streams of garbage": Illness(_half_a_json, only_streams=True),
}
