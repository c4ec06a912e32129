"""Each body goes to its endpoint; what a strict server refuses is left out from then on."""

from __future__ import annotations

import pytest

from labs.probe.endpoints import CHATS, COMPLETIONS, GENERATE, MAX_SHOWN_IDS, Endpoints, messages_of
from labs.servers.server_client import ServerRefused
from tests.labs.probe.fake_sight import OTHER, SGLANG, VLLM

REPLY = {
    "choices": [{"text": "a", "message": {"content": "a"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}},
}
NATIVE = {
    "text": "a",
    "meta_info": {"prompt_tokens": 3, "completion_tokens": 1, "cached_tokens": 2, "finish_reason": {"type": "length"}},
}


class FakeClient:
    """Keeps what it was sent; refuses a field."""

    shown = "the server"

    def __init__(self, refused="", status=400):
        self.sent, self._refused, self._status = [], refused, status

    def compute(self, path, body):
        self.sent.append((path, body))
        if self._refused in body:
            raise ServerRefused("unknown field", self._status)
        return NATIVE if path == GENERATE else REPLY


def test_prompts_and_messages_have_an_endpoint_each_and_short_ones_ask_their_ids_back():
    client, endpoints = FakeClient(), Endpoints(VLLM)
    answer = endpoints.answer(client, {"prompt": [1, 2, 3]}, 3)
    endpoints.answer(client, messages_of("hello"), 1)
    endpoints.answer(client, {"prompt": [1]}, MAX_SHOWN_IDS + 1)
    assert [path for path, _ in client.sent] == [COMPLETIONS, CHATS, COMPLETIONS]
    assert ["return_token_ids" in body for _, body in client.sent] == [True, True, False]
    assert (answer.reply.usage.cached_tokens, answer.native_cached) == (2, None) and answer.begin_s <= answer.end_s


def test_a_strict_server_of_unknown_kind_is_asked_for_ids_once():
    client, endpoints = FakeClient("return_token_ids"), Endpoints(OTHER)
    for _ in range(2):
        assert endpoints.answer(client, {"prompt": "a b"}, 2).reply.usage.prompt_tokens == 3
    assert ["return_token_ids" in body for _, body in client.sent] == [True, False, False]


@pytest.mark.parametrize(("facts", "status"), [(VLLM, 400), (OTHER, 503)])
def test_a_refusal_for_another_reason_is_one(facts, status):
    client = FakeClient("return_token_ids", status)
    with pytest.raises(ServerRefused):
        Endpoints(facts).answer(client, {"prompt": "a b"}, 2)
    assert len(client.sent) == 1


def test_sglang_s_own_endpoint_tells_what_it_found_apart_from_usage_and_takes_no_messages():
    client, endpoints = FakeClient(), Endpoints(SGLANG)
    endpoints.use_native()
    answer = endpoints.answer(client, {"prompt": [1, 2, 3], "cache_salt": "s"}, 3)
    assert (answer.reply.usage.cached_tokens, answer.native_cached) == (None, 2)
    endpoints.answer(client, {"prompt": "a b c", "max_tokens": 16}, 3)
    endpoints.answer(client, messages_of("hello"), 1)
    (_, ids), (_, text), _ = client.sent
    assert [path for path, _ in client.sent] == [GENERATE, GENERATE, CHATS]
    assert [body["sampling_params"]["max_new_tokens"] for body in (ids, text)] == [1, 16]
    assert (ids["input_ids"], ids["cache_salt"], text["text"]) == ([1, 2, 3], "s", "a b c") and "cache_salt" not in text
