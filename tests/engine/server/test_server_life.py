"""A server under clients that come all at once, leave early or read nothing, and its end."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from engine.errors import ConfigError
from engine.server.options import ServerOptions
from engine.server.run_server import bind
from tests.engine.server.served import served, serving, until

ROOT = Path(__file__).resolve().parents[3]
LONG = {"prompt": [1, 2, 3], "max_tokens": 8000, "ignore_eos": True}


def connection(url):
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)))


def send(to, body, path="/v1/completions"):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    to.sendall(head.encode() + data)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3], [4, 5, 6], [7, 8, 9]]])
def test_a_client_that_leaves_frees_its_blocks(stream, prompt):
    with serving(pace=20.0) as running:
        client = connection(running.url)
        send(client, {**LONG, "prompt": prompt, "stream": stream})
        until(lambda: running.loop.engine.manager.usage > 0)
        client.close()
        until(lambda: running.loop.num_unfinished == 0)
        assert running.loop.engine.manager.usage == 0.0
        assert 'finished_reason="abort",model_name="sim"} 0.0' not in httpx.get(f"{running.url}/metrics").text
        assert httpx.post(f"{running.url}/v1/completions", json={"prompt": [5], "max_tokens": 1}).status_code == 200


def test_a_client_that_stops_reading_holds_up_nobody():
    with serving() as running:
        client = connection(running.url)
        send(client, {**LONG, "max_tokens": 4000, "stream": True, "logprobs": 20})
        until(lambda: running.loop.num_unfinished == 0, 60)
        assert httpx.post(f"{running.url}/v1/completions", json={"prompt": [5], "max_tokens": 1}).status_code == 200
        client.close()


def test_too_many_at_once_get_503_a_reason_and_a_time_to_come_back():
    with serving(pace=20.0, max_num_seqs=1, max_waiting=1) as running:
        first, second = connection(running.url), connection(running.url)
        send(first, LONG)
        until(lambda: running.loop.engine.manager.usage > 0)
        send(second, LONG)
        until(lambda: running.loop.num_unfinished == 2)
        reply = httpx.post(f"{running.url}/v1/completions", json=LONG)
        assert reply.status_code == 503 and reply.headers["retry-after"] == "1" and "busy" in reply.json()["error"]["message"]
        assert (
            'vllm:admission_rejections_total{model_name="sim",reason="max_num_queued_reqs"} 1.0'
            in httpx.get(f"{running.url}/metrics").text
        )
        assert httpx.get(f"{running.url}/health").status_code == 200
        first.close(), second.close()


def test_32_clients_at_once_get_each_their_own_answer():
    with served(max_num_seqs=8, num_gpu_blocks=400) as url, httpx.Client(base_url=url, timeout=30) as client:

        def ask(number, stream=False):
            body = {"prompt": [number + 1, 2, 3] * 11, "max_tokens": 6, "stream": stream, "return_token_ids": True}
            reply = client.post("/v1/completions", json=body)
            if not stream:
                return reply.json()["choices"][0]["token_ids"]
            events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
            return sum((event["choices"][0]["token_ids"] for event in events), [])

        alone = [ask(number) for number in range(32)]
        with ThreadPoolExecutor(32) as pool:
            together = list(pool.map(ask, [n % 32 for n in range(96)], [n % 3 == 0 for n in range(96)]))
    assert together == [alone[n % 32] for n in range(96)] and len(set(map(tuple, alone))) == 32


def test_a_flush_waits_for_running_requests_as_long_as_it_was_told_to():
    with serving(flavor="sglang", pace=20.0) as running, httpx.Client(base_url=running.url, timeout=20) as client:
        other = connection(running.url)
        send(other, LONG)
        until(lambda: running.loop.num_unfinished == 1)
        assert (client.post("/flush_cache").status_code, client.post("/flush_cache").text) == (400, "Flush cache failed.\n")
        late = client.post("/flush_cache", params={"timeout": 0.1})
        assert (late.status_code, late.text) == (400, "Timed out waiting for idle state.")
        assert client.post("/flush_cache", params={"timeout": "soon"}).status_code == 400
        waiting = threading.Timer(0.2, other.close)
        waiting.start()
        assert client.post("/flush_cache", params={"timeout": 15}).status_code == 200


def test_a_flush_ends_when_its_client_leaves():
    with serving(flavor="sglang", pace=20.0) as running, httpx.Client(base_url=running.url, timeout=20) as client:
        other, gone = connection(running.url), connection(running.url)
        send(other, LONG)
        until(lambda: running.loop.num_unfinished == 1)
        send(gone, {}, "/flush_cache?timeout=100000")
        until(lambda: "in progress" in client.post("/flush_cache").text)
        gone.close()
        until(lambda: client.post("/flush_cache").text == "Flush cache failed.\n")
        other.close()


def test_a_flush_waits_no_longer_than_a_request_may_take():
    def never_idle():
        answer = Future()
        answer.set_result(False)
        return answer

    with serving(flavor="sglang", request_timeout_s=0.2) as running:
        running.loop.flush = never_idle
        reply = httpx.post(f"{running.url}/flush_cache", params={"timeout": 100_000}, timeout=20)
        assert (reply.status_code, reply.text) == (400, "Timed out waiting for idle state.")


def test_looking_at_the_flush_flushes_nothing():
    with serving(flavor="sglang") as running, httpx.Client(base_url=running.url) as client:
        asks = [client.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 1}) for _ in range(2)]
        assert client.head("/flush_cache").status_code == client.head("/health").status_code == 405
        asks.append(client.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 1}))
    assert [ask.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for ask in asks] == [0, 2, 2]


def test_vllms_reset_says_no_in_the_body():
    with serving(pace=20.0) as running, httpx.Client(base_url=running.url, timeout=20) as client:
        other = connection(running.url)
        send(other, LONG)
        until(lambda: running.loop.engine.manager.usage > 0)
        assert (client.post("/reset_prefix_cache").status_code, client.post("/reset_prefix_cache").json()) == (
            200,
            {"success": False},
        )
        assert client.post("/reset_prefix_cache", params={"reset_running_requests": True}).json() == {"success": True}
        assert client.post("/reset_prefix_cache", params={"reset_running_requests": "maybe"}).status_code == 400
        other.close()


def test_the_end_lets_requests_finish_and_tells_the_others():
    with serving(pace=20.0, drain_s=2.5) as running:
        answers = {}

        def ask(name, **fields):
            answers[name] = httpx.post(f"{running.url}/v1/completions", json={**LONG, **fields}, timeout=20)

        asked = [("short", {"max_tokens": 100}), ("long", {}), ("stream", {"stream": True})]
        threads = [threading.Thread(target=ask, args=(name,), kwargs=fields) for name, fields in asked]
        for thread in threads:
            thread.start()
        until(lambda: running.loop.num_unfinished == 3)
        running.server.should_exit = True
        for thread in threads:
            thread.join(20)
    assert answers["short"].json()["choices"][0]["finish_reason"] == "length"
    assert answers["long"].json()["choices"][0]["finish_reason"] == "abort"
    last = [json.loads(line[6:]) for line in answers["stream"].text.splitlines() if line.startswith("data: {")][-1]
    assert last["choices"][0]["finish_reason"] == "abort" and answers["stream"].text.endswith("data: [DONE]\n\n")
    assert (running.server.num_finished, running.server.num_aborted) == (1, 2)


def die():
    raise SystemExit  # no step and no command catches this


def test_a_server_whose_engine_has_died_tells_its_clients_and_ends():
    with serving(pace=20.0) as running, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{running.url}/v1/completions", json=LONG, timeout=20)
        until(lambda: running.loop.engine.manager.usage > 0)
        running.loop._commands.put(die)
        reply = asked.result()
        assert (reply.status_code, reply.json()["error"]["message"]) == (503, "the engine has stopped")
        running.thread.join(5)
        assert not running.thread.is_alive() and running.loop.died_of == "SystemExit"


def test_a_second_interrupt_is_told_to_clients_in_their_servers_words():
    for flavor in ("vllm", "sglang"):
        with serving(flavor=flavor, pace=1_000.0, drain_s=60.0) as running, ThreadPoolExecutor(2) as pool:
            whole, stream = (
                pool.submit(httpx.post, f"{running.url}/v1/completions", json={**LONG, "stream": stream}, timeout=20)
                for stream in (False, True)
            )
            until(lambda: running.loop.num_unfinished == 2)
            running.server.should_exit = running.server.force_exit = True  # as two signals set them
            reply, text = whole.result(), stream.result().text
            running.thread.join(5)
            assert not running.thread.is_alive()  # though a step that takes seconds is under way
        error = reply.json()["error"] if flavor == "vllm" else reply.json()
        assert (reply.status_code, error["message"]) == (503, "the server is shutting down")
        assert "the server is shutting down" in text and text.endswith("data: [DONE]\n\n")


def test_without_a_drain_requests_are_aborted_at_once():
    with serving(pace=20.0, drain_s=0) as running, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{running.url}/v1/completions", json=LONG, timeout=20)
        until(lambda: running.loop.engine.manager.usage > 0)
        running.server.should_exit = True
        assert asked.result().json()["choices"][0]["finish_reason"] == "abort"
    assert (running.server.num_finished, running.server.num_aborted) == (0, 1)


def test_an_address_that_cannot_be_had_is_one_line():
    with bind(ServerOptions(port=0)) as taken:
        for host, port, name in (
            ("127.0.0.1", taken.getsockname()[1], "port"),
            ("nowhere.invalid", 0, "host"),
            ("203.0.113.7", 0, "host"),
        ):
            with pytest.raises(ConfigError) as error:
                bind(ServerOptions(host=host, port=port))
            assert error.value.field == name


def test_nothing_of_the_server_is_loaded_with_the_engine_and_no_torch_with_a_simulated_server():
    code = (
        "import sys, engine, engine.server.options, engine.server.engine_loop, engine.server.open_engine\n"
        "from engine import EngineConfig\n"
        "assert not {'starlette', 'uvicorn', 'pydantic', 'prometheus_client'} & set(sys.modules)\n"
        "import engine.server.run_server, engine.server.app\n"
        "from engine.server.metrics.prometheus import open_metrics\n"
        "engine.server.open_engine.open_engine(EngineConfig(model='smollm2-135m'), 'sim')\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
