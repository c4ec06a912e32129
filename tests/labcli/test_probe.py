"""`labcli probe`: exit codes, the report and its JSON, nothing private in either, and one line for what cannot be probed."""

import inspect
import io
import json
import re
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from rich.console import Console

from labcli.commands import probe as command
from labcli.commands import serve
from labcli.render import probe_report
from labs.probe import flags, repeat_series, side_series
from labs.probe.judgement import judge
from labs.probe.observation import LADDER, Observations, Sent
from labs.servers import server_client
from labs.servers.server_facts import ServerFacts
from labs.servers.server_reply import Usage
from tests.engine.server.served import served
from tests.servers.gateways.gateway import COMPLETIONS, Gateway, fronted
from tests.servers.gateways.reports import Hide
from tests.servers.gateways.salts import SaltEachRequest


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(side_series, "NUM_TIMED", 0)
    monkeypatch.setattr(repeat_series, "LADDER_LENGTHS", (65, 257))
    monkeypatch.setattr(side_series, "MIN_PAUSE_S", 0.0)
    monkeypatch.delenv("LABCLI_API_KEY", raising=False)


def test_a_healthy_server_ends_with_0_and_tells_what_its_repeats_found(labcli_command):
    with served() as url:
        result = labcli_command("probe", url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"labcli (vLLM flavor) at {url}, model sim, block 16, pool ")
    lines = result.stdout.split("\n")
    assert all(line == line.rstrip() for line in lines)
    closing = " ".join(result.stdout.split("\n\n")[-1].split())
    found = re.fullmatch(
        r"No faults found with (\d+) requests in [\d.]+ s\. This probe's (\d+) repeats found ([\d,]+) of ([\d,]+) tokens "
        r"\([\d.]+%\); the law 16·⌊\(L − 1\)/16⌋ gives ([\d,]+)\.",
        closing,
    )
    assert found and found[3] == found[5]


def test_a_fault_ends_with_1_and_comes_first(labcli_command):
    with served() as server, fronted(server, gateway=SaltEachRequest()) as url:
        result = labcli_command("probe", url)
    assert result.exit_code == 1
    blocks = result.stdout.split("\n\n")
    assert blocks[1].startswith("fault (strong) identity: ")
    assert "  - one prompt 12 times in a row: 0, 0" in blocks[1] and "  next: Ask the server without the gateway" in blocks[1]
    assert result.stdout.index("fine (certain)") > result.stdout.index("cannot tell") if "cannot tell" in result.stdout else True


def test_the_json_has_the_keys_that_are_documented(labcli_command):
    with served(flavor="sglang") as url:
        result = labcli_command("probe", url, "--json", "--prompt-tokens", "900")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    text = " ".join(command.__doc__.split())
    assert list(document) == ["schema", "server", "verdicts", "own_rate", "requests", "sent"] and document["schema"] == 1
    parts = (document["server"], document["verdicts"][0], document["own_rate"], document["requests"][0], document["sent"])
    assert not [key for part in parts for key in part if key not in text]
    assert list(document["server"]) == ["address", *probe_report.SERVER_KEYS]
    assert document["server"]["unit_size"] == 1 and document["own_rate"]["num_cached"] == document["own_rate"]["expected"]
    assert len(document["requests"]) <= document["sent"]["num_requests"]


class Listening(Gateway):
    """Keeps what it was sent."""

    def __init__(self):
        self.texts, self.ids = [], []

    def change_request(self, path, body):
        for value in (body.get("prompt"), body.get("cache_salt"), *(one["content"] for one in body.get("messages", ()))):
            (self.texts if isinstance(value, str) else self.ids).append(value)


def test_nothing_private_is_shown(labcli_command, monkeypatch):
    monkeypatch.setenv("LABCLI_API_KEY", "sk-very-secret")
    listening = Listening()
    with served(api_key="sk-very-secret") as server, fronted(server, gateway=listening) as url:
        results = [labcli_command("probe", url, *more) for more in ((), ("--json",))]
    shown = "".join(result.stdout + result.stderr for result in results)
    assert [result.exit_code for result in results] == [0, 0] and any(text.startswith("labcli-") for text in listening.texts)
    assert "sk-very-secret" not in shown
    assert not [text for text in listening.texts if len(text) > 12 and text in shown]
    assert not re.search(r"(\d+, ){9}\d+", shown), "no list of ids"


