"""A stream has one event for each token, with the texts of the real servers' events, whatever a token brings."""

from __future__ import annotations

import asyncio
import json
from functools import partialmethod
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.metrics import RequestMetrics
from engine.request import FinishReason
from engine.request_output import RequestOutput
from engine.runner import TokenLogprobs
from engine.server.answers.sglang_replies import SGLangReplies
from engine.server.answers.vllm_logprobs import chat_logprobs
from engine.server.answers.vllm_replies import VLLMReplies
from engine.server.open_engine import open_engine
from engine.server.options import ServerOptions
from engine.server.requests.intake import Intake
from engine.server.requests.sglang_rules import SGLangRules
from engine.server.requests.vllm_rules import VLLMRules
from engine.server.routes.generation import Generation

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "servers"
CAPTURED = {"vllm": "vllm-0.32.0-cpu", "sglang": "sglang-0.5.23-cpu"}
FLAVORS = {"vllm": (VLLMRules, VLLMReplies), "sglang": (SGLangRules, SGLangReplies)}

# Three tokens of SmolLM2 make a 😀; the others stand for some of its tokens.
BYTES = {10813: b"\xf0\x9f", 242: b"\x98", 218: b"\x80", 216: b" ", 37: b"5", 28: b",", 38: b"6"}
SMILE = [10813, 242, 218]


class ByteLevelText:
    """A tokenizer some of whose tokens are parts of characters."""

    vocab_size = 49_152
    eos_token_ids = frozenset({2})

    def encode(self, text):
        return list(text.encode())

    def decode(self, token_ids, keep_special=False):
        return b"".join(BYTES[one] for one in token_ids).decode("utf-8", errors="replace")


class StepByStep:
    """A loop, and its one ticket: the outputs of a request, none of them missed."""

    def __init__(self, outputs):
        self._outputs = iter(outputs)

    def submit(self, requests, *how):
        return [self]

    def abort(self, tickets):
        pass

    async def next(self):
        return next(self._outputs)

    async def finished(self):
        return list(self._outputs)[-1]


def outputs_of(ids, finish_reason, text, top):
    """What an engine tells of a request, after each of its tokens."""
    for count in range(1, len(ids) + 1):
        is_last = count == len(ids)
        yield RequestOutput(
            request_id="x",
            prompt_token_ids=[1],
            output_token_ids=ids[:count],
            new_token_ids=ids[count - 1 : count],
            text=text if is_last else None,
            finished=is_last,
            finish_reason=finish_reason if is_last else None,
            num_cached_tokens=0,
            metrics=RequestMetrics(arrival_s=0.0, token_times_s=[0.0] * count),
            logprobs=[TokenLogprobs(one, -1.0, [(one, -1.0), (top, -2.0)]) for one in ids[:count]],
        )


@pytest.fixture(scope="module")
def engine():
    return open_engine(EngineConfig(model="smollm2-135m"), "sim", pace=0.0)


@pytest.fixture
def ask(engine):
    def ask(flavor, ids, *, path="completion", finish_reason=FinishReason.LENGTH, told=None, top=28, **fields):
        """The JSON of the reply, or of each event, to a request whose answer is these ids."""
        options, text = ServerOptions(flavor=flavor), ByteLevelText()
        rules, replies = (make(options, engine, *rest) for make, rest in zip(FLAVORS[flavor], ((), (text,))))
        job = Intake(engine, rules, text).completion(json.dumps({"prompt": [1], **fields}).encode())
        if path == "chat":
            job = type(job)(**{**vars(job), "kind": "chat"})
        outputs = outputs_of(ids, finish_reason, text.decode(ids) if told is None else told, top)
        generation = Generation(StepByStep(outputs), options, rules, text, print)

        async def run():
            never = asyncio.Event()

            async def receive():
                await never.wait()

            async def send(message):
                sent.append(message.get("body", b"").decode())

            sent = []
            if not job.is_streaming:
                return await generation.whole(job, getattr(replies, path), receive)
            chunks = getattr(replies, f"{path}_chunks")
            await generation.stream(job, chunks, replies.last_chunks, "text/event-stream")({}, receive, send)
            return [json.loads(event[6:]) for event in sent if event.startswith("data: {")]

        return asyncio.run(run())

    return ask


def choices_of(events):
    """What was told of texts and endings, event by event; the counts at the end aside."""
    names = ("text", "finish_reason", "stop_reason", "matched_stop")
    return [{name: choice[name] for name in names if name in choice} for event in events for choice in event["choices"]]


