"""SGLang's OpenAI routes, against what a real one answered to the same bodies: the fields of the replies, in their order, chunk by
chunk, and what they say of prompts and of cached tokens."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import httpx
import pytest

from engine.model.tokenizer import ByteTokenizer
from engine.runner import TokenLogprobs
from engine.server.answers.sglang_logprobs import completion_logprobs
from tests.engine.server.served import served

CAPTURED = json.loads(
    (Path(__file__).resolve().parents[2] / "golden/servers/sglang-0.5.23-cpu/openai_routes.json").read_text("utf-8")
)
TO_THE_END = "chat, max_completion_tokens 0"  # as many tokens as fit: for a small server
CHAT = [{"role": "user", "content": "Say hello."}]
DETAILS = {"return_cached_tokens_details": True}


@pytest.fixture
def client(client_of):
    return client_of(flavor="sglang")


def completion(client, **fields):
    return client.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 2, **fields})


def chat(client, **fields):
    return client.post("/v1/chat/completions", json={"messages": CHAT, "max_tokens": 2, **fields})


def cached(reply):
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def events_of(reply):
    assert reply.text.endswith("data: [DONE]\n\n"), reply.text
    return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]


def form(value):
    """Names in their order and kinds of values, all the way down; of a list the first entry, of tokens' candidates the number."""
    if isinstance(value, dict):
        if value and all(isinstance(one, float) for one in value.values()):
            return len(value)
        return {name: form(one) for name, one in value.items()}
    if isinstance(value, list):
        return [form(one) for one in value[:1]]
    return type(value).__name__


def forms_of(events):
    """One after the other, each as often as it changes: how many tokens a chunk carries is no matter of form."""
    forms = [json.dumps(form(event)) for event in events]
    return [one for position, one in enumerate(forms) if forms[position - 1 : position] != [one]]


def is_certain(event):
    """Whether a stream has such a chunk however fast it is: all of a completion's tokens may come with its end, in both servers."""
    return not (event["choices"] and "text" in event["choices"][0] and event["choices"][0]["finish_reason"] is None)


@pytest.mark.parametrize("title", [title for title in CAPTURED if title != TO_THE_END])
def test_a_reply_has_the_form_of_the_real_ones(client, title):
    captured = CAPTURED[title]
    body = {"cache_salt": title, "ignore_eos": True, **captured["body"]}
    if "miss" not in title:
        client.post(captured["path"], json=body)
    reply = client.post(captured["path"], json=body)
    assert reply.status_code == captured["status"], reply.text
    if reply.status_code == 400:
        assert reply.json() == captured["json"]
    elif "json" in captured:
        assert json.dumps(form(reply.json())) == json.dumps(form(captured["json"]))
        assert reply.json()["model"] == captured["json"]["model"]
    else:
        ours, real = events_of(reply), captured["events"]
        assert forms_of(filter(is_certain, ours)) == forms_of(filter(is_certain, real))
        told, captured_too = ({*forms_of(itertools.filterfalse(is_certain, events))} for events in (ours, real))
        assert not told or not captured_too or told == captured_too


def test_fields_of_vllm_change_no_hit(client):
    prompt = list(range(300, 360))
    assert cached(completion(client, prompt=prompt)) == 0
    for value in (0, 5, -5):
        assert cached(completion(client, prompt=prompt, prompt_logprobs=value)) == 59
    assert events_of(completion(client, prompt=prompt, prompt_logprobs=1, stream=True))


def test_a_chats_last_words_of_the_assistant_are_the_users(client):
    said = [*CHAT, {"role": "assistant", "content": "Hello"}]
    as_user = [*CHAT, {"role": "user", "content": "Hello"}]

    def prompt_of(messages, **fields):
        return chat(client, messages=messages, return_token_ids=True, **fields).json()["choices"][0]["prompt_token_ids"]

    def tokenized(messages, **fields):
        return client.post("/tokenize", json={"messages": messages, **fields}).json()["tokens"]

    assert prompt_of(said) == prompt_of(as_user) == tokenized(said) == tokenized(as_user)
    assert prompt_of([*said, *CHAT]) != prompt_of([*as_user, *CHAT])  # only the last
    # The chat route knows no such field; /tokenize does, and then takes the messages as they are.
    assert prompt_of(CHAT, add_generation_prompt=False) == prompt_of(CHAT) != tokenized(CHAT, add_generation_prompt=False)
    for is_added in (False, True):
        assert tokenized(said, add_generation_prompt=is_added) != tokenized(as_user, add_generation_prompt=is_added)


def test_log_probabilities_have_no_offsets_and_only_the_candidates_asked_for():
    unlikely = TokenLogprobs(ord("x"), float("-inf"), ((ord("a"), -0.5), (ord("b"), -1.0), (ord("c"), -2.0)))
    told = completion_logprobs(ByteTokenizer(), [unlikely, unlikely], 2)
    assert told == {
        "text_offset": [-1, -1],
        "token_logprobs": [-9999.0, -9999.0],
        "tokens": ["x", "x"],
        "top_logprobs": [{"a": -0.5, "b": -1.0}] * 2,
    }
    assert completion_logprobs(ByteTokenizer(), [unlikely], 0)["top_logprobs"] == []