def test_a_missing_key_is_one_line(labcli_command):
    with served(api_key="sk-very-secret") as url:
        result = labcli_command("probe", url)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "an API key is needed; accepted: a valid key in the environment variable LABCLI_API_KEY" in result.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["localhost:8000"], "the address has no scheme; accepted: http://localhost:8000"),
        (["ftp://host"], "no server can be reached by an address that begins ftp://; accepted: "),
        (["http://127.0.0.1:9", "--max-seconds", "0"], "--max-seconds is 0.0; accepted: a number from 1 to 86400"),
        (["http://127.0.0.1:9", "--max-requests", "0"], "--max-requests is 0; accepted: "),
        (["http://127.0.0.1:9", "--prompt-tokens", "0"], "--prompt-tokens is 0; accepted: "),
        (["http://127.0.0.1:9", "--prompt-tokens", "many"], "--prompt-tokens is 'many'; accepted: a whole number"),
        ([], "missing argument 'URL'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(labcli_command, arguments, message):
    result = labcli_command("probe", *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"labcli: {message}")


def test_an_unknown_model_is_named_with_those_there_are(labcli_command):
    with served() as url:
        result = labcli_command("probe", url, "--model", "nope")
    assert (result.exit_code, result.stdout) == (1, "") and "accepted: sim" in result.stderr


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_every_flag_that_is_named_for_our_own_server_is_one_it_takes(labcli_command, kind):
    facts = ServerFacts(kind, True, None, "sim", 1)
    named = {found for name in flags._OTHER for found in re.findall(r"--[a-z-]+", flags.flag(name, facts))}
    declared = set(re.findall(r"--[a-z-]+", inspect.getsource(serve))) | {"--speculative", "--block-size", "--page-size"}
    assert len(named) >= 4 and named <= declared


def test_one_of_a_thing_is_told_in_the_singular():
    seen = Observations(ServerFacts("vllm", False, None, "m", 1, unit_size=1, pool_tokens=900, max_model_len=800), "ids", 700)
    seen.sent = [Sent(LADDER, 1, turn, 33, Usage(33, 1, 32 * turn, "reported")) for turn in (0, 1)]
    console = Console(width=200, record=True, file=io.StringIO())
    probe_report.print_report("http://host", seen, judge(seen), console)
    text = console.export_text()
    assert "This probe's 1 repeat found 32 of 33 tokens" in text and "1 prompt of 700" in text
    assert not re.search(r"\b1 (prompts|repeats|blocks|times|tokens\b(?! a))", text)


# What cannot be probed


@contextmanager
def answering(answer):
    """A socket that does `answer(connection)` for whoever connects; its base URL."""
    listener, ended = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def run():
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    answer(connection, ended)
                except OSError:
                    pass  # the client has gone

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
        assert not thread.is_alive()


def hang_up(connection, ended):
    connection.recv(1)


def say_html(connection, ended):
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>")


def break_off(connection, ended):
    connection.recv(65_536)
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{"data": [')


def drip(connection, ended):
    connection.recv(65_536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90000\r\n\r\n")
    while not ended.wait(0.1):
        connection.sendall(b" ")


def refuse_tls(connection, ended):
    if connection.recv(1) == b"\x16":  # a handshake's first byte
        connection.sendall(bytes((0x15, 3, 3, 0, 2, 2, 40)))


@pytest.mark.parametrize(
    "answer, message",
    [
        (refuse_tls, "speaks TLS, and was asked without; accepted: https://127.0.0.1:"),
        (hang_up, "closed the connection"),
        (say_html, "no JSON (text/html)"),
        (break_off, "closed the connection"),
        (drip, "in time"),
    ],
)
def test_what_is_no_server_is_one_line(labcli_command, answer, message):
    with answering(answer) as url:
        result = labcli_command("probe", url, "--max-seconds", "1")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert message in result.stderr


def test_nothing_there_is_one_line(labcli_command):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = labcli_command("probe", f"http://127.0.0.1:{port}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"labcli: nothing answers at http://127.0.0.1:{port}; accepted: the address of a running server\n"


def test_a_server_without_a_list_of_models_is_probed_by_the_name_that_is_given(labcli_command):
    with served() as server, fronted(server, gateway=Hide("/v1/models")) as url:
        unnamed, named = labcli_command("probe", url), labcli_command("probe", url, "--model", "sim")
    assert (unnamed.exit_code, unnamed.stdout) == (1, "") and "or --model NAME where a server has no list" in unnamed.stderr
    assert named.exit_code == 0 and "fine (certain) caching" in named.stdout and "No faults found" in named.stdout


class SlowToTokenize(Gateway):
    def refuse(self, path, body):
        return time.sleep(0.35) if path == "/tokenize" else None


def test_a_server_too_slow_for_one_question_is_judged_by_what_it_says_of_itself(labcli_command, monkeypatch):
    monkeypatch.setattr(server_client, "MAX_OVERTIME_S", 0.1)
    with served() as server, fronted(server, gateway=SlowToTokenize()) as url:
        result = labcli_command("probe", url, "--json", "--max-seconds", "1")
    document = json.loads(result.stdout)
    verdicts = {one["name"]: one for one in document["verdicts"]}
    assert result.exit_code == 1 and document["requests"] == [] and document["sent"]["left_out"] == ["all questions"]
    assert re.search(r"1 s( were over that this run may take|: the most it may take)", document["sent"]["stopped"])
    assert verdicts["caching"]["state"] == "fine" and verdicts["replies"]["state"] == "cannot tell"
    assert "fault" not in {one["state"] for one in verdicts.values()}


def test_what_was_seen_before_ctrl_c_is_judged(labcli_command, monkeypatch):
    def interrupt(series):
        raise KeyboardInterrupt

    monkeypatch.setattr(repeat_series.RepeatSeries, "step", interrupt)
    with served() as url:
        result = labcli_command("probe", url, "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (130, "labcli: interrupted; the verdicts are over what was seen until then\n")
    assert document["sent"]["stopped"] == "interrupted" and document["sent"]["left_out"] == ["the unit of a hit", "all after it"]
    (caching,) = [one for one in document["verdicts"] if one["name"] == "caching"]
    assert caching["state"] == "fine" and document["own_rate"]["num_cached"] > 0


class BreakStream(Gateway):
    """Streams end in the middle."""

    def change_text(self, path, text):
        return text[: len(text) // 2] if path == COMPLETIONS else text


def test_a_stream_that_breaks_off_is_told_and_the_rest_is_judged(labcli_command):
    with served() as server, fronted(server, gateway=BreakStream()) as url:
        result = labcli_command("probe", url, "--json")
    verdicts = {one["name"]: one for one in json.loads(result.stdout)["verdicts"]}
    assert result.exit_code == 1
    assert (
        verdicts["replies"]["state"] == "fault"
        and verdicts["stream"]["state"] == "cannot tell"
        and verdicts["caching"]["state"] == "fine"
    )
