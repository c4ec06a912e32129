"""Illnesses by name, by what can still be done beside them.

Seen in the wild or in the standards' small print: gateways that answer in HTML, proxies that cut streams, engines that die,
dashboards' NaN, releases with other shapes of `usage`.
"""

from __future__ import annotations

from tests.servers import broken_wires as wire
from tests.servers import changed_replies as changed
from tests.servers.broken_server import Visit
from tests.servers.illness import METRICS, MODELS, Illness

HTML = b"<!DOCTYPE html>\n\n<html><body><h1>Please log in</h1></body></html>\n"
REDIRECT = {"location": "http://elsewhere.invalid/v1/models"}

# Where the server cannot be used from the first reply on.
AT_THE_DOOR = {
    "never answers": Illness(Visit.stay_silent, paths=()),
    "silent from the start": Illness(Visit.stay_silent, is_rude=True),
    "closes at accept": Illness(wire.hung_up, is_rude=True),
    "resets at accept": Illness(Visit.reset, is_rude=True),
    "closes in the headers": Illness(wire.half_head, paths=()),
    "a byte now and then, headers included": Illness(wire.slow_head, paths=()),
    "a byte now and then": Illness(wire.slow_body, paths=()),
    "processing for ever": Illness(wire.processing_for_ever, paths=()),
    "an answer without HTTP": Illness(wire.without_http(HTML), is_rude=True),
    "SSH": Illness(wire.without_http(b"SSH-2.0-OpenSSH_9.9\r\n"), is_rude=True),
    "HTML with 200": Illness(lambda visit: visit.reply(200, HTML, "text/html"), paths=()),
    "redirects": Illness(lambda visit: visit.reply(307, b"", "text/html", **REDIRECT), paths=()),
    "models: 500": Illness(changed.with_status(500), paths=(MODELS,)),
    "models: none": Illness(changed.with_models({"data": []}), paths=(MODELS,)),
    "models: null": Illness(changed.with_models({"data": None}), paths=(MODELS,)),
    "models: a list": Illness(changed.with_models([{"id": "fake"}]), paths=(MODELS,)),
    "models: numbers": Illness(changed.with_models({"data": [1, 2]}), paths=(MODELS,)),
    "models: without id": Illness(changed.with_models({"data": [{"name": "fake"}]}), paths=(MODELS,)),
    "models: id is a number": Illness(changed.with_models({"data": [{"id": 7}]}), paths=(MODELS,)),
    "models: half": Illness(changed.half_a_json, paths=(MODELS,)),
    "gzip bomb": Illness(changed.gzip_bomb, paths=()),
    "deep JSON": Illness(changed.deep_json, paths=()),
    "no UTF-8": Illness(changed.no_utf8, paths=()),
    "chunked garbage": Illness(wire.chunked_garbage, paths=()),
    "a negative length": Illness(wire.bad_length, paths=()),
}

# Of completions: nothing can be measured while they last.
OF_COMPLETIONS = {
    "500": Illness(changed.with_status(500)),
    "429": Illness(changed.with_status(429, **{"retry-after": "7"})),
    "HTML with 200": Illness(lambda visit: visit.reply(200, HTML, "text/html")),
    "redirects": Illness(lambda visit: visit.reply(307, b"", "text/html", **REDIRECT)),
    "half a JSON": Illness(changed.half_a_json),
    "truncated": Illness(wire.truncated),
    "a long body": Illness(wire.long_body),
    "a negative length": Illness(wire.bad_length),
    "chunked garbage": Illness(wire.chunked_garbage),
    "gzip bomb": Illness(changed.gzip_bomb),
    "deep JSON": Illness(changed.deep_json),
    "a line of 10 MB": Illness(changed.long_line),
    "never answers": Illness(Visit.stay_silent),
    "a byte now and then": Illness(wire.slow_body),
    "a byte now and then, headers included": Illness(wire.slow_head),
    "comments only": Illness(wire.comments_only),
    "closes": Illness(wire.hung_up),
    "resets": Illness(Visit.reset),
    "closes in the headers": Illness(wire.half_head),
    "no choices": Illness(changed.edited(changed.without_choices)),
    "no finish_reason": Illness(changed.edited(changed.without_reason)),
    "an error with 200": Illness(changed.edited(changed.error_inside)),
    "other prompt ids": Illness(changed.edited(changed.other_ids)),
    "more cached than sent": Illness(changed.with_usage(cached=1_000_000)),
    "another prompt length": Illness(changed.with_usage(prompt_tokens=3)),
    "dies": Illness(wire.dead),
}

# Of one witness: the other one is enough.
OF_ONE_WITNESS = {
    "cached tokens are a text": Illness(changed.with_usage(cached="16")),
    "cached tokens are negative": Illness(changed.with_usage(cached=-16)),
    "cached tokens are a fraction": Illness(changed.with_usage(cached=15.5)),
    "cached tokens are true": Illness(changed.with_usage(cached=True)),
    "usage is a text": Illness(changed.edited(lambda found: {**found, "usage": "many"})),
    "usage is a list": Illness(changed.edited(lambda found: {**found, "usage": [1, 2]})),
    "details are a list": Illness(changed.with_usage(prompt_tokens_details=[16])),
    "metrics are NaN": Illness(changed.with_metrics(changed.every_number("NaN")), paths=(METRICS,)),
    "metrics are infinite": Illness(changed.with_metrics(changed.every_number("+Inf")), paths=(METRICS,)),
    "metrics are negative": Illness(changed.with_metrics(changed.every_number("-5")), paths=(METRICS,)),
    "metrics have other names": Illness(changed.with_metrics(changed.other_names), paths=(METRICS,)),
    "metrics in HTML": Illness(lambda visit: visit.reply(200, HTML, "text/html"), paths=(METRICS,)),
    "metrics: 500": Illness(changed.with_status(500), paths=(METRICS,)),
    "metrics truncated": Illness(wire.truncated, paths=(METRICS,)),
    "counters begin again": Illness(changed.with_metrics(changed.beginning_again), paths=(METRICS,)),
}

# Of words only: all is well.
HARMLESS = {
    "replies in an odd charset": Illness(changed.odd_charset, paths=()),
    "headers in Latin": Illness(wire.latin_headers, paths=()),
    "a cookie that is none": Illness(wire.bad_cookie, paths=()),
    "processing": Illness(wire.processing, paths=()),
    "a huge prompt length": Illness(changed.with_usage(prompt_tokens=10**4_000)),
    "a short body": Illness(wire.short_body, only_streams=True),
}

# Of streams: whole replies are as good, but for the time to the first token.
OF_STREAMS = {
    "no [DONE]": Illness(changed.without_done, only_streams=True),
    "streams truncated": Illness(wire.truncated, only_streams=True),
    "streams without finish_reason": Illness(changed.edited(changed.without_reason), only_streams=True),
    "streams refused": Illness(changed.with_status(400), only_streams=True),
    "streams of garbage": Illness(changed.half_a_json, only_streams=True),
}