def captured(flavor, title):
    return json.loads((GOLDEN / CAPTURED[flavor] / "streams.json").read_text(encoding="utf-8"))[title]


@pytest.mark.parametrize("flavor", FLAVORS)
def test_a_token_that_is_a_part_of_a_character_has_an_event_without_text(flavor, ask):
    ids = [*SMILE, *SMILE, *SMILE[:2]]
    real = captured(flavor, "characters of three tokens")
    assert choices_of(ask(flavor, ids, stream=True)) == choices_of(real["events"])
    whole = ask(flavor, ids)["choices"][0]["text"]
    assert whole == "".join(choice["text"] for choice in choices_of(real["events"]))


@pytest.mark.parametrize("flavor", FLAVORS)
def test_what_may_begin_a_stop_text_waits_as_it_does_in_the_real_servers(flavor, ask):
    real = captured(flavor, "stop text")
    asked = {"stop": real["body"]["stop"], "stream": True}
    events = ask(flavor, [216, 37, 28, 216, 38], finish_reason=FinishReason.STOP, told=" 5,", **asked)
    assert choices_of(events) == choices_of(real["events"])


def test_vllm_holds_back_what_no_stop_text_begins_with_too(ask):
    events = ask("vllm", [37, 37, 37, 28], stop=["66,", "zz"], stream=True)
    assert [choice["text"] for choice in choices_of(events)] == ["", "", "5", "55,"]
    events = ask("sglang", [37, 37, 37, 28], stop=["66,", "zz"], stream=True)
    assert [choice["text"] for choice in choices_of(events)] == ["5", "5", "5", ","]


def test_the_ids_of_held_text_come_with_it_in_sglang(ask):
    events = ask("sglang", [37, 38, 28, 37], stop="6,6", stream=True, return_token_ids=True)
    assert [event["choices"][0]["token_ids"] for event in events] == [[37], [38, 28, 37]]
    assert events[0]["choices"][0]["prompt_token_ids"] == [1] and "prompt_token_ids" not in events[1]["choices"][0]


def test_vllm_names_the_character_with_the_token_that_completes_it(ask):
    ids = [*SMILE, 10813]
    whole = ask("vllm", ids, logprobs=2, top=218)["choices"][0]["logprobs"]
    assert (whole["tokens"], whole["text_offset"]) == (["", "", "😀", ""], [0, 0, 0, 1])
    # The other candidate, the last byte, makes a character of the two tokens before, and of nothing else.
    assert [list(top) for top in whole["top_logprobs"]] == [[""], [""], ["😀"], [""]]
    events = ask("vllm", ids, logprobs=2, top=218, stream=True)
    pieces = [event["choices"][0]["logprobs"] for event in events]
    assert all(sum((piece[name] for piece in pieces), []) == whole[name] for name in whole)
    chat = ask("vllm", ids, path="chat", logprobs=1)["choices"][0]["logprobs"]["content"]
    assert [(one["token"], one["bytes"]) for one in chat] == [("", []), ("", []), ("😀", [*"😀".encode()]), ("", [])]


def test_naming_a_token_once_is_enough_for_all_places_where_it_might_have_come(monkeypatch):
    decoded, text = [], ByteLevelText()
    monkeypatch.setattr(ByteLevelText, "decode", partialmethod(_noted, decoded, ByteLevelText.decode))
    candidates = tuple((token_id, -1.0) for token_id in BYTES)
    logprobs = [TokenLogprobs(token_id, -1.0, candidates) for token_id in (37, 38, 28) * 20]
    assert len(chat_logprobs(text, logprobs, 20)["content"]) == 60
    assert sorted(decoded) == sorted([token_id] for token_id in BYTES)  # no place here is within a character


def _noted(self, notes, decode, token_ids, keep_special=False):
    notes.append(list(token_ids))
    return decode(self, token_ids, keep_special)


def test_counts_in_each_chunk_need_counts_at_the_end_in_vllm(ask):
    alone, both = ({"continuous_usage_stats": True}, {"continuous_usage_stats": True, "include_usage": True})
    events = ask("vllm", SMILE, stream=True, stream_options=alone)
    assert len(events) == 3 and not any("usage" in event for event in events)
    for path in ("completion", "chat"):
        usages = [event["usage"] for event in ask("vllm", SMILE, path=path, stream=True, stream_options=both)]
        assert [usage["completion_tokens"] for usage in usages] == ([0] if path == "chat" else []) + [1, 2, 3, 3]
        assert all(("completion_tokens_details" in usage) == (path == "chat") for usage in usages[:-1])
