"""A reply says a number, a zero, or nothing: the three are never mixed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labs.servers.server_client import StreamEvent
from labs.servers.server_reply import ABSENT, NO_DETAILS, REPORTED, ServerReply, Usage
from labs.targets.base import TargetError

GOLDEN = Path(__file__).parents[2] / "golden" / "servers"


def usage(**fields):
    return {"prompt_tokens": 200, "completion_tokens": 1, **fields}


@pytest.mark.parametrize(
    ("given", "cached", "state"),
    [
        (usage(prompt_tokens_details={"cached_tokens": 192}), 192, REPORTED),
        (usage(prompt_tokens_details={"cached_tokens": 0}), 0, REPORTED),
        (usage(prompt_tokens_details=None), None, NO_DETAILS),
        (usage(), None, NO_DETAILS),
        (usage(prompt_tokens_details={"cached_tokens": -1}), None, NO_DETAILS),
        (usage(prompt_tokens_details={"cached_tokens": True}), None, NO_DETAILS),
        (usage(prompt_tokens_details={"cached_tokens": "192"}), None, NO_DETAILS),
        (usage(prompt_tokens_details={"cached_tokens": 1.5}), None, NO_DETAILS),
        (usage(prompt_tokens_details=[192]), None, NO_DETAILS),
        (None, None, ABSENT),
        ("usage", None, ABSENT),
    ],
)
def test_cached_tokens_are_a_number_a_zero_or_unknown(given, cached, state):
    found = Usage.of(given)
    assert (found.cached_tokens, found.state) == (cached, state)


def test_more_cached_than_the_prompt_has_is_impossible_and_not_clamped():
    assert Usage.of(usage(prompt_tokens_details={"cached_tokens": 201})).is_impossible
    assert not Usage.of(usage(prompt_tokens_details={"cached_tokens": 200})).is_impossible


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": None}, {"choices": "x"}, {"choices": [5]}])
def test_a_reply_without_a_choice_is_no_completion(body):
    with pytest.raises(TargetError, match="shown answered"):
        ServerReply.of_json(body, 1.0, "shown")


def _section(file: str, start: str) -> str:
    """The JSON line after a heading of the captured replies."""
    lines = (GOLDEN / file).read_text(encoding="utf-8").splitlines()
    return lines[next(index for index, line in enumerate(lines) if line.startswith(start)) + 1]


def test_vllms_captured_replies_are_read():
    reply = ServerReply.of_json(json.loads(_section("vllm-0.32.0-cpu/replies.txt", "## return_token_ids")), 0.5, "shown")
    assert reply.output_token_ids == (7042,) and reply.prompt_token_ids == (504, 3575, 282, 4649, 314)
    assert (reply.usage.prompt_tokens, reply.usage.cached_tokens, reply.finish_reason, reply.text) == (5, 0, "length", " Paris")
    assert reply.reply_id.startswith("cmpl-"), "its name, which no other reply has"
    hit = ServerReply.of_json(json.loads(_section("vllm-0.32.0-cpu/replies.txt", "## completion hit")), 0.5, "shown")
    assert hit.usage.cached_tokens == 192 and hit.output_token_ids is None and hit.reply_id != reply.reply_id


def test_sglangs_own_reply_is_read():
    lines = (GOLDEN / "sglang-0.5.23-cpu/probe.txt").read_text(encoding="utf-8").splitlines()
    body = json.loads(next(line for line in lines if line.startswith('200 {"text"')).removeprefix("200 "))
    reply = ServerReply.of_generate(body, 0.1, 0.2, "shown")
    assert (reply.usage.prompt_tokens, reply.usage.cached_tokens, reply.output_token_ids) == (200, 199, (4055,))
    assert (reply.finish_reason, reply.ttft_s, reply.e2e_s) == ("length", 0.1, 0.2) and len(reply.reply_id) == 32
    with pytest.raises(TargetError, match="without meta_info"):
        ServerReply.of_generate({"text": "x"}, 0.1, 0.2, "shown")


def events(*datas):
    return [StreamEvent(data, 0.1 * number) for number, data in enumerate(datas, 1)]


def chunk(text="", reason=None, **fields):
    return {"choices": [{"index": 0, "text": text, "finish_reason": reason, **fields}]}


def test_a_stream_is_put_together_and_its_first_token_timed():
    reply = ServerReply.of_events(
        events(
            chunk("", prompt_token_ids=[1, 2]),
            chunk("a", token_ids=[7]),
            chunk("b", "length", token_ids=[8]),
            {"choices": [], "usage": usage(prompt_tokens_details={"cached_tokens": 32})},
            None,
        ),
        "shown",
    )
    assert (reply.text, reply.output_token_ids, reply.prompt_token_ids, reply.usage.cached_tokens) == ("ab", (7, 8), (1, 2), 32)
    assert reply.ttft_s == pytest.approx(0.2) and reply.e2e_s == pytest.approx(0.5)


def test_a_stream_without_a_choice_or_a_reason_is_not_whole():
    with pytest.raises(TargetError, match="without any choice"):
        ServerReply.of_events(events({"choices": []}, None), "shown")
    with pytest.raises(TargetError, match="without a finish_reason"):
        ServerReply.of_events(events(chunk("a"), None), "shown")


def test_sglangs_own_stream_is_its_last_event_and_the_time_of_its_first():
    meta = {"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 4, "finish_reason": {"type": "length"}}
    first, last = (
        {"text": "a", "output_ids": [7], "meta_info": {**meta, "finish_reason": None}},
        {"text": "ab", "output_ids": [7, 8], "meta_info": meta},
    )
    reply = ServerReply.of_generate_events(events(first, last, None), "shown")
    assert (reply.output_token_ids, reply.usage.cached_tokens, reply.ttft_s) == ((7, 8), 4, pytest.approx(0.1))
    with pytest.raises(TargetError, match="without any output"):
        ServerReply.of_generate_events(events(None), "shown")


def test_gaps_are_best_minus_second_best_and_missing_where_two_tokens_share_a_text():
    tops = {"top_logprobs": [{"a": -0.5, "b": -2.0}, {"a": -0.5}, {"a": "x"}, None]}
    body = {"choices": [{"index": 0, "text": "", "finish_reason": "length", "logprobs": tops}]}
    assert ServerReply.of_json(body, 1.0, "shown").top_logprob_gaps == (1.5,)
    meta = {"output_top_logprobs": [[[-0.25, 5, None], [-1.0, 6, None]], None, [[-1.0, 5, None]]]}
    assert ServerReply.of_generate({"meta_info": meta}, 1.0, 1.0, "shown").top_logprob_gaps == (0.75,)
