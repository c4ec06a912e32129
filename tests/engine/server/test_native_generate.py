"""SGLang's own routes, against the replies and the growth of the counters that the real server showed, request by request."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from http.client import HTTPResponse
from pathlib import Path

import httpx
import pytest

from engine.config import EngineConfig
from engine.request import SamplingParams
from engine.server.answers import sglang_logprobs
from engine.server.open_engine import open_engine
from engine.server.requests.body_reader import BodyReader
from tests.engine.server.served import served, serving, until
from tests.engine.server.test_replies_like_the_real_ones import events_of, same_shape
from tests.engine.server.test_server_life import connection, send

REAL = Path(__file__).resolve().parents[2] / "golden" / "servers" / "sglang-0.5.23-cpu" / "native.json"
CAPTURED = {one["name"]: one for one in json.loads(REAL.read_text(encoding="utf-8"))}
COUNTED = [name for name, one in CAPTURED.items() if one["growth"]]  # in this order, on a server with an empty cache
IDS = list(range(300, 360))
ONE_BY_ONE = 200.0  # a pace at which a step takes long enough for its token to be sent before the next
SLOW = 200.0  # a pace at which 4,000 tokens take a good part of a second
ENDLESS = {"max_new_tokens": 7_000, "temperature": 0, "ignore_eos": True}


def counters(client):
    """Series of /metrics, each with the one label that differs between them."""
    found = {}
    for line in client.get("/metrics").text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            label = re.search(r'\b(?:mode|is_streaming|cache_source)="\w+"', name)
            found[name.partition("{")[0] + (f"{{{label[0]}}}" if label else "")] = float(value)
    return found


def asked(client, one):
    return client.post(one["path"], json=one["body"]) if "body" in one else client.get(one["path"])


def told(reply):
    """What of a reply does not depend on the model or the clock."""
    meta = reply["meta_info"]
    return {
        "num_ids": len(reply["output_ids"]),
        "index": reply.get("index"),
        **{name: meta[name] for name in ("finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens")},
        **{name: meta.get(name) for name in ("cached_tokens_details", "weight_versions", "num_retractions")},
    }


@pytest.fixture(scope="module")
def replayed():
    """name -> (reply, growth of the series that were captured) of the requests that count, asked in the captured order."""
    found = {}
    with served(flavor="sglang", model_name="smollm2", pace=ONE_BY_ONE) as url, httpx.Client(base_url=url, timeout=20) as client:
        before = counters(client)
        for name in COUNTED:
            reply, after = asked(client, CAPTURED[name]), counters(client)
            found[name] = reply, {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)}
            before = after
    return found


@pytest.fixture(scope="module")
def client():
    with served(flavor="sglang", model_name="smollm2") as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client


@pytest.mark.parametrize("name", COUNTED)
def test_each_request_is_counted_as_the_real_server_counts_it(replayed, name):
    reply, growth = replayed[name]
    assert reply.status_code == CAPTURED[name]["status"]
    series = {key for one in CAPTURED.values() for key in one["growth"]}
    assert {key: int(grown) for key, grown in growth.items() if key in series} == CAPTURED[name]["growth"]


@pytest.mark.parametrize("name", [name for name in COUNTED if CAPTURED[name].get("reply")])
def test_whole_answers_have_the_real_ones_fields_and_cached_tokens(replayed, name):
    ours, real = replayed[name][0].json(), CAPTURED[name]["reply"]
    assert isinstance(ours, list) == isinstance(real, list)
    several = (ours, real) if isinstance(real, list) else ([ours], [real])
    for one, captured in zip(*several, strict=True):
        same_shape(one, captured)
        assert told(one) == told(captured)
    if "rid" in CAPTURED[name]["body"] and "n" not in CAPTURED[name]["body"]["sampling_params"]:
        assert [one["meta_info"]["id"] for one in ours] == [one["meta_info"]["id"] for one in real]


@pytest.mark.parametrize("name", [name for name in COUNTED if "events" in CAPTURED[name]])
def test_streams_are_cumulative_and_each_event_has_the_real_ones_fields(replayed, name):
    ours, real = events_of(replayed[name][0]), CAPTURED[name]["events"]

    def by_index(events):
        return sorted(events, key=lambda one: one.get("index", 0))

    for one, captured in zip(by_index(ours), by_index(real), strict=True):
        same_shape(one, captured)
        assert told(one) == told(captured)
    assert replayed[name][0].headers["content-type"] == "text/event-stream; charset=utf-8"


def test_the_last_event_of_a_stream_is_the_whole_answer():
    body = {"text": "one two three", "sampling_params": {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}}
    with served(flavor="sglang", pace=ONE_BY_ONE) as url, httpx.Client(base_url=url, timeout=20) as client:
        whole = client.post("/generate", json=body).json()
        events = events_of(client.post("/generate", json={**body, "stream": True}))
    assert len(events) > 2
    for earlier, later in zip(events, events[1:]):
        assert later["text"].startswith(earlier["text"])
        assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
        assert earlier["meta_info"]["finish_reason"] is None
    assert (events[-1]["text"], events[-1]["output_ids"]) == (whole["text"], whole["output_ids"])
    rate = whole["meta_info"]["decode_throughput"]
    assert rate > 0 and whole["meta_info"]["e2e_latency"] >= 5 / rate


def test_log_probabilities_have_the_real_ones_form_and_those_of_the_prompt_read_nothing_cached(replayed):
    def form(value):
        return [form(one) for one in value] if isinstance(value, list) else type(value).__name__

    for name in ("logprob", "logprob start 0"):
        ours, real = replayed[name][0].json(), CAPTURED[name]["reply"]["meta_info"]
        for key in [key for key in real if "logprob" in key]:
            assert form(ours["meta_info"][key]) == form(real[key]), key
        assert [token_id for _, token_id, _ in ours["meta_info"]["output_token_logprobs"]] == ours["output_ids"]
    assert ours["meta_info"]["cached_tokens"] == 0 and real["cached_tokens"] == 0


def test_a_prompt_without_output_is_cached_up_to_whole_pages():
    with served(flavor="sglang", page_size=16) as url, httpx.Client(base_url=url, timeout=20) as client:
        for _ in range(2):
            reply = client.post("/generate", json={"input_ids": IDS, "sampling_params": {"max_new_tokens": 0}}).json()
            assert (reply["text"], reply["output_ids"], reply["meta_info"]["finish_reason"]["length"]) == ("", [], 0)
        assert reply["meta_info"]["cached_tokens"] == 48
        usage = client.post("/v1/completions", json={"prompt": [*IDS, *IDS], "max_tokens": 1}).json()["usage"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 48}


def test_an_empty_stop_text_is_no_matter_where_no_token_is_wanted(client):
    body = {"input_ids": IDS, "sampling_params": {"max_new_tokens": 0, "stop": ""}}
    whole = client.post("/generate", json=body)
    (event,) = events_of(client.post("/generate", json={**body, "stream": True}))
    for reply in (whole.json(), event):
        assert (reply["text"], reply["output_ids"]) == ("", []) and whole.status_code == 200
        assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 0, "stop": [""]}
    choice = client.post("/v1/chat/completions", json=chat).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")


@pytest.mark.parametrize("num_top", [0, 2])
def test_each_event_tells_the_log_probabilities_of_all_tokens_so_far(num_top):
    body = {"input_ids": [IDS, IDS[:9]], "sampling_params": {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}}
    body |= {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": num_top}
    with served(flavor="sglang", pace=ONE_BY_ONE) as url, httpx.Client(base_url=url, timeout=20) as client:
        wholes = client.post("/generate", json=body).json()
        events = events_of(client.post("/generate", json={**body, "stream": True}))
    assert len(events) > 4
    for event in events:
        ours, whole = event["meta_info"], wholes[event["index"]]["meta_info"]
        names = [name for name in whole if "logprob" in name]
        assert [name for name in ours if "logprob" in name] == names and len(names) == (5 if num_top else 3)
        for name in names:
            ends_with_output = name.startswith("output") and isinstance(whole[name], list)
            expected = whole[name][: len(event["output_ids"])] if ends_with_output else whole[name]
            assert ours[name] == (len(event["output_ids"]) if name.endswith("length") else expected)


def test_of_an_event_only_what_is_new_is_written_anew(monkeypatch):
    written = []
    monkeypatch.setattr(sglang_logprobs, "_json", lambda value: written.append(value) or json.dumps(value))
    engine = open_engine(EngineConfig(model="smollm2-135m", prefix_cache="radix"), "sim", pace=0.0)
    engine.add_request(IDS, SamplingParams(max_tokens=4, ignore_eos=True, logprobs=2, prompt_logprobs=2))
    text = sglang_logprobs.NativeLogprobsText(2)
    while engine.has_unfinished_requests:
        (output,) = engine.step()
        told = json.loads("{" + text.members(output) + "}")
        assert told == json.loads(json.dumps(sglang_logprobs.native_logprobs(output, 2)))
    assert sorted(map(len, written)) == [1] * 8 + [len(IDS)] * 2


@pytest.mark.parametrize("name", [name for name in CAPTURED if name.startswith("refused")])
def test_refusals_have_the_real_ones_shape_and_words(client, name):
    reply = asked(client, CAPTURED[name])
    assert (reply.status_code, reply.json()) == (CAPTURED[name]["status"], CAPTURED[name]["reply"])


def test_a_short_body_does_not_ask_for_too_much(client):
    many = (([IDS], 129, "128 answers"), ([IDS] * 65, 2, "128 answers"), ([[5]] * 1025, 1, "1024 in one"))
    for prompts, number, accepted in many:
        reply = client.post("/generate", json={"input_ids": prompts, "sampling_params": {"n": number}})
        assert reply.status_code == 400 and accepted in reply.json()["error"]["message"]
    assert len(client.post("/generate", json={"input_ids": IDS, "sampling_params": {"n": 16, "max_new_tokens": 1}}).json()) == 16


def test_a_body_that_asks_for_many_requests_is_read_where_it_holds_up_no_stream():
    def reader_of(fields):
        body = json.dumps(fields).encode()
        assert len(body) < 8_192
        return asyncio.run(reader.read(body, lambda _: threading.current_thread().name))

    reader, here = BodyReader(), threading.current_thread().name
    chat = {"messages": [{"role": "user", "content": "hello"}] * 4, "model": "m"}
    for quick in ({"input_ids": IDS}, {"text": "an \"n\"\n", "rid": "r"}, {"prompt": [IDS, IDS]}, chat):
        assert reader_of(quick) == here
    for slow in ({"input_ids": IDS, "sampling_params": {"n": 128}}, {"prompt": [[5]] * 1024}, {"text": ["a"] * 1024}):
        assert reader_of(slow).startswith("reader")
    reader.close()


def test_what_cannot_be_read_is_told_as_everywhere(client):
    refused = [
        client.post("/generate", content=json.dumps({"input_ids": IDS}), headers={"content-type": "text/plain"}),
        client.post("/generate", content=b"{", headers={"content-type": "application/json"}),
        client.post("/generate", json={"text": 5}),
        client.post("/generate", json={"input_ids": IDS, "sampling_params": "x"}),
        client.post("/generate", json={"input_ids": IDS, "rid": 5}),
        client.post("/generate", json={"input_ids": [IDS], "return_logprob": [True]}),
    ]
    for reply in refused:
        assert reply.status_code == 400
        assert {name: reply.json()[name] for name in ("object", "type", "code")} == {
            "object": "error", "type": "Bad Request", "code": 400,
        }  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CAPTURED if name.startswith("GET ")])
def test_the_routes_that_look_answer_as_the_real_ones(client, name):
    reply, real = asked(client, CAPTURED[name]), CAPTURED[name]
    assert reply.status_code == real["status"]
    if isinstance(real["reply"], dict) and "id" in real["reply"]:
        same_shape(reply.json(), real["reply"])
        assert reply.json()["max_model_len"] == real["reply"]["max_model_len"]
    else:
        assert (reply.json() if reply.content else "") == real["reply"]


def test_a_request_is_aborted_by_its_name_and_its_client_gets_what_there_is():
    with serving(flavor="sglang", pace=2.0) as running, httpx.Client(base_url=running.url, timeout=20) as client:
        for body in ({"input_ids": IDS}, {"input_ids": IDS, "stream": True}, {"input_ids": [IDS, IDS], "rid": "other"}):
            got = []
            body = {"rid": "mine", "sampling_params": ENDLESS, **body}
            thread = threading.Thread(target=lambda: got.append(httpx.post(f"{running.url}/generate", json=body, timeout=20)))
            thread.start()
            is_batch = body["rid"] == "other"
            until(lambda: running.loop.num_unfinished == 1 + is_batch and len(running.loop.engine.scheduler.running) > 0)
            again = client.post("/generate", json={"input_ids": IDS, "rid": "other_1" if is_batch else "mine"})
            assert (again.status_code, list(again.json())) == (400, ["error"]) and "Duplicate request ID" in again.text
            assert client.post("/abort_request", json={"rid": "nobody"}).status_code == 200 and thread.is_alive()
            assert client.get("/health_generate").status_code == 200  # those that run are proof enough
            aborted = client.post("/abort_request", json={"abort_all": True} if is_batch else {"rid": "mine"})
            assert (aborted.status_code, aborted.content) == (200, b"")
            thread.join(20)
            ended = events_of(got[0])[-1] if "stream" in body else (got[0].json()[0] if is_batch else got[0].json())
            reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
            assert ended["meta_info"]["finish_reason"] == reason
            assert ended["meta_info"]["completion_tokens"] == len(ended["output_ids"]) < ENDLESS["max_new_tokens"]
            until(lambda: running.loop.num_unfinished == 0)


@pytest.fixture(scope="module")
def slow():
    """A server on which computing a prompt of 4,000 tokens takes a while."""
    with serving(flavor="sglang", pace=SLOW) as running:
        yield running


def begun(running, **fields):
    """A connection whose request with n 2 has begun to compute the first of three new prompts, each of which takes a while."""
    new = 10 * running.loop._num_submitted
    prompts = [[new + number, *range(300, 4_300)] for number in range(3)]
    body = {"input_ids": prompts, "sampling_params": {"n": 2, "max_new_tokens": 50, "ignore_eos": True}, **fields}
    client = connection(running.url)
    client.settimeout(20)
    send(client, body, "/generate")
    until(lambda: len(running.loop.engine.scheduler.running) > 0)
    return client


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_its_prompts_are_computed_frees_the_engine(slow, stream):
    num_before = slow.loop._num_submitted
    begun(slow, stream=stream).close()
    until(lambda: slow.loop.num_unfinished == 0)
    httpx.post(f"{slow.url}/generate", json={"input_ids": IDS, "sampling_params": {"max_new_tokens": 0}}, timeout=20)
    assert slow.loop._num_submitted == num_before + 1 + 1  # its second prompt was never begun


def test_a_request_that_is_aborted_while_its_prompts_are_computed_gives_up(slow):
    num_before = slow.loop._num_submitted
    with begun(slow) as client:
        assert httpx.post(f"{slow.url}/abort_request", json={"abort_all": True}).status_code == 200
        answer = HTTPResponse(client)
        answer.begin()
        answers = json.loads(answer.read())
    assert [one["meta_info"]["finish_reason"]["type"] for one in answers] == ["abort"] * 6
    assert slow.loop._num_submitted == num_before + 1 + 6  # no second prompt


def test_a_clients_name_is_taken_while_its_prompts_are_computed_and_no_longer(slow):
    with begun(slow, rid=["a", "b", "c"]):
        for taken in ({"rid": "c", "input_ids": IDS}, {"rid": ["x", "a"], "input_ids": [IDS, IDS], "sampling_params": {"n": 2}}):
            again = httpx.post(f"{slow.url}/generate", json=taken, timeout=20)
            assert again.status_code == 400 and "Duplicate request ID detected" in again.text
    until(lambda: slow.loop.num_unfinished == 0)
    params = {"max_new_tokens": 1}
    assert httpx.post(f"{slow.url}/generate", json={"rid": "c", "input_ids": IDS, "sampling_params": params}).status_code == 200


def test_more_answers_than_could_ever_wait_are_refused_before_a_prompt_is_computed():
    with serving(flavor="sglang", max_num_seqs=1, max_waiting=1) as running:
        body = {"input_ids": [IDS, IDS], "sampling_params": {"n": 2, "max_new_tokens": 1}}
        reply = httpx.post(f"{running.url}/generate", json=body)
        assert (reply.status_code, reply.json()) == (400, {"error": {"message": "4 prompts; accepted: up to 2 at once"}})
        assert running.loop._num_submitted == 0


def test_a_refused_number_is_told_as_it_was_read_and_not_in_megabytes(client):
    zeros = "0" * 3_000
    sent_and_told = {"temperature": (f"-{zeros}1.5", "-1.5"), "top_p": (f"{zeros}2", "2"), "top_k": (f"-{zeros}2", "-2")}
    for name, (sent, told) in {**sent_and_told, "max_new_tokens": (f"-{zeros}3", "-3")}.items():
        reply = client.post("/generate", json={"input_ids": IDS, "sampling_params": {name: sent}})
        assert reply.status_code == 400 and reply.json()["error"]["message"].endswith(f"got {told}.")


@pytest.mark.parametrize("path", ["/generate", "/abort_request", "/health_generate", "/ready", "/"])
def test_the_vllm_flavor_has_none_of_it(client_of, path):
    assert client_of(flavor="vllm").get(path).status_code == 404
