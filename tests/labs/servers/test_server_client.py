"""Whatever a server answers, the client says it in one line, within its limits, without what was sent."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from labs.servers.server_address import ServerAddress
from labs.servers.server_client import LimitReached, SendLimits, ServerClient, ServerRefused
from labs.targets.base import TargetError, TargetUnavailable

PROMPT, SALT, KEY = "the secret prompt of a person", "salt-of-tenant-7", "sk-very-secret"
BODY = {"model": "m", "prompt": PROMPT, "cache_salt": SALT}


def client_of(answer, api_key=KEY, rate=None, **limits):
    """A client whose server answers every request with `answer`: a response, an exception, or a function of the request."""

    def handle(request):
        found = answer(request) if callable(answer) else answer
        if isinstance(found, Exception):
            raise found
        return found

    return ServerClient(
        ServerAddress.of("http://me:pass@host:1"),
        api_key=api_key,
        rate=rate,
        transport=httpx.MockTransport(handle),
        limits=SendLimits(**limits),
    )


def failure(answer, stream=False, **limits) -> TargetError:
    client = client_of(answer, **limits)
    with pytest.raises(TargetError) as caught:
        list(client.stream("/v1/completions", BODY)) if stream else client.compute("/v1/completions", BODY)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    for secret in (PROMPT, SALT, KEY, "pass@"):
        assert secret not in text
    return caught.value


def sse(*lines: str) -> httpx.Response:
    return httpx.Response(200, text="".join(f"{line}\n\n" for line in lines))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            httpx.Response(500, text=f"Internal error while serving {PROMPT} with {SALT}"),
            "500: Internal error while serving … with …",
        ),
        (httpx.Response(400, json={"error": {"message": "no such field"}}), "400: no such field"),
        (httpx.Response(400, json={"object": "error", "message": "Prompt cannot be empty"}), "400: Prompt cannot be empty"),
        (httpx.Response(422, json={"detail": [{"input": PROMPT}]}), "answered /v1/completions with 422"),
        (httpx.Response(400, json={"message": f"bad, 'input': '{PROMPT[:9]}"}), "400: bad,"),
        (httpx.Response(400, json={"message": "ids 5, 17, 902, 33, 8 are wrong"}), "400: ids … are wrong"),
        (httpx.Response(200, text="<html>busy</html>", headers={"content-type": "text/html"}), r"no JSON \(text/html\)"),
        (httpx.Response(200, text="[" * 100_000), "no JSON"),
        (httpx.Response(200, json=[1]), "JSON that is no object"),
        (httpx.Response(302, headers={"location": "http://elsewhere"}), "302: it sends to http://elsewhere, which is not followed"),
        (httpx.ReadError("reset"), "closed the connection in the middle"),
        (httpx.RemoteProtocolError("illegal status line"), "something that is no HTTP"),
        (httpx.RemoteProtocolError("Server disconnected without sending a response."), "closed the connection in the middle"),
        (httpx.ReadTimeout("slow"), "did not answer /v1/completions in time"),
        (httpx.DecodingError("bad gzip"), "failed"),
    ],
)
def test_a_bad_reply_is_one_line_without_prompt_salt_or_key(answer, words):
    import re

    assert re.search(words, str(failure(answer)))


def test_nobody_at_the_address_and_a_missing_key_say_what_is_accepted():
    assert isinstance(failure(httpx.ConnectError("refused")), TargetUnavailable)
    refusal = failure(httpx.Response(401, json={"error": "no"}))
    assert isinstance(refusal, TargetUnavailable) and "LABCLI_API_KEY" in str(refusal) and "not accepted" in str(refusal)
    with pytest.raises(TargetUnavailable, match="an API key is needed"):
        client_of(httpx.Response(401), api_key=None).get_json("/v1/models")


def test_an_error_status_keeps_its_number():
    refusal = failure(httpx.Response(503, text="busy"))
    assert isinstance(refusal, ServerRefused) and refusal.status == 503


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (sse('data: {"choices": []}'), "ended its streamed reply to /v1/completions before"),
        (sse('data: {"choices"'), "no JSON object"),
        (sse("data: 5"), "no JSON object"),
        (sse('data: {"error": {"message": "engine died on ' + PROMPT + '"}}'), "with an error: engine died on …"),
        (httpx.Response(200, json={"choices": []}), "before"),
        (httpx.Response(400, json={"error": {"message": "no streams"}}), "400: no streams"),
    ],
)
def test_a_bad_stream_is_one_line_too(answer, words):
    assert words in str(failure(answer, stream=True))


def test_a_stream_gives_its_events_and_ends_with_done():
    events = list(client_of(sse(": comment", 'data: {"a": 1}', 'event: x\ndata: {"a": 2}', "data: [DONE]")).stream("/x", BODY))
    assert [event.data for event in events] == [{"a": 1}, {"a": 2}, None]


class Drip(httpx.SyncByteStream):
    """A byte now and then, for ever."""

    def __iter__(self):
        while True:
            time.sleep(0.02)
            yield b" "


class Flood(httpx.SyncByteStream):
    def __iter__(self):
        while True:
            yield b"x" * 2**20


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_drips_ends_at_the_time_limit_and_one_without_end_at_the_size_limit(stream):
    assert "in time" in str(failure(lambda _: httpx.Response(200, stream=Drip()), stream, timeout_s=0.1))
    assert "MiB" in str(failure(lambda _: httpx.Response(200, stream=Flood()), stream))


def test_an_error_reply_of_a_stream_that_drips_ends_as_well():
    assert "in time" in str(failure(lambda _: httpx.Response(500, stream=Drip()), stream=True, timeout_s=0.1))


def test_requests_that_compute_are_limited_and_readings_are_not():
    client = client_of(lambda _: httpx.Response(200, json={}), max_requests=2)
    client.compute("/x", BODY), client.compute("/x", BODY)
    for _ in range(5):
        client.get_json("/v1/models")
    with pytest.raises(LimitReached, match="2 requests were sent to http://host:1: the most"):
        client.compute("/x", BODY)
    with pytest.raises(LimitReached):
        list(client.stream("/x", BODY))
    assert client.num_sent == 2


def test_a_rate_spaces_the_requests_that_compute_from_the_first_on_and_no_readings():
    client = client_of(lambda _: httpx.Response(200, json={}), rate=20.0)
    started_s = time.monotonic()
    for _ in range(5):
        client.get_json("/v1/models")
    for _ in range(4):
        client.compute("/x", BODY)
    assert time.monotonic() - started_s >= 3 / 20


def test_a_request_whose_turn_would_come_after_the_run_is_not_waited_for():
    client = client_of(lambda _: httpx.Response(200, json={}), rate=0.001, max_seconds=60.0)
    client.compute("/x", BODY)
    with pytest.raises(LimitReached, match="at this rate the next request would start after 60 s"):
        client.compute("/x", BODY)


def test_a_request_that_waits_for_its_turn_is_never_sent_once_another_failed():
    sent = []
    client = client_of(lambda request: sent.append(request) or httpx.Response(200, json={}), rate=0.001)
    client.compute("/x", BODY)
    stop = threading.Event()
    stop.set()
    with pytest.raises(TargetError, match="another request failed"):
        list(client.stream("/x", BODY, stop))
    assert len(sent) == 1


def test_a_run_that_takes_too_long_ends():
    client = client_of(lambda _: httpx.Response(200, json={}), max_seconds=0.01)
    client.compute("/x", BODY)
    time.sleep(0.02)
    with pytest.raises(LimitReached, match="the most it may take"):
        client.compute("/x", BODY)


def test_the_key_is_sent_as_a_bearer_token_to_this_host_alone():
    seen = []
    client = client_of(lambda request: seen.append(request) or httpx.Response(302, headers={"location": "http://other/"}))
    assert client.get("/v1/models").status_code == 302
    assert [str(request.url) for request in seen] == ["http://host:1/v1/models"]
    assert seen[0].headers["authorization"] == f"Bearer {KEY}" and KEY not in repr(client)


class Open(httpx.SyncByteStream):
    """A whole reply whose connection never ends."""

    def __init__(self):
        self.is_closed = False

    def __iter__(self):
        yield b'data: {"a": 1}\n\ndata: [DONE]\n\n'
        while not self.is_closed:
            time.sleep(0.02)
            yield b": waiting\n"

    def close(self):
        self.is_closed = True


def test_a_stream_that_stays_open_after_done_is_whole_and_waited_for_once(monkeypatch):
    from labs.servers import server_client

    client = client_of(lambda _: httpx.Response(200, stream=Open()), timeout_s=1.1)
    waited = []
    monkeypatch.setattr(server_client.ServerClient, "_lines", _counting(server_client.ServerClient._lines, waited))
    for _ in range(3):
        assert [event.data for event in client.stream("/x", BODY)] == [{"a": 1}, None]
    assert waited[0] > 5 and waited[1:] == [0, 0]


def _counting(lines, waited):
    """Counts what is read after [DONE]."""

    def counted(self, path, response):
        waited.append(0)
        is_done = False
        for line in lines(self, path, response):
            waited[-1] += is_done and line.startswith(":")
            is_done = is_done or line == "data: [DONE]"
            yield line

    return counted


def test_connections_are_used_again():
    from tests.engine.server.served import served

    with served() as url:
        client = ServerClient(ServerAddress.of(url))
        body = {"model": "sim", "prompt": [1, 2, 3], "max_tokens": 1, "stream": True}
        ports = set()
        for _ in range(4):
            for event in client.stream("/v1/completions", body):
                if event.data is None:
                    break
            (connection,) = client._http._transport._pool.connections
            ports.add(id(connection))
        assert len(ports) == 1
        client.close()


@pytest.mark.parametrize("quoted", ["me", "pass word", "me:pass word", "Basic bWU6cGFzcyB3b3Jk and so on", "pass%20word"])
@pytest.mark.parametrize("status", [400, 500])
def test_a_login_that_a_server_quotes_is_cut_out(quoted, status):
    answer = httpx.Response(status, json={"error": {"message": f"refused: ({quoted})"}})
    address = ServerAddress.of("http://me:pass%20word@host:1")
    client = ServerClient(address, transport=httpx.MockTransport(lambda request: answer))
    with pytest.raises(ServerRefused, match=r"refused: \(.*…") as caught:
        client.compute("/v1/completions", BODY)
    text = str(caught.value)
    assert not any(secret in text for secret in ("pass", "bWU6", "(me"))


def test_a_redirect_says_where_to_without_its_query():
    answer = httpx.Response(307, headers={"location": f"https://login.example/start?key={KEY}"})
    assert "307: it sends to https://login.example/start, which is not followed" in str(failure(answer))


def test_a_busy_server_s_wish_is_read():
    refused = failure(httpx.Response(503, headers={"retry-after": "7"}))
    assert isinstance(refused, ServerRefused) and refused.retry_after_s == 7


def test_a_reply_that_the_runs_own_end_cuts_says_so():
    cut = str(failure(lambda _: httpx.Response(200, stream=Drip()), timeout_s=5.0, max_seconds=0.01))
    assert "in time: the 0 s were over that this run may take" in cut
    assert "were over" not in str(failure(httpx.ReadTimeout("slow"), timeout_s=0.1))


def test_readings_end_too_when_the_run_is_long_over(monkeypatch):
    from labs.servers import server_client

    monkeypatch.setattr(server_client, "MAX_OVERTIME_S", 0.02)
    client = client_of(httpx.Response(200, json={}), max_seconds=0.01)
    client.get("/metrics")
    time.sleep(0.05)
    with pytest.raises(LimitReached, match="the most it may take"):
        client.get("/metrics")
