"""Streamed answers: joined they are the whole answer, and nothing half is ever sent."""

from __future__ import annotations

import json
from functools import partial

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.model.simulated_runner import SimulatedRunner
from engine.model.tokenizer import ByteTokenizer
from engine.server.answers.text_stream import TextStream, may_begin_stop
from engine.server.paced_runner import PacedRunner
from engine.server.requests.sglang_rules import SGLangRules
from engine.server.requests.vllm_rules import VLLMRules
from tests.engine.server.served import served

IDS = list(range(300, 340))
CHAT = [{"role": "user", "content": "Say hello."}]


class Repeating(PacedRunner):
    """A runner that says the prompt again, byte by byte; then the end of text."""

    def __init__(self):
        super().__init__(SimulatedRunner("smollm2-135m"), 0.0, frozenset({256}))

    def execute(self, output):
        result = super().execute(output)
        for index, item in enumerate(output.scheduled):
            if item.samples:
                said = [*item.request.prompt_token_ids, 256]
                result.sampled_token_ids[index] = said[item.request.num_output_tokens]
        return result


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def repeating(request):
    engine = LLMEngine(EngineConfig(model="smollm2-135m"), Repeating(), ByteTokenizer(49_152))
    with served(flavor=request.param, engine=engine) as url:
        yield request.param, url


def events_of(url, path, **fields):
    body = {"prompt": IDS, "messages": CHAT, "max_tokens": 200, "stream": True, **fields}
    text = httpx.post(f"{url}{path}", json=body, timeout=20).text
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def whole_of(url, path, **fields):
    body = {"prompt": IDS, "messages": CHAT, "max_tokens": 200, **fields}
    choice = httpx.post(f"{url}{path}", json=body, timeout=20).json()["choices"][0]
    return choice.get("text", choice.get("message", {}).get("content")), choice


def joined(events):
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["delta"].get("content") or "" if "delta" in choice else choice["text"] for choice in choices)


@pytest.mark.parametrize(
    "text, stop, told",
    [
        ("Grüße, 世界! 🦜 done", None, "Grüße, 世界! 🦜 done"),
        ("one two STOP three", ["STOP"], "one two "),
        ("one ST two STO STOP", "STOP", "one ST two STO "),
        ("aaaaaab", ["aab"], "aaaa"),
        ("xyz end", ["zz", "yz e", "nothing"], "x"),
        ("half of a stop text at the end: STO", ["STOP"], "half of a stop text at the end: STO"),
        ("a世b世c", ["世c"], "a世b"),
    ],
)
def test_joined_pieces_are_the_whole_text_and_stop_texts_never_show(repeating, text, stop, told):
    flavor, url = repeating
    whole, choice = whole_of(url, "/v1/completions", prompt=text, stop=stop)
    events = events_of(url, "/v1/completions", prompt=text, stop=stop)
    assert joined(events) == whole == told
    assert events[-1]["choices"][0]["finish_reason"] == choice["finish_reason"] == "stop"
    name = "stop_reason" if flavor == "vllm" else "matched_stop"
    matched = stop if isinstance(stop, str) else next((one for one in stop or () if one in text), None)
    # The end of a text is a reason of its own in SGLang: the token's id; in vLLM it is none.
    assert events[-1]["choices"][0][name] == choice[name] == (matched or (None if flavor == "vllm" else 256))


# But for the sign that stands for a part of a character: as a stop text it would come and go with the ids.
WHOLE = st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")


@pytest.mark.parametrize("rules", [VLLMRules, SGLangRules])
@given(text=st.text(max_size=40), stops=st.lists(st.text(WHOLE, min_size=1, max_size=4), max_size=3), data=st.data())
def test_pieces_of_any_text_join_however_the_steps_fall(rules, text, stops, data):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    ends = [position for position in range(len(ids) + 1) if not any(stop in tokenizer.decode(ids[:position]) for stop in stops)]
    told = text
    if len(ends) <= len(ids):  # a stop text ended it in the step after the last of these
        full = tokenizer.decode(ids[: ends[-1] + 1])
        told = full[: min(full.find(stop) for stop in stops if stop in full)]
    stream = TextStream(tokenizer, stops, partial(rules.num_held, None))
    steps = sorted(data.draw(st.sets(st.sampled_from(ends))))
    pieces = [stream.push(ids[:position]) for position in steps]
    assert all("\ufffd" not in piece or "\ufffd" in text for piece in pieces)
    assert "".join(pieces) + stream.finish(told) == told


