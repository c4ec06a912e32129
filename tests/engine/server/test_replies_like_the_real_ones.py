"""Replies have the fields that the real servers' replies had, in their order, and refusals their status, words and fields."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from tests.engine.server.served import served

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "servers"
VLLM = (GOLDEN / "vllm-0.32.0-cpu" / "replies.txt").read_text()
SGLANG = (GOLDEN / "sglang-0.5.23-cpu" / "probe.txt").read_text()
IDS = list(range(300, 500))
CHAT = [{"role": "user", "content": "Say hello."}]


def captured_vllm(title):
    """The JSON reply under a heading of the vLLM capture."""
    return json.loads(re.search(rf"^## {re.escape(title)} -> \d+ \S+\n(.*)", VLLM, re.M).group(1))


def captured_events(text, start):
    """The events of a captured stream that begins after `start`."""
    block = text[text.index(start) :].partition("[DONE]")[0]
    return [json.loads(line.partition("data: ")[2]) for line in block.splitlines() if "data: {" in line]


def captured_sglang(pattern):
    return json.loads(re.search(pattern, SGLANG, re.M).group(1))


def shape(value):
    """Names and their order, all the way down; of lists the first entry; values are left out."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value and isinstance(value[0], dict) else None


def same_shape(ours, captured):
    assert json.dumps(shape(ours)) == json.dumps(shape(captured))


def events_of(reply):
    assert reply.text.endswith("data: [DONE]\n\n")
    return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]


