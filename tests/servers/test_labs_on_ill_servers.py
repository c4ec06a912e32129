"""Labs on servers that are ill: one line says what was wrong, what was measured is kept, and nothing unknown becomes a number."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from labs.servers import cache_reset, counter_watch
from labs.servers.server_address import ServerAddress
from labs.servers.server_client import SendLimits
from labs.servers.server_run import ServerRun
from labs.targets.base import Evidence, TargetError
from labs.targets.open_server import OpenServer
from tests.labs.servers.fake_server import FakeServer
from tests.servers.broken_server import Visit, broken
from tests.servers.changed_replies import with_status
from tests.servers.illness import Illness, late, now_and_then
from tests.servers.illnesses import AT_THE_DOOR, HARMLESS, OF_COMPLETIONS, OF_ONE_WITNESS, OF_STREAMS
from tests.servers.labcli_run import Ended, labcli, only_line
from tests.servers.mutations import DamagedMind

ROOT = Path(__file__).resolve().parents[2]
KEY = 'sk-"very\\secret'
MIDDLE = 24  # completions after which a lab has measured something; opening the server takes about half of them

# What the line must say; "in time" and the like stand for several illnesses.
LATE, CLOSED, NO_HTTP, NO_JSON, NO_MODEL = "in time", "closed the connection", "no HTTP", "no JSON", "lists no model"
WORDS_AT_THE_DOOR = {
    "never answers": LATE,
    "silent from the start": LATE,
    "closes at accept": CLOSED,
    "resets at accept": rf"{CLOSED}|nothing answers",  # the reset may come before the connection is made
    "closes in the headers": CLOSED,
    "a byte now and then, headers included": LATE,
    "a byte now and then": LATE,
    "processing for ever": LATE,
    "an answer without HTTP": NO_HTTP,
    "SSH": CLOSED,
    "HTML with 200": r"no JSON \(text/html\)",
    "redirects": "307: it sends to http://elsewhere.invalid/v1/models",
    "models: 500": "answered /v1/models with 500: something broke",
    "models: a list": "JSON that is no object",
    "models: half": NO_JSON,
    "gzip bomb": "packed its reply",
    "deep JSON": NO_JSON,
    "no UTF-8": NO_JSON,
    "chunked garbage": NO_HTTP,
    "a negative length": NO_HTTP,
}
WORDS_IN_THE_MIDDLE = {
    "500": "answered /v1/completions with 500: something broke",
    "429": "answered /v1/completions with 429",
    "HTML with 200": r"before \[DONE\]",
    "redirects": "307: it sends to http://elsewhere.invalid/v1/models",
    "half a JSON": "no JSON object",
    "truncated": CLOSED,
    "a long body": "no JSON object",
    "a negative length": NO_HTTP,
    "chunked garbage": NO_HTTP,
    "gzip bomb": "packed its reply",
    "deep JSON": r"before \[DONE\]",
    "a line of 10 MB": "no JSON object",
    "never answers": LATE,
    "a byte now and then": LATE,
    "a byte now and then, headers included": LATE,
    "comments only": LATE,
    "closes": CLOSED,
    "resets": CLOSED,
    "closes in the headers": CLOSED,
    "no choices": "without any choice",
    "no finish_reason": "without a finish_reason",
    "an error with 200": "with an error: the engine is gone",
    "other prompt ids": "computed others",
    "more cached than sent": "1,000,000 cached tokens",
    "another prompt length": "counts 3 prompt tokens",
    "dies": CLOSED,
}
SLOW = ("never answers", "a byte now and then", "a byte now and then, headers included", "comments only")


def run_lab(*arguments: str, key: str = "") -> Ended:
    return labcli("run-lab", *arguments, key=key)


def saved_record(folder: Path) -> tuple[str, dict]:
    (path,) = folder.rglob("*.json")
    text = path.read_text(encoding="utf-8")
    return text, json.loads(text)


@pytest.mark.parametrize("name", AT_THE_DOOR)
def test_an_ill_server_at_the_door_is_one_line_and_leaves_no_record(name, tmp_path):
    with broken(FakeServer(), AT_THE_DOOR[name]) as url:
        result = run_lab("04", "--quick", "--target", url, "--timeout", "1", "--results-dir", str(tmp_path / "results"))
    assert result.exit_code == 1
    assert re.search(WORDS_AT_THE_DOOR.get(name, NO_MODEL), only_line(result.stderr))
    assert result.stdout == "" and not (tmp_path / "results").exists()


@pytest.mark.parametrize("name", WORDS_IN_THE_MIDDLE)
def test_a_server_that_falls_ill_in_the_middle_keeps_what_was_measured(name, tmp_path):
    mind = FakeServer()
    with broken(mind, late(OF_COMPLETIONS[name], MIDDLE)) as url:
        timeout = "1" if name in SLOW else "10"
        result = run_lab("04", "--quick", "--target", url, "--timeout", timeout, "--results-dir", str(tmp_path), key=KEY)
    line = only_line(result.stderr)
    assert result.exit_code == 1
    assert re.search(WORDS_IN_THE_MIDDLE[name], line) and re.search(r"\d+ measurements before that, saved in", line)
    text, record = saved_record(tmp_path)
    assert record["status"] == "failed" and record["measurements"]
    assert re.search(WORDS_IN_THE_MIDDLE[name], record["error"])
    salts = {body["cache_salt"] for body in mind.requests if "cache_salt" in body}
    for secret in (KEY, json.dumps(KEY)[1:-1], *salts):
        assert secret not in text + result.stderr + result.stdout


def test_a_key_that_a_server_quotes_is_not_shown(tmp_path):
    with broken(FakeServer(), late(Illness(with_status(500)), MIDDLE)) as url:
        result = run_lab("04", "--quick", "--target", url, "--results-dir", str(tmp_path), key=KEY)
    assert "something broke at Bearer …" in only_line(result.stderr)


@pytest.mark.parametrize("name", OF_ONE_WITNESS)
def test_one_witness_that_talks_nonsense_leaves_the_other(name):
    with broken(FakeServer(), OF_ONE_WITNESS[name]) as url:
        opened = OpenServer(ServerRun(ServerAddress.of(url), limits=SendLimits(timeout_s=10)))
        try:
            found = [completion for number in range(6) for completion in twice(opened, number)]
            counters = opened().counters()
        finally:
            opened.close()
    assert [one.num_cached_tokens for one in found] == [0, 32] * 6
    is_usage_ill = name.startswith(("cached", "usage", "details"))
    silent = [one.evidence.usage if is_usage_ill else one.evidence.counted_hits for one in found]
    if name == "counters begin again":
        assert all(one in (None, known) for one, known in zip(silent, [0, 32] * 6)), silent
        return
    assert set(silent) == {None}
    assert (counters.queries is None) != is_usage_ill
    assert any("only witness" in note for note in opened.notes())


def twice(opened: OpenServer, number: int):
    """Two requests of one prompt of 40 tokens, and their completions."""
    target = opened()
    prompt = [(7 * number + position) % target.info.vocab_size for position in range(40)]
    return target.complete(prompt), target.complete(prompt)


@pytest.mark.parametrize("name", ["cached tokens are a text", "metrics are NaN", "counters begin again"])
def test_a_lab_meets_its_predictions_by_the_witness_that_is_left(name):
    with broken(FakeServer(), OF_ONE_WITNESS[name]) as url:
        result = run_lab("03", "--quick", "--target", url, "--no-save", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["status"] == "ok"


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_odd_but_harmless_changes_nothing(name):
    with broken(FakeServer(), HARMLESS[name]) as url:
        opened = OpenServer(ServerRun(ServerAddress.of(url), limits=SendLimits(timeout_s=10)))
        try:
            assert [one.evidence for one in twice(opened, 1)] == [Evidence(0, 0, 40), Evidence(32, 32, 40)]
        finally:
            opened.close()


@pytest.mark.parametrize("name", OF_STREAMS)
def test_a_server_whose_streams_are_ill_is_asked_for_whole_replies(name):
    with broken(FakeServer(), OF_STREAMS[name]) as url:
        opened = OpenServer(ServerRun(ServerAddress.of(url)))
        try:
            assert [one.num_cached_tokens for one in twice(opened, 1)] == [0, 32]
            assert opened().info.config["way"] == "whole replies"
        finally:
            opened.close()


def test_each_third_reply_an_error_ends_the_lab_with_that_error():
    with broken(FakeServer(), now_and_then(OF_COMPLETIONS["500"], 3)) as url:
        result = run_lab("04", "--quick", "--target", url, "--no-save")
    assert result.exit_code == 1 and "with 500" in only_line(result.stderr)


def test_a_server_that_refuses_every_prompt_is_told_by_its_own_words():
    with broken(FakeServer(), OF_COMPLETIONS["500"]) as url:
        result = run_lab("04", "--quick", "--target", url, "--no-save")
    assert result.exit_code == 1 and "answered /v1/completions with 500: something broke" in only_line(result.stderr)


def test_a_request_that_fails_among_many_ends_them_all():
    with broken(FakeServer(), late(OF_COMPLETIONS["closes"], 20)) as url:
        opened = OpenServer(ServerRun(ServerAddress.of(url), concurrency=8))
        try:
            with pytest.raises(TargetError, match=CLOSED):
                opened().complete_all([[number] * 20 for number in range(60)], max_tokens=1)
        finally:
            opened.close()


def test_tls_asked_of_a_plain_port_is_told():
    with broken(FakeServer(), Illness(Visit.pass_on)) as url:
        result = run_lab("04", "--target", url.replace("http://", "https://"), "--no-save")
    assert result.exit_code == 1 and "does not speak TLS; accepted: the scheme, http or https" in only_line(result.stderr)


@pytest.mark.parametrize(
    ("address", "exit_code"),
    [
        ("http://" + "a" * 300 + ".invalid", 1),
        ("http://xn--/", 1),
        ("http://[::1%25lo]:1", 1),
        ("http://127.0.0.1:1", 1),
        ("http://0x7f.1:1", 1),
        ("http://a..b/", 2),  # no name that a host can have: nothing is asked
        ("http://\udcff", 2),
    ],
)
def test_an_address_at_which_nothing_can_answer_is_one_line(address, exit_code):
    result = run_lab("04", "--target", address, "--no-save", "--timeout", "1")
    assert result.exit_code == exit_code
    only_line(result.stderr)


def test_numbers_that_cannot_be_are_not_taken_for_sizes():
    """A prompt made to fit such a limit would not fit into memory."""
    huge = {"data": [{"id": "fake", "owned_by": "sglang", "max_model_len": 10**15}]}
    info = {"page_size": 10**9, "max_total_num_tokens": 10**18, "version": "v" * 10_000, "max_req_input_len": "²"}

    class Boaster(FakeServer):
        def _v1_models(self, request, body):
            return httpx.Response(200, json=huge)

        def _server_info(self, request, body):
            return httpx.Response(200, json=info)

    fake = Boaster(kind="sglang", unit=16)
    opened = OpenServer(fake.run(), fake.transport)
    assert opened.served.unit_size == 16
    assert opened().info.max_model_len <= 8_192
    assert len(opened.served.title) < 200
    assert max(len(body["prompt"]) for body in fake.requests) < 5_000


def test_ids_that_no_vocabulary_holds_are_never_sent():
    class Boaster(FakeServer):
        def _tokenize(self, request, body):
            return httpx.Response(200, json={"tokens": [1, 10**30]})

    fake = Boaster(kind="sglang")
    opened = OpenServer(fake.run(), fake.transport)
    assert opened().info.config["prompts"] == "words"


def test_ctrl_c_while_a_server_is_silent_keeps_what_was_measured(tmp_path):
    command = [sys.executable, "-m", "labcli", "run-lab", "04", "--quick", "--results-dir", str(tmp_path / "results")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LABCLI_API_KEY": ""}
    reached = []

    def act(visit: Visit) -> None:
        reached.append(visit.number)
        visit.stay_silent()

    with broken(FakeServer(), late(Illness(act), MIDDLE)) as url:
        process = subprocess.Popen(
            [*command, "--target", url], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        deadline_s = time.monotonic() + 20
        while not reached and process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.02)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert re.search(r"interrupted after \d+ measurements, saved in", only_line(stderr))
    _, record = saved_record(tmp_path / "results")
    assert record["status"] == "interrupted" and record["measurements"]


@pytest.mark.parametrize("block", range(4))
def test_damaged_replies_end_as_one_line_or_in_numbers_that_can_be(block, monkeypatch):
    """Whatever is wrong with a reply: a TargetError, or results in which each count is possible or None."""
    monkeypatch.setattr(counter_watch, "WAIT_S", 0.02)
    monkeypatch.setattr(cache_reset, "WAIT_S", 0.02)
    for seed in range(25 * block, 25 * (block + 1)):
        rng = random.Random(seed)
        kind = rng.choice(("vllm", "sglang", "openai"))
        fake = FakeServer(kind=kind, unit=rng.choice((1, 16)), details=rng.choice(("always", "hits only", "never")))
        paths = rng.choice(
            ((), ("/v1/completions", "/generate"), ("/metrics",), ("/v1/models", "/server_info", "/version", "/tokenize"))
        )
        mind = DamagedMind(fake, rng, rng.choice((1, 0.5, 0.1, 0.03, 0.01)), paths)
        try:
            use(mind, fake.run(limits=SendLimits(timeout_s=2, max_requests=400), concurrency=3))
        except TargetError as error:
            assert "\n" not in str(error) and len(str(error)) < 600, seed


def use(mind: DamagedMind, run: ServerRun) -> None:
    """Everything a lab does with a server, and what must hold of each number."""
    opened = OpenServer(run, httpx.MockTransport(mind))
    try:
        target = opened()
        for number in range(5):
            for completion in twice(opened, number):
                told = (completion.num_cached_tokens, completion.evidence.usage, completion.evidence.counted_hits)
                assert all(one is None or 0 <= one <= completion.num_prompt_tokens for one in told), told
        target.reset()
        target.complete_all([[number] * 20 for number in range(5)], max_tokens=1)
        counters = target.counters()
        assert (counters.hits is None) == (counters.queries is None)
        assert counters.hits is None or 0 <= counters.hits <= counters.queries
        assert all("\n" not in note and len(note) < 600 for note in opened.notes())
    finally:
        opened.close()