@given(data=st.data())
def test_only_a_stop_texts_beginning_at_the_very_end_may_become_one(data):
    few = st.text("ab", max_size=40)
    stops = data.draw(st.lists(few, min_size=1, max_size=3))
    stop = data.draw(st.sampled_from(stops))
    text = data.draw(few) + stop[: data.draw(st.integers(0, max(0, len(stop) - 1)))]
    beginnings = [stop[:length] for stop in stops for length in range(1, len(stop))]
    assert may_begin_stop(text, stops) == any(text.endswith(one) for one in beginnings)


def test_token_ids_come_with_the_pieces_and_the_prompts_in_the_first(repeating):
    prompt = [*"Grüße".encode()]
    events = events_of(repeating[1], "/v1/completions", prompt=prompt, return_token_ids=True)
    choices = [event["choices"][0] for event in events]
    assert [choice.get("prompt_token_ids") for choice in choices] == [prompt] + [None] * (len(choices) - 1)
    assert sum((choice["token_ids"] for choice in choices), []) == [*prompt, 256]


def test_log_probabilities_of_the_pieces_join_too(client_of):
    url = client_of(flavor="vllm").base_url
    whole = whole_of(url, "/v1/completions", logprobs=1, max_tokens=20)[1]["logprobs"]
    pieces = [event["choices"][0]["logprobs"] for event in events_of(url, "/v1/completions", logprobs=1, max_tokens=20)]
    for name in whole:
        assert sum((piece[name] for piece in pieces), []) == whole[name]


def test_several_prompts_stream_side_by_side(client_of):
    client, prompts = client_of(flavor="vllm"), [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    body = {"prompt": prompts, "max_tokens": 12}
    whole = [choice["text"] for choice in client.post("/v1/completions", json=body).json()["choices"]]
    events = events_of(client.base_url, "/v1/completions", prompt=prompts, max_tokens=12)
    told = {index: "".join(e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == index) for index in range(3)}
    assert list(told.values()) == whole


def test_counts_in_every_chunk_grow_to_the_counts_in_the_last(client_of):
    for flavor in ("vllm", "sglang"):
        options = {"include_usage": True, "continuous_usage_stats": True}
        url = client_of(flavor=flavor).base_url
        events = events_of(url, "/v1/chat/completions", max_tokens=9, stream_options=options)
        # In SGLang's chats the role and the ending come without counts.
        counts = [event["usage"]["completion_tokens"] for event in events if flavor == "vllm" or "usage" in event]
        assert len(counts) > 1 and counts == sorted(counts) and counts[-1] == 9 and events[-1]["choices"] == []


def test_a_failure_in_mid_stream_is_an_event_and_an_orderly_end():
    for flavor in ("vllm", "sglang"):
        with served(flavor=flavor, pace=50.0, request_timeout_s=0.3) as url:
            body = {"prompt": IDS, "max_tokens": 4000, "stream": True}
            text = httpx.post(f"{url}/v1/completions", json=body, timeout=20).text
            error = json.loads(text.split("data: ")[-2])["error"]
            assert error["code"] == 504 and text.endswith("data: [DONE]\n\n")
            assert httpx.post(f"{url}/v1/completions", json={"prompt": IDS, "max_tokens": 4000}).status_code == 504


def test_openais_own_client_reads_both_flavors():
    openai = pytest.importorskip("openai")
    for flavor in ("vllm", "sglang"):
        with served(flavor=flavor, api_key="secret-key", model_name="sim") as url:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="secret-key", max_retries=0)
            whole = client.chat.completions.create(model="sim", messages=CHAT, max_tokens=8, temperature=0)
            parts = client.chat.completions.create(
                model="sim", messages=CHAT, max_tokens=8, temperature=0, stream=True, stream_options={"include_usage": True}
            )
            chunks = list(parts)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert text == whole.choices[0].message.content and whole.usage.completion_tokens == 8
            assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0
            assert client.completions.create(model="sim", prompt="hello", max_tokens=3).usage.completion_tokens == 3
            assert [model.id for model in client.models.list()] == ["sim"]
            with pytest.raises(openai.BadRequestError):
                client.completions.create(model="sim", prompt="hello", max_tokens=0)
            with pytest.raises(openai.AuthenticationError):
                openai.OpenAI(base_url=f"{url}/v1", api_key="other", max_retries=0).models.list()
