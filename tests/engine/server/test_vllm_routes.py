"""What clients of vLLM rely on beside the texts: ids, headers, small routes, roles, words of refusals; as recorded from it."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from engine.config import EngineConfig
from engine.model.tokenizer import Tokenizer
from engine.server.open_engine import open_engine
from engine.server.options import ServerOptions
from engine.server.requests.intake import Intake
from engine.server.requests.sglang_rules import SGLangRules
from engine.server.requests.vllm_rules import VLLMRules
from engine.server.sim_text import SimText
from tests.engine.server.served import serving

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "servers" / "vllm-0.32.0-cpu" / "openai_routes.json"
RECORDED = json.loads(GOLDEN.read_text(encoding="utf-8"))
TEMPLATE = (
    "{% if messages[0].role != 'system' %}S:You are helpful;{% endif %}"
    "{% for message in messages %}{{ message.role[0] | upper }}:{{ message.content }};{% endfor %}"
)


@pytest.fixture(scope="module")
def running():
    with serving(flavor="vllm", model_name="smollm2", policy="priority") as running:
        yield running


@pytest.fixture(scope="module")
def client(running):
    with httpx.Client(base_url=running.url, timeout=20) as client:
        yield client


def ask_again(client, title):
    """Our reply to the recorded request, and what was recorded."""
    real = RECORDED[title]
    reply = client.request(real.get("method", "POST"), real["path"], json=real.get("body"), headers=real.get("headers", {}))
    assert reply.status_code == real["status"], title
    return reply, real


@pytest.mark.parametrize("title", [title for title, real in RECORDED.items() if real["status"] == 400])
def test_refusals_have_the_real_words_and_name_the_same_field(client, title):
    reply, real = ask_again(client, title)
    assert reply.json() == real["json"]


SMALL = [title for title, real in RECORDED.items() if not real["path"].startswith(("/v1/c", "/tokenize", "/detokenize"))]


@pytest.mark.parametrize("title", SMALL)
def test_small_routes_answer_the_same_methods_with_the_same_bodies(client, title):
    reply, real = ask_again(client, title)
    assert reply.headers.get("allow") == real.get("allow")
    assert reply.json() == real["json"] if "json" in real else reply.text == real["text"]


def test_metrics_may_be_posted_for_and_looked_at(client):
    assert client.post("/metrics").text.startswith("# HELP vllm:")
    assert client.head("/metrics").status_code == 200


def test_the_other_resets_and_server_info_belong_to_the_dev_mode():
    with serving(reset_endpoint=False) as running, httpx.Client(base_url=running.url) as client:
        paths = ("/reset_mm_cache", "/reset_encoder_cache", "/reset_prefix_cache")
        assert {client.post(path).status_code for path in paths} == {client.get("/server_info").status_code} == {404}
        assert client.get("/ping").status_code == client.get("/load").status_code == 200


def test_server_info_tells_the_cache_as_a_text_or_by_parts(client):
    told = client.get("/server_info").json()
    assert list(told) == ["vllm_config", "vllm_env", "system_env"]
    assert "block_size=16, " in told["vllm_config"] and "enable_prefix_caching=True" in told["vllm_config"]
    parts = client.get("/server_info?config_format=json").json()["vllm_config"]
    assert parts["cache_config"]["block_size"] == 16 and parts["scheduler_config"]["policy"] == "priority"
    assert client.get("/server_info?config_format=yaml").status_code == 400


@pytest.mark.parametrize("title", ["completion, request_id", "completion, X-Request-Id", "chat, X-Request-Id"])
def test_a_reply_bears_the_id_that_its_client_chose(client, title):
    reply, real = ask_again(client, title)
    assert reply.json()["id"] == real["json"]["id"]
    streamed = client.post(real["path"], json={**real["body"], "stream": True}, headers=real.get("headers", {})).text
    events = [json.loads(event[6:]) for event in streamed.split("\n\n") if event.startswith("data: {")]
    assert {event["id"] for event in events} == {real["json"]["id"]}


def test_the_headers_win_over_the_body(client, running, monkeypatch):
    submitted = []
    submit = running.loop.submit
    monkeypatch.setattr(running.loop, "submit", lambda requests, *how: submitted.extend(requests) or submit(requests, *how))
    body = {"prompt": "x", "max_tokens": 1, "priority": 5, "request_id": "of-the-body"}
    for header, expected in ((None, 5), ("-3", -3), ("high", 5)):
        headers = {"X-Request-Id": "of-the-header"} | ({} if header is None else {"X-Vllm-Priority": header})
        assert client.post("/v1/completions", json=body, headers=headers).json()["id"] == "cmpl-of-the-header"
        assert submitted.pop().priority == expected


def test_a_priority_without_the_policy_is_no_error(client_of):
    real = RECORDED["completion, priority 1"]
    assert client_of(flavor="vllm").post("/v1/completions", json={**real["body"], "model": "sim"}).status_code == real["status"]


def test_the_field_at_fault_is_named_as_the_client_named_it(client):
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    reply = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": image}]})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "messages"


def test_who_has_no_key_gets_the_same_bytes():
    with serving(api_key="secret-key") as running:
        assert httpx.get(f"{running.url}/v1/models").content == b'{"error":"Unauthorized"}'


def test_at_most_four_stop_texts(client):
    def ask(count):
        stops = [str(one) * 9 for one in range(count)]
        return client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, "stop": stops})

    assert ask(4).status_code == 200
    error = ask(5).json()["error"]
    assert error["param"] == "stop" and "at most 4 items after validation, not 5" in error["message"]


def test_an_empty_stop_text_ends_an_answer_of_sglang_at_its_first_token(client_of):
    recorded = json.loads((GOLDEN.parents[1] / "sglang-0.5.23-cpu" / "streams.json").read_text(encoding="utf-8"))["stop ''"]
    ours = client_of(flavor="sglang").post("/v1/completions", json={**recorded["body"], "prompt": "a b c"}).json()
    assert ours["choices"] == recorded["json"]["choices"] and ours["usage"]["completion_tokens"] == 1


class HFStandIn:
    """What Tokenizer needs of a tokenizer of transformers, for a vocabulary of bytes with one special token."""

    eos_token_id = 256

    def __init__(self, chat_template):
        self.chat_template = chat_template

    def __len__(self):
        return 257

    def num_special_tokens_to_add(self):
        return 0

    def encode(self, text, add_special_tokens):
        return list(text.encode())

    def decode(self, token_ids, skip_special_tokens, clean_up_tokenization_spaces):
        kept = (one for one in token_ids if one < 256 or not skip_special_tokens)
        return "".join(self.convert_ids_to_tokens(kept)).replace("Ġ", " ")

    def convert_ids_to_tokens(self, token_ids):
        return [chr(one).replace(" ", "Ġ") if one < 256 else "<|end|>" for one in token_ids]

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        jinja2 = pytest.importorskip("jinja2")
        return jinja2.Template(self.chat_template).render(messages=messages)


def chat_of(rules, template, messages):
    """The text that a chat becomes."""
    engine = open_engine(EngineConfig(model="smollm2-135m"), "sim", pace=0.0)
    text = Tokenizer(HFStandIn(template))
    return text.decode(Intake(engine, rules(ServerOptions(), engine), text).read_chat(messages, None))


def test_developers_speak_as_the_system_where_the_template_does_not_know_them():
    said = [("developer", "Be brief."), ("user", "Hi"), ("system", "Be kind."), ("developer", "")]
    messages = [{"role": role, "content": content} for role, content in said]
    assert chat_of(VLLMRules, TEMPLATE, messages[:2]) == "S:Be brief.;U:Hi;"
    assert chat_of(VLLMRules, TEMPLATE, messages) == "S:Be brief.\n\nBe kind.;U:Hi;"
    assert chat_of(VLLMRules, TEMPLATE + "{# 'developer' #}", messages[:2]) == "S:You are helpful;D:Be brief.;U:Hi;"
    assert chat_of(SGLangRules, TEMPLATE, messages[:2]) == "S:You are helpful;D:Be brief.;U:Hi;"
    assert chat_of(VLLMRules, TEMPLATE, messages[1:2]) == "S:You are helpful;U:Hi;"


@pytest.fixture(scope="module")
def bytes_client():
    engine = open_engine(EngineConfig(model="smollm2-135m"), "sim", pace=0.0)
    engine.tokenizer = Tokenizer(HFStandIn(TEMPLATE))
    with serving(engine=engine) as running, httpx.Client(base_url=running.url, timeout=20) as client:
        yield client


def test_detokenize_keeps_special_tokens_and_passes_over_ids_that_are_none(bytes_client):
    def text_of(tokens):
        return bytes_client.post("/detokenize", json={"tokens": tokens})

    assert text_of([256, 104, 105]).json() == {"prompt": "<|end|>hi"}
    assert text_of([104, 10_000_000, 2**40]).json() == {"prompt": "h"}
    assert text_of([104, -1]).status_code == 400
    strings = bytes_client.post("/tokenize", json={"prompt": "hi you", "return_token_strs": True}).json()["token_strs"]
    assert strings == [*"hiĠyou"]


def test_detokenize_of_sglang_keeps_special_tokens_if_asked(client_of):
    client = client_of(flavor="sglang")
    for fields, expected in (({}, "hi"), ({"skip_special_tokens": False}, "hi<256>"), ({"skip_special_tokens": True}, "hi")):
        assert client.post("/detokenize", json={"tokens": [104, 105, 256], **fields}).json() == {"text": expected}
    assert client.post("/detokenize", json={"tokens": [[104, 256], [10_000_000]]}).json() == {"text": ["h", ""]}


def test_the_simulated_models_end_of_text_can_be_shown():
    text = SimText(1000)
    assert text.decode([104, 256]) == "h" and text.decode([104, 256], keep_special=True) == "h<256>"
    assert text.token_strings([104, 256, 300]) == ["h", "<256>", "<300>"]


def test_the_labels_of_the_cache_hold_none_where_the_real_servers_do(client):
    page = client.get("/metrics").text
    real = GOLDEN.with_name("metrics.txt").read_text(encoding="utf-8")
    for label in ('hash_block_size="None"', 'cache_hit_alignment_tokens="None"'):
        assert label in page and label in real
