"""What a server takes, and what it refuses: by name, in one message, without going down."""

from __future__ import annotations

import json
import socket

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.server.requests.body_room import BodyRoom
from engine.server.requests.refusal import Refusal
from tests.engine.server.served import served, serving

IDS = list(range(300, 340))
CHAT = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def client(client_of, request):
    return client_of(flavor=request.param)


def message_of(reply):
    body = reply.json()
    return body["error"]["message"] if "error" in body else body["message"]


def complete(client, **fields):
    return client.post("/v1/completions", json={"prompt": IDS, "max_tokens": 2, **fields})


def chat(client, **fields):
    return client.post("/v1/chat/completions", json={"messages": CHAT, "max_tokens": 2, **fields})


def test_a_prompt_may_be_a_text_ids_or_lists_of_them(client):
    prompts = ["hello", ["hello", "you"], [1, 2, 3], [[1, 2, 3], [4]], [104, 105]]
    replies = [complete(client, prompt=prompt).json() for prompt in prompts]
    assert [len(reply["choices"]) for reply in replies] == [1, 2, 1, 2, 1]
    assert [reply["usage"]["prompt_tokens"] for reply in replies] == [5, 8, 3, 4, 2]
    assert complete(client, prompt="hi").json()["choices"][0]["text"] == replies[-1]["choices"][0]["text"]


def test_without_max_tokens_a_completion_has_16_and_a_chat_what_is_left(client):
    assert client.post("/v1/completions", json={"prompt": IDS, "temperature": 0}).json()["usage"]["completion_tokens"] == 16
    with served(max_model_len=64) as url:
        usage = httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]}).json()["usage"]
        assert usage["total_tokens"] == 64


def test_content_may_be_a_list_of_text_parts(client):
    parts = [{"type": "text", "text": "Say"}, {"type": "text", "text": "hello."}]
    assert chat(client, messages=[{"role": "user", "content": parts}]).status_code == 200
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    reply = chat(client, messages=[{"role": "user", "content": image}])
    assert reply.status_code == 400 and "messages[0].content" in message_of(reply) and "accepted: text parts" in message_of(reply)


@pytest.mark.parametrize(
    "name, value",
    [
        ("presence_penalty", 0.5), ("frequency_penalty", -1), ("repetition_penalty", 1.1), ("logit_bias", {"5": 1}), ("n", 2),
        ("best_of", 2), ("suffix", "x"), ("response_format", {"type": "json_object"}), ("tools", [{"type": "function"}]),
        ("tool_choice", "required"), ("guided_json", "{}"), ("structured_outputs", {"regex": "a"}), ("min_p", 0.1),
        ("min_tokens", 1), ("echo", True), ("regex", "a*"), ("logits_processors", ["x"]), ("truncate_prompt_tokens", 5),
        ("include_stop_str_in_output", True), ("bad_words", ["x"]), ("chat_template", "{{ x }}"), ("skip_special_tokens", False),
    ],
)  # fmt: skip
def test_a_field_that_would_change_the_answer_and_is_not_there_is_refused_by_name(client, name, value):
    for ask in (complete, chat):
        reply = ask(client, **{name: value})
        assert reply.status_code == 400
        assert message_of(reply).startswith(f"{name} is not supported here; accepted: ")


def test_the_same_fields_with_values_that_ask_for_nothing_are_taken(client):
    neutral = {
        "presence_penalty": 0.0, "frequency_penalty": 0, "repetition_penalty": 1.0, "logit_bias": {}, "n": 1, "best_of": 1,
        "suffix": None, "response_format": {"type": "text"}, "tools": [], "tool_choice": "none", "min_p": 0, "min_tokens": 0,
        "echo": False, "user": "me", "metadata": {"a": 1}, "store": False, "unknown": [1], "skip_special_tokens": True,
    }  # fmt: skip
    assert complete(client, **neutral).status_code == chat(client, **neutral).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -1}, {"temperature": "hot"}, {"top_p": 0}, {"top_p": 2}, {"top_k": -5}, {"max_tokens": -1},
        {"max_tokens": "many"}, {"max_tokens": 10**30}, {"seed": "x"}, {"stop": 5}, {"stop": [1]}, {"stop_token_ids": ["a"]},
        {"logprobs": 21}, {"prompt": None},
        {"prompt": {}}, {"prompt": [[1], "a"]}, {"prompt": [1.5]}, {"prompt": [True]}, {"prompt": [-1]}, {"prompt": [1, "a"]},
        {"prompt": [[]]}, {"prompt": "\ud800"}, {"prompt": [[1]] * 1025}, {"model": 5}, {"stream": "perhaps"},
    ],
)  # fmt: skip
def test_a_value_outside_what_a_field_takes_is_refused(client, fields):
    reply = client.post(
        "/v1/completions", content=json.dumps({"prompt": IDS, **fields}), headers={"content-type": "application/json"}
    )
    assert reply.status_code == 400 and 0 < len(message_of(reply)) < 400


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        {},
        "hi",
        [5],
        [{}],
        [{"role": "king", "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{}]}],
    ],
)
def test_messages_that_are_none_are_refused(client, messages):
    assert chat(client, messages=messages).status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'"x"',
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b"\xff\xfe",
        b'{"prompt": ' + b"[" * 100_000,
        b"9" * 5000,
        b"{'a': 1}",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(client, body):
    reply = client.post("/v1/completions", content=body, headers={"content-type": "application/json; charset=utf-8"})
    assert reply.status_code == 400 and len(message_of(reply)) < 200


