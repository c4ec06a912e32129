"""Clients that are rude: whatever they send, and however they leave, the server goes on and holds no block for them."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.engine.server.served import Serving, serving
from tests.servers.mutations import changed

RUNNING = {
    "vllm": ("vllm:num_requests_running{", "vllm:num_requests_waiting{", "vllm:kv_cache_usage_perc{"),
    "sglang": ("sglang:num_running_reqs{", "sglang:num_queue_reqs{", "sglang:token_usage{"),
}
POOL = {"vllm": 512, "sglang": 8_192}
LONG = {"max_tokens": 300, "ignore_eos": True}
CLOSE = "Connection: close\r\n"


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def server(request):
    with serving(flavor=request.param, num_gpu_blocks=POOL[request.param], body_timeout_s=0.5, max_body_bytes=100_000) as running:
        yield running


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def slow_server(request):
    """So slow that a long request does not end while a test waits for it, unless somebody ends it."""
    with serving(flavor=request.param, pace=1_000.0, num_gpu_blocks=POOL[request.param]) as running:
        yield running


def connect(server: Serving) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.options.port), timeout=5)


def posted(path: str, body: Any, headers: str = "") -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n{headers}\r\n"
    return head.encode() + content


def answered(server: Serving, data: bytes, half_closed: bool = False, enough: bytes = b"nothing is") -> bytes:
    """All that comes back until `enough` is in it, the server closes, or says nothing more for a while."""
    found = b""
    with connect(server) as connection, suppress(OSError):
        connection.sendall(data)
        if half_closed:
            connection.shutdown(socket.SHUT_WR)
        connection.settimeout(1.5)
        while enough not in found and (data := connection.recv(65_536)):
            found += data
    return found


def assert_serves_and_holds_nothing(server: Serving) -> None:
    """What the metrics say runs, waits and is used must come down to nothing; then a request is served."""
    deadline_s = time.monotonic() + 10
    while True:
        page = httpx.get(server.url + "/metrics").text
        values = [float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(RUNNING[server.options.flavor])]
        if len(values) == 3 and not any(values) and not server.loop.num_unfinished:
            break
        assert time.monotonic() < deadline_s, values
        time.sleep(0.02)
    assert httpx.post(server.url + "/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 1}, timeout=20).status_code == 200


def test_clients_that_leave_at_any_moment_leave_no_block_behind(slow_server):
    rng, connections = random.Random(1), []
    for number in range(100):
        connection = connect(slow_server)
        data = posted("/v1/completions", {**LONG, "prompt": list(range(number, number + 60)), "stream": rng.random() < 0.6})
        connection.sendall(data if rng.random() < 0.8 else data[: rng.randrange(1, len(data))])
        connections.append(connection)
        if len(connections) > 15:
            leave(connections.pop(rng.randrange(len(connections))), rng)
    assert slow_server.loop.num_unfinished
    for connection in connections:
        leave(connection, rng)
    assert_serves_and_holds_nothing(slow_server)


def leave(connection: socket.socket, rng: random.Random) -> None:
    """By an end, a reset or half an end; some have read a little."""
    if rng.random() < 0.5:
        connection.settimeout(0.02)
        with suppress(OSError):
            connection.recv(500)
    way = rng.random()
    if way < 0.3:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif way < 0.6:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
    connection.close()


def test_a_client_that_never_reads_holds_no_block_once_its_tokens_are_made(server):
    connections = []
    for number in range(4):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1_024)
        connection.connect(("127.0.0.1", server.options.port))
        connection.sendall(posted("/v1/completions", {**LONG, "prompt": [number, 5, 6], "stream": True, "logprobs": 5}))
        connections.append(connection)
    assert_serves_and_holds_nothing(server)
    for connection in connections:
        connection.close()


def test_pipelined_requests_are_answered_in_their_order(server):
    first, second = ({"prompt": [7, 8, 9], "max_tokens": number, "temperature": 0} for number in (1, 2))
    health = f"GET /health HTTP/1.1\r\nHost: x\r\n{CLOSE}\r\n".encode()
    found = answered(server, posted("/v1/completions", first) + posted("/v1/completions", second) + health)
    assert found.count(b"HTTP/1.1 200") == 3
    assert found.index(b'"completion_tokens":1') < found.index(b'"completion_tokens":2')


def test_a_client_that_closes_its_half_ends_its_request(slow_server):
    answered(slow_server, posted("/v1/completions", {**LONG, "prompt": [3, 4]}), half_closed=True)
    assert_serves_and_holds_nothing(slow_server)


def test_a_body_that_comes_too_slowly_ends_with_408_and_the_connection(server):
    found = answered(server, posted("/v1/completions", {"prompt": [1]})[:-4])
    assert found.startswith(b"HTTP/1.1 408") and b"connection: close" in found.lower()


def test_bodies_larger_than_the_limit_are_refused_announced_or_not(server):
    announced = posted("/v1/completions", {"prompt": [1]}).replace(b"Content-Length: 15", b"Content-Length: 999999999")
    chunk = b"8000\r\n" + b"1" * 0x8000 + b"\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    for data in (announced, head + 5 * chunk):
        assert answered(server, data, enough=b" 413 ").startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "data",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 500_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 50_000 + b"\r\n",
        posted("/v1/completions", {"prompt": [1]}, "Content-Length: 3\r\n"),
        posted("/v1/completions", {"prompt": [1]}).replace(b"Content-Length: 15", b"Content-Length: -1"),
        posted("/v1/completions", {"prompt": [1]}).replace(b"Content-Length: 15", "Content-Length: ²".encode()),
        b"GET /health HTTP/1.1\r\n\r\n",  # no host
        b"GET /health\r\n\r\n",  # HTTP/0.9
        b"GET /v1/mo\x00dels HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /v1/möd€ls HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(300),  # TLS
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET http://other/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /v1/models%00%ff%2e%2e/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"DELETE /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        posted("/v1/completions", {"prompt": [1]}, CLOSE).replace(b"application/json", b"text/plain; charset=\xff"),
    ],
)  # fmt: skip
def test_what_is_no_proper_request_is_refused_and_the_server_goes_on(server, data):
    assert answered(server, data).startswith(b"HTTP/1.1 4")
    assert httpx.get(server.url + "/health").status_code == 200


def test_many_idle_and_half_begun_connections_keep_nobody_out(server):
    idle = [connect(server) for _ in range(300)]
    for connection in idle[::2]:
        connection.sendall(b"POST /v1/completions HT")
    assert_serves_and_holds_nothing(server)
    for connection in idle:
        connection.close()


BODIES = {
    "/v1/completions": {
        "model": "sim", "prompt": [1, 2, 3, 4], "max_tokens": 2, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "seed": 1, "stop": ["a"],
        "stop_token_ids": [5], "ignore_eos": True, "logprobs": 1, "return_token_ids": True, "cache_salt": "s", "priority": 0,
        "stream": True, "stream_options": {"include_usage": True}, "n": 1, "user": "u",
    },
    "/v1/chat/completions": {
        "model": "sim", "messages": [{"role": "user", "content": [{"type": "text", "text": "hé"}]}], "max_completion_tokens": 2,
        "logprobs": True, "top_logprobs": 2, "cache_salt": "x", "stop": "é",
    },
    "/generate": {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2, "temperature": 0}, "stream": False},
    "/tokenize": {"model": "sim", "prompt": "héllo", "add_special_tokens": False},
    "/detokenize": {"model": "sim", "tokens": [1, 2, 3]},
}  # fmt: skip
ODD_TEXTS = ("\ud800", "a\udfffb", "\x00", "\u202e\x07", "🙂" * 50, "\x1b[31m", "\n\r")


@pytest.mark.parametrize("flavor", ["vllm", "sglang"])
def test_damaged_bodies_are_refused_and_never_an_error_of_the_server(flavor):
    rng = random.Random(2)
    # Short requests: a damaged body may have lost its max_tokens.
    with (
        serving(flavor=flavor, num_gpu_blocks=POOL[flavor], max_model_len=128) as server,
        httpx.Client(base_url=server.url, timeout=20) as client,
    ):
        for number in range(250):
            path = rng.choice(list(BODIES))
            body = changed(json.loads(json.dumps(BODIES[path])), rng)
            if body and rng.random() < 0.3:
                body[rng.choice(list(body))] = rng.choice(ODD_TEXTS)
            try:
                content = json.dumps(body).encode()
            except ValueError:
                continue  # a number too long to be written
            if rng.random() < 0.1:
                content = content[: rng.randrange(len(content) + 1)] + rng.randbytes(3)
            reply = client.post(path, content=content, headers={"content-type": "application/json"})
            assert reply.status_code < 500, (number, path, reply.text)
            if reply.status_code >= 400:
                assert isinstance(reply.json(), dict), (number, path)
        assert_serves_and_holds_nothing(server)


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "k-1"}, {"authorization": "k-1"}, {"authorization": "Basic k-1"}, {"authorization": "Bearer  k-1"}, {"authorization": "Bearer K-1"}])  # fmt: skip
@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models?api_key=k-1", "/%761/models", "/v1%2Fmodels", "//v1/models", "/v1/../v1/models"]
)
def test_no_odd_place_of_the_key_and_no_odd_path_opens_the_door(keyed, headers, path):
    reply = keyed.get(path, headers=headers)
    assert reply.status_code in (401, 404) and "k-1" not in reply.text


@pytest.fixture(scope="module")
def keyed():
    with serving(flavor="vllm", api_key="k-1") as running, httpx.Client(base_url=running.url) as client:
        assert client.get("/v1/models", headers={"authorization": "Bearer k-1"}).status_code == 200
        yield client
