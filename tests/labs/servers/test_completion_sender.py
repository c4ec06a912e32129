"""The way to send is found by asking, and what a request asks for reaches the server in its own words."""

from __future__ import annotations

import httpx
import pytest

from labs.servers.completion_sender import CompletionSender, SendOptions
from labs.servers.prompt_form import PromptForm
from labs.servers.server_facts import find_facts
from labs.targets.base import TargetError, TargetUnavailable
from tests.labs.servers.fake_server import FakeServer

FORM = PromptForm(900)


def sender_of(fake: FakeServer, form: PromptForm = FORM) -> CompletionSender:
    client = fake.client()
    sender = CompletionSender(client, find_facts(client), form)
    sender.learn()
    return sender


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (FakeServer(), "streamed"),
        (FakeServer(details="never"), "streamed"),
        (FakeServer(takes_streams=False), "whole replies"),
        (FakeServer(takes_extras=False), "streamed, without ignore_eos and return_token_ids"),
        (FakeServer(takes_extras=False, takes_streams=False), "whole replies, without ignore_eos and return_token_ids"),
        (FakeServer(kind="sglang"), "streamed"),
        (FakeServer(kind="sglang", details="never"), "/generate, streamed"),
    ],
)
def test_the_way_is_the_one_that_tells_most(fake, words):
    sender = sender_of(fake)
    assert sender.way.words == words
    before = len(fake.requests)
    assert sender.send([1, 2, 3], SendOptions()).usage.prompt_tokens == 3 and len(fake.requests) == before + 1


def test_a_stream_without_counts_gives_way_to_a_whole_reply():
    fake = FakeServer()
    fake.alter = lambda reply: {**reply, "usage": None} if fake.requests[-1].get("stream") else reply
    assert sender_of(fake).way.words == "whole replies"


def test_a_stream_that_is_never_whole_gives_way_too():
    fake = FakeServer()

    def alter(reply):
        return httpx.Response(200, text='data: {"choices": []}\n\n') if fake.requests[-1].get("stream") else reply

    fake.alter = alter
    assert sender_of(fake).way.words == "whole replies"


def test_a_server_that_answers_no_way_fails_with_its_first_words():
    with pytest.raises(TargetError, match="500: out of memory"):
        sender_of(FakeServer(alter=lambda reply: httpx.Response(500, text="out of memory")))
    with pytest.raises(TargetUnavailable):
        sender_of(FakeServer(alter=lambda reply: httpx.ConnectError("gone")))


def test_options_reach_the_server_in_its_own_words():
    vllm, sglang = FakeServer(), FakeServer(kind="sglang", details="never")
    options = SendOptions(max_tokens=3, cache_salt="s", logprob_gaps=True)
    reply = sender_of(vllm).send([1, 2], options)
    body = vllm.requests[-1]
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"], body["cache_salt"], body["logprobs"]) == (
        3,
        0,
        True,
        "s",
        2,
    )
    assert (
        body["return_tokens_as_token_ids"]
        and body["stream_options"] == {"include_usage": True}
        and reply.top_logprob_gaps == (1.25,) * 3
    )
    reply = sender_of(sglang).send([1, 2], options)
    body = sglang.requests[-1]
    assert body["sampling_params"] == {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True} and body["cache_salt"] == "s"
    assert reply.top_logprob_gaps == (1.25,) * 3 and len(reply.output_token_ids) == 3


def test_a_prompts_log_probabilities_are_not_streamed():
    vllm, sglang = FakeServer(), FakeServer(kind="sglang")
    sender_of(vllm).send([1, 2], SendOptions(prompt_logprobs=True))
    assert vllm.requests[-1]["prompt_logprobs"] == 0 and "stream" not in vllm.requests[-1]
    sender_of(sglang).send([1, 2], SendOptions(prompt_logprobs=True))
    assert sglang.requests[-1]["logprob_start_len"] == 0 and sglang.requests[-1]["input_ids"] == [1, 2]


def test_log_probabilities_by_text_are_asked_where_ids_are_not_known():
    fake = FakeServer()

    def alter(reply):
        return httpx.Response(400, text="unknown") if "return_tokens_as_token_ids" in fake.requests[-1] else reply

    fake.alter = alter
    sender = sender_of(fake)
    for _ in range(2):
        assert len(sender.send([1, 2], SendOptions(logprob_gaps=True)).top_logprob_gaps) == 1
    assert sum("return_tokens_as_token_ids" in body for body in fake.requests) == 1  # the refusal is remembered