@pytest.fixture(scope="module")
def vllm():
    with (
        served(flavor="vllm", block_size=32, max_model_len=4096, model_name="smollm2") as url,
        httpx.Client(base_url=url) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def sglang():
    with served(flavor="sglang") as url, httpx.Client(base_url=url) as client:
        yield client


def test_answers_of_the_vllm_flavor_have_vllms_fields(vllm):
    miss = vllm.post("/v1/completions", json={"prompt": IDS, "max_tokens": 1}).json()
    hit = vllm.post("/v1/completions", json={"prompt": IDS, "max_tokens": 1}).json()
    same_shape(miss, captured_vllm("completion miss"))
    same_shape(hit, captured_vllm("completion hit"))
    assert hit["usage"] == captured_vllm("completion hit")["usage"]
    assert miss["usage"] == captured_vllm("completion miss")["usage"]
    same_shape(vllm.post("/v1/chat/completions", json={"messages": CHAT, "max_tokens": 4}).json(), captured_vllm("chat"))
    with_ids = vllm.post("/v1/completions", json={"prompt": IDS[:5], "max_tokens": 1, "return_token_ids": True}).json()
    same_shape(with_ids, captured_vllm("return_token_ids"))
    assert with_ids["choices"][0]["prompt_token_ids"] == IDS[:5] and len(with_ids["choices"][0]["token_ids"]) == 1
    same_shape(vllm.get("/v1/models").json(), captured_vllm("GET /v1/models"))
    same_shape(vllm.post("/tokenize", json={"prompt": "hi"}).json(), captured_vllm("tokenize"))
    assert vllm.get("/version").json() == captured_vllm("GET /version")
    assert vllm.post("/reset_prefix_cache").json() == captured_vllm("reset")
    reset = vllm.get("/reset_prefix_cache")
    assert (reset.status_code, reset.json()) == (405, captured_vllm("reset via GET"))
    assert (vllm.get("/health").status_code, vllm.get("/health").content) == (200, b"")


def test_a_streamed_chat_of_the_vllm_flavor_has_vllms_chunks(vllm):
    body = {"messages": CHAT, "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    reply = vllm.post("/v1/chat/completions", json=body)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    ours, captured = events_of(reply), captured_events(VLLM, "## chat stream")
    for position in (0, -2, -1):  # the role, the end, the counts
        same_shape(ours[position], captured[position])
    assert ours[-1]["usage"].keys() == captured[-1]["usage"].keys()


def test_answers_of_the_sglang_flavor_have_sglangs_fields(sglang):
    for _ in range(2):
        ours = sglang.post("/v1/completions", json={"prompt": IDS, "max_tokens": 1}).json()
    same_shape(ours, captured_sglang(r'^(\{"id".*"text_completion".*\})$'))
    chat = sglang.post("/v1/chat/completions", json={"messages": CHAT, "max_tokens": 1}).json()
    same_shape(chat, captured_sglang(r'^200 (\{"id".*"chat\.completion".*\})$'))
    native = sglang.post("/generate", json={"input_ids": IDS, "sampling_params": {"max_new_tokens": 1}}).json()
    same_shape(native, captured_sglang(r'^200 (\{"text".*"cached_tokens":199.*\})$'))
    assert native["meta_info"]["cached_tokens"] == 199
    text = sglang.post("/tokenize", json={"prompt": "hi"}).json()
    same_shape(text, captured_sglang(r'^200 (\{"tokens".*\})$'))
    assert sglang.post("/v1/detokenize", json={"tokens": text["tokens"]}).json() == {"text": "hi"}
    assert sglang.get("/version").status_code == sglang.post("/reset_prefix_cache").status_code == 404
    assert sglang.get("/server_info").json()["version"] == "0.5.23" == sglang.get("/get_server_info").json()["version"]
    assert "page_size" not in sglang.get("/model_info").json()


def test_a_stream_of_the_sglang_flavor_has_sglangs_chunks(sglang):
    body = {"prompt": IDS, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}
    ours, captured = events_of(sglang.post("/v1/completions", json=body)), captured_events(SGLANG, "## stream")
    for position in (-2, -1):
        same_shape(ours[position], captured[position])


@pytest.mark.parametrize(
    "title, body",
    [
        ("cache_salt '' len 0", {"prompt": IDS, "cache_salt": ""}),
        ("cache_salt 'a/b' len 3", {"prompt": IDS, "cache_salt": "a/b"}),
        ("cache_salt 'xxxxxxxxxx' len 129", {"prompt": IDS, "cache_salt": "x" * 129}),
        ("cache_salt '5' len 1", {"prompt": IDS, "cache_salt": 5}),
        ("empty list", {"prompt": []}),
        ("too long", {"prompt": [1] * 5000}),
        ("bad model", {"prompt": IDS, "model": "nope"}),
        ("out of vocab", {"prompt": [10_000_000]}),
        ("max_tokens 0", {"prompt": IDS, "max_tokens": 0}),
    ],
)
def test_vllms_refusals_word_by_word(vllm, title, body):
    reply = vllm.post("/v1/completions", json=body)
    assert reply.json() == captured_vllm(title)
    assert reply.status_code == reply.json()["error"]["code"]


def test_a_salt_of_128_characters_is_taken(vllm):
    assert vllm.post("/v1/completions", json={"prompt": IDS, "cache_salt": "x" * 128}).status_code == 200


@pytest.mark.parametrize(
    "title, body", [("empty id list", {"prompt": []}), ("empty text", {"prompt": ""}), ("too long", {"prompt": [1] * 9000})]
)
def test_sglangs_refusals_word_by_word(sglang, title, body):
    reply = sglang.post("/v1/completions", json=body)
    captured = re.search(rf"^{title}: 400 \S+ (\{{.*\}})$", SGLANG, re.M).group(1)
    assert (reply.status_code, reply.json()) == (400, json.loads(captured))


def test_what_the_real_sglang_dies_of_is_refused_here(sglang):
    reply = sglang.post("/v1/completions", json={"prompt": [10_000_000]})
    assert reply.status_code == 400 and reply.json()["object"] == "error"
    for body in ({"prompt": IDS, "max_tokens": 0}, {"prompt": IDS, "cache_salt": 5}, {"prompt": [[]]}, {"prompt": ["", ""]}):
        reply = sglang.post("/v1/completions", json=body)
        assert (reply.status_code, list(reply.json())) == (400, ["object", "message", "type", "param", "code"])


def test_flushing_says_what_sglang_says(sglang):
    for method in ("GET", "POST"):
        reply = sglang.request(method, "/flush_cache")
        assert reply.status_code == 200 and repr(reply.text) in SGLANG and "content-type" not in reply.headers
    for method in ("DELETE", "PUT"):
        reply = sglang.request(method, "/flush_cache")
        assert (reply.status_code, reply.json()) == (405, {"detail": "Method Not Allowed"})


def test_every_reply_names_this_software_and_only_that(vllm, sglang):
    for reply in (
        vllm.get("/health"),
        vllm.get("/nowhere"),
        sglang.post("/v1/completions", json={}),
        sglang.delete("/flush_cache"),
    ):
        assert reply.headers.get_list("server") == ["labcli/test"]