def test_where_cached_tokens_lay_is_told_of_the_first_prompt_and_in_a_stream_of_the_first_that_has_some(client):
    warm, cold = list(range(400, 440)), list(range(500, 540))
    completion(client, prompt=warm)
    told = {"cached_tokens_details": {"device": 39, "host": 0}}
    assert completion(client, prompt=warm, **DETAILS).json()["sglext"] == told
    assert completion(client, prompt=[warm, cold], **DETAILS).json()["sglext"] == told
    assert "sglext" not in completion(client, prompt=[[7, 8, 9], warm], **DETAILS).json()
    events = events_of(completion(client, prompt=[[8, 9, 7], warm], stream=True, **DETAILS))
    assert [event["sglext"] for event in events if "sglext" in event] == [told] == [events[-1]["sglext"]]
    assert "sglext" not in completion(client, prompt=warm).json()


def test_a_chat_of_no_tokens_caches_its_prompt(client):
    told = chat(client, max_tokens=0, cache_salt="none").json()
    assert told["choices"][0]["message"]["content"] == "" and told["choices"][0]["finish_reason"] == "length"
    usage = told["usage"]
    assert usage["completion_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert cached(chat(client, cache_salt="none")) == usage["prompt_tokens"] - 1
    events = events_of(chat(client, max_tokens=0, stream=True))
    assert [event["choices"][0]["delta"].get("content") for event in events] == ["", None]
    assert chat(client, max_tokens=-1).json()["message"] == "max_new_tokens must be at least 0, got -1."


def test_max_completion_tokens_of_0_are_as_if_they_were_not_there():
    assert CAPTURED[TO_THE_END]["status"] == 200 and CAPTURED[TO_THE_END]["json"]["usage"]["completion_tokens"] > 0
    with served(flavor="sglang", max_model_len=64) as url, httpx.Client(base_url=url) as client:
        usage = chat(client, max_tokens=None, max_completion_tokens=0, ignore_eos=True).json()["usage"]
        assert usage["total_tokens"] == 64
        assert chat(client, max_completion_tokens=0, ignore_eos=True).json()["usage"]["completion_tokens"] == 2


def test_the_clients_own_id_is_the_replies(client):
    assert completion(client, rid="mine").json()["id"] == chat(client, rid="mine").json()["id"] == "mine"
    assert {event["id"] for event in events_of(chat(client, rid="mine", stream=True))} == {"mine"}
    several = {"prompt": [[1], [2]], "rid": "mine"}
    assert completion(client, **several).json()["id"] == "mine_0"
    told = {event["choices"][0]["index"]: event["id"] for event in events_of(completion(client, stream=True, **several))}
    assert told == {0: "mine_0", 1: "mine_1"}
    assert completion(client, rid=5).status_code == 400 and completion(client, request_id=5).status_code == 200


@pytest.mark.parametrize("name", ["model", "max_tokens", "temperature", "stream"])
def test_null_is_no_value_of_a_completions_field(client, name):
    reply = completion(client, **{name: None})
    assert (reply.status_code, reply.json()["type"]) == (400, "Bad Request") and name in reply.json()["message"]
    if name in ("max_tokens", "temperature"):  # of a chat it is one
        assert chat(client, **{name: None}, max_completion_tokens=1).status_code == 200


def test_a_list_of_salts_is_for_a_list_of_prompts(client):
    for name in ("cache_salt", "extra_key"):
        for ask, prompt in ((completion, [1, 2]), (completion, "text"), (chat, None)):
            fields = {name: ["a"]} | ({} if prompt is None else {"prompt": prompt})
            reply = ask(client, **fields)
            assert (reply.status_code, reply.json()["message"]) == (400, f"{name} should be a string for a single request.")
        for prompt in ([[1, 2]], ["text"]):
            assert completion(client, prompt=prompt, **{name: ["a"]}).status_code == 200


def test_pages_of_any_origin_are_let_in_and_vllm_lets_none_in(client, client_of):
    origin = {"origin": "http://page.test"}
    asked = {**origin, "access-control-request-method": "POST"}
    for path in ("/v1/completions", "/metrics"):
        reply = client.options(path, headers=asked)
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, "http://page.test")
    assert client.get("/health", headers=origin).headers["access-control-allow-origin"] == "http://page.test"
    assert client.get("/health").headers["vary"] == "Origin"
    vllm = client_of(flavor="vllm")
    assert vllm.options("/v1/completions", headers=asked).status_code == 405
    assert "access-control-allow-origin" not in vllm.get("/health", headers=origin).headers