def test_another_content_type_is_refused_as_by_the_real_servers(client):
    body = json.dumps({"prompt": IDS})
    assert client.post("/v1/completions", content=body, headers={"content-type": "text/plain"}).status_code == 400
    assert client.post("/v1/completions", content=body, headers={"content-type": "Application/JSON"}).status_code == 200


def test_an_error_repeats_neither_salt_nor_prompt(client):
    secret = "s3cret"
    for fields in (
        {"cache_salt": [secret, 5]},
        {"cache_salt": secret + "@"},
        {"prompt": [secret, 5]},
        {"stop": [secret, 5]},
        {"seed": secret},
    ):
        reply = complete(client, **fields)
        assert secret not in reply.text


def test_log_probabilities_come_with_each_token(client):
    found = complete(client, logprobs=2, max_tokens=3, ignore_eos=True).json()["choices"][0]
    assert {len(found["logprobs"][name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} == {3}
    assert "".join(found["logprobs"]["tokens"]) == found["text"] and len(found["logprobs"]["top_logprobs"][0]) == 2
    content = chat(client, logprobs=True, top_logprobs=2, ignore_eos=True).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 2 and len(content[0]["top_logprobs"]) == 2


def test_vllms_log_probabilities_name_tokens_by_their_ids_if_asked(client_of):
    client = client_of(flavor="vllm")
    fields = {"ignore_eos": True, "return_tokens_as_token_ids": True}
    choice = complete(client, logprobs=2, return_token_ids=True, **fields).json()["choices"][0]
    names = [f"token_id:{one}" for one in choice["token_ids"]]
    told = choice["logprobs"]
    assert told["tokens"] == names and [next(iter(top)) for top in told["top_logprobs"]] == names
    assert all(name.startswith("token_id:") for top in told["top_logprobs"] for name in top)
    assert told["text_offset"] == [0, len(names[0])]
    events = complete(client, logprobs=2, stream=True, **fields).text.splitlines()
    streamed = [json.loads(event[6:])["choices"][0]["logprobs"]["tokens"] for event in events if event.startswith("data: {")]
    assert sum(streamed, []) == names
    content = chat(client, logprobs=True, top_logprobs=2, **fields).json()["choices"][0]["logprobs"]["content"]
    assert all(one["token"].startswith("token_id:") for entry in content for one in (entry, *entry["top_logprobs"]))
    assert all(bytes(entry["bytes"]) for entry in content)  # of the text all the same


def test_vllm_refuses_fields_that_do_not_go_together_and_sglang_reads_what_goes(client_of):
    """The two agree on none of these; SGLang's own exception is a streamed chat's token ids."""
    for ask, fields in (
        (complete, {"stream_options": {"include_usage": True}}),
        (complete, {"prompt_logprobs": 1, "stream": True}),
        (complete, {"logprobs": -1}),
        (chat, {"top_logprobs": 2}),
        (chat, {"logprobs": True, "top_logprobs": -1}),
    ):
        name = next(iter(fields.keys() - {"stream", "logprobs"}), "logprobs")
        refused = ask(client_of(flavor="vllm"), **fields)
        assert refused.status_code == 400 and name in message_of(refused)
        assert ask(client_of(flavor="sglang"), **fields).status_code == 200
    assert chat(client_of(flavor="vllm"), stream=True, return_token_ids=True).status_code == 200
    assert chat(client_of(flavor="sglang"), stream=True, return_token_ids=True).status_code == 400


def test_sglangs_own_requests_may_be_a_list_of_one(client_of):
    client = client_of(flavor="sglang")

    def ask(**fields):
        return client.post("/generate", json={"sampling_params": {"max_new_tokens": 2, "temperature": 0}, **fields})

    single = ask(input_ids=IDS).json()["output_ids"]
    for fields in ({"input_ids": [IDS]}, {"input_ids": [IDS], "sampling_params": [{"max_new_tokens": 2, "temperature": 0}]}):
        assert [one["output_ids"] for one in ask(**fields).json()] == [single]
    assert len(ask(text=["hello"]).json()) == 1 and "text" in ask(text="hello").json()
    for fields in ({"sampling_params": [{}]}, {"sampling_params": 5}, {"input_ids": [IDS], "sampling_params": [{}, {}]}):
        reply = ask(**{"input_ids": IDS, **fields})
        assert reply.status_code == 400 and message_of(reply).startswith("sampling_params: Input should be an object")


def test_no_refusal_names_a_class_of_this_program(client):
    for reply in (complete(client, stream=True, stream_options=5), complete(client, stream=True, stream_options=[1])):
        assert (reply.status_code, message_of(reply)) == (400, "stream_options: Input should be an object")


def test_a_text_that_can_never_fit_is_not_tokenized(client):
    reply = client.post("/tokenize", json={"prompt": "a" * 1_100_000})
    assert reply.status_code == 400 and "1,100,000 characters; accepted: up to 1,048,576" in message_of(reply)
    assert client.post("/tokenize", json={"prompt": "a" * 10_000}).json()["count"] == 10_000


def test_bodies_that_fill_the_room_for_them_are_refused_and_give_it_back():
    with served(max_held_bytes=100_000) as url, httpx.Client(base_url=url, timeout=20) as client:
        for _ in range(3):
            assert client.post("/tokenize", json={"prompt": "a" * 150_000}).status_code == 200
            reply = client.post("/tokenize", json={"prompt": "a" * 250_000})
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1") and "other requests" in message_of(reply)


def test_of_many_long_bodies_at_once_some_are_refused_and_short_ones_never():
    room = BodyRoom(max_bytes=200_000)
    with room.held() as one, room.held() as other, room.held() as short:
        one.grow(100_000), one.grow(250_000)
        with pytest.raises(Refusal) as refusal:
            other.grow(150_000)
        assert refusal.value.status == 503
        short.grow(60_000), other.grow(60_000)
    with room.held() as other:
        other.grow(150_000)
    assert room.num_held == 0


def test_prompt_log_probabilities_name_the_tokens_of_the_prompt(client_of):
    found = complete(client_of(flavor="vllm"), prompt_logprobs=1, max_tokens=1).json()
    entries = found["choices"][0]["prompt_logprobs"]
    assert entries[0] is None and len(entries) == len(IDS)
    assert entries[1][str(IDS[1])]["rank"] is None  # outside the top: unknown, not nought


def test_limits_of_the_body():
    with served(max_body_bytes=1024, body_timeout_s=0.2) as url:
        assert httpx.post(f"{url}/v1/completions", json={"prompt": [1] * 1000}).status_code == 413
        chunks = (b" " * 100 for _ in range(50))
        assert (
            httpx.post(f"{url}/v1/completions", content=chunks, headers={"content-type": "application/json"}).status_code == 413
        )
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
            )
            assert slow.recv(64).startswith(b"HTTP/1.1 408")


def test_the_key_is_asked_for_where_the_real_servers_ask():
    key = "k" * 20
    answers = {"vllm": (401, 200, 200, 200), "sglang": (401, 401, 200, 200)}
    for flavor, expected in answers.items():
        with serving(flavor=flavor, api_key=key) as running, httpx.Client(base_url=running.url) as client:
            asked = (
                client.get("/v1/models"),
                client.post("/tokenize", json={"prompt": "x"}),
                client.get("/health"),
                client.get("/metrics"),
            )
            assert tuple(reply.status_code for reply in asked) == expected
            assert asked[0].json() == {"error": "Unauthorized"}
            for header in ("Bearer wrong", f"Basic {key}", key, f"bearer {key}x", "Bearer \xe9"):
                assert client.get("/v1/models", headers={"authorization": header.encode("latin-1")}).status_code == 401
            assert client.get("/v1/models", headers={"authorization": f"bearer {key}"}).status_code == 200
            assert key not in repr(running.options)


def test_a_priority_is_taken_whatever_the_policy(client):
    assert complete(client, priority=3).status_code == complete(client, priority=-3).status_code == 200


def test_the_reset_exists_only_if_asked_for():
    with served(reset_endpoint=False, metrics_endpoint=False) as url:
        assert httpx.post(f"{url}/reset_prefix_cache").status_code == httpx.get(f"{url}/metrics").status_code == 404


_SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=6
)
_NAMES = st.sampled_from([
    "prompt", "messages", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stop_token_ids", "ignore_eos",
    "logprobs",
    "top_logprobs", "stream", "stream_options", "cache_salt", "extra_key", "priority", "n", "model", "prompt_logprobs", "tools",
    "return_token_ids", "sampling_params", "input_ids", "text", "tokens", "response_format",
    "max_completion_tokens", "add_generation_prompt",
])  # fmt: skip
_PATHS = st.sampled_from(["/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/detokenize"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=_PATHS, fields=st.dictionaries(_NAMES, _VALUES, max_size=5), base=st.booleans())
def test_no_body_whatever_it_holds_is_an_internal_error(client, path, fields, base):
    good = {"prompt": IDS, "messages": CHAT, "max_tokens": 1, "tokens": [5], "input_ids": [5]} if base else {}
    body = json.dumps({**good, **fields}).encode()
    reply = client.post(path, content=body, headers={"content-type": "application/json"})
    assert reply.status_code in (200, 400, 404) and reply.text
    if reply.status_code == 200 and reply.headers["content-type"].startswith("text/event-stream"):
        assert reply.text.endswith("data: [DONE]\n\n") and '"code":500' not in reply.text
