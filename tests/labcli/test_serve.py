"""`labcli serve`: its first line, its refusals, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from engine.server.engine_loop import EngineLoop
from engine.server.options import ServerOptions
from engine.server.run_server import bind
from labcli.main import app

ROOT = Path(__file__).resolve().parents[2]


# At its end it tells which of these are loaded.
WATCHED = (
    "import sys\nfrom labcli.main import main\n"
    "try: main()\nexcept SystemExit as end: print(sorted({'torch', 'transformers'} & set(sys.modules))); raise"
)


def start(*arguments, program=("-m", "labcli"), **environment):
    """A server of its own process: the process, and its first line."""
    command = [sys.executable, *program, "serve", "--target", "sim", "--model", "smollm2-135m", "--port", "0", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **environment}
    )
    return process, process.stdout.readline().strip()


def refused(*arguments):
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    return result.stderr.strip()


def test_it_says_what_it_serves_loads_no_torch_and_ends_well_when_told_to():
    process, line = start("--flavor", "sglang", "--page-size", "16", "--num-gpu-blocks", "65", program=("-c", WATCHED))
    told, _, url = line.rpartition(" on ")
    assert told == "labcli: serving smollm2-135m (sim, sglang flavor, radix cache, page 16, 64 pages)"
    reply = httpx.get(f"{url}/health")
    assert reply.status_code == 200 and reply.headers["server"].startswith("labcli/")
    assert httpx.post(f"{url}/v1/completions", json={"prompt": "hello", "max_tokens": 1}).status_code == 200
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "labcli: stopped\n[]\n", "")


def test_a_second_interrupt_ends_it_at_once():
    process, line = start("--pace", "50", "--drain", "60")
    with httpx.Client(base_url=line.rpartition(" on ")[2]) as client:
        with client.stream("POST", "/v1/completions", json={"prompt": [1], "max_tokens": 5000, "stream": True}) as reply:
            lines = reply.iter_lines()  # kept: letting go of it would close the connection
            next(lines)
            process.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.send_signal(signal.SIGINT)
            process.wait(10)
    out, err = process.communicate()
    assert process.returncode == 130 and err.strip() == "labcli: ended at once"


def test_the_key_comes_from_the_environment_and_the_flags_may_have_the_real_servers_names():
    flags = ("--no-enable-prefix-caching", "--no-enable-prompt-tokens-details")
    numbers = ("--max-running-requests", "3", "--context-length", "100")
    process, line = start("--host", "0.0.0.0", *flags, *numbers, LABCLI_API_KEY="very-secret")
    assert "no prefix cache" in line
    with httpx.Client(base_url=line.rpartition(" on ")[2].replace("0.0.0.0", "127.0.0.1")) as client:
        assert client.get("/v1/models").status_code == 401
        client.headers["authorization"] = "Bearer very-secret"
        (model,) = client.get("/v1/models").json()["data"]
        assert (model["id"], model["max_model_len"]) == ("smollm2-135m", 100)
        reply = client.post("/v1/completions", json={"prompt": [1, 2], "max_tokens": 1})
        assert reply.json()["usage"]["prompt_tokens_details"] is None
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "labcli: stopped\n")
    assert "other machines that reach 0.0.0.0 can use this server with the key, over any number of connections" in err
    assert "very-secret" not in line + out + err


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--flavor", "tgi"], "--flavor is 'tgi'; accepted: vllm, sglang"),
        (["--target", "gpu"], "--target is 'gpu'; accepted: engine, sim"),
        (["--target", "http://x?key=pfeffer"], "--target is an address; accepted: engine, sim"),
        (
            ["--target", "sim", "--dtype", "float32"],
            "--dtype means nothing with --target sim; accepted: --dtype with --target engine",
        ),
        (["--pace", "1"], "--pace means nothing with --target engine; accepted: --pace with --target sim"),
        (["--page-size", "4"], "--page-size means nothing with the hash cache; accepted: --page-size with --prefix-cache radix"),
        (["--flavor", "sglang", "--block-size", "4"], "--block-size means nothing with the radix cache"),
        (
            ["--port", "70000", "--no-prefix-caching", "--prefix-cache", "radix"],
            "--prefix-cache means nothing with --no-prefix-caching; accepted: --prefix-cache with --prefix-caching",
        ),
        (["--port", "70000", "--no-enable-prefix-caching", "--prefix-caching-hash-algo", "xxhash"], "--prefix-caching-hash-algo means nothing with --no-p"),
        (
            ["--port", "70000", "--flavor", "sglang", "--disable-radix-cache", "--radix-eviction-policy", "lfu"],
            "--radix-eviction-policy means nothing with --no-prefix-caching; accepted: --radix-eviction-policy with --prefix-caching",
        ),
        (["--target", "sim", "--model", "nope"], "--model is 'nope'; accepted: "),
        (["--target", "sim", "--port", "70000"], "--port is 70000; accepted: a whole number from 0 to 65535"),
        (["--max-waiting", "-1"], "--max-waiting is -1; accepted: a whole number from 0"),
        (["--drain", "-1"], "--drain is -1.0; accepted: seconds, 0 or more"),
        (["--request-timeout", "0"], "--request-timeout is 0.0; accepted: seconds, more than 0"),
        (["--target", "sim", "--gpu", "Z80"], "--gpu is 'Z80'; accepted: "),
        (["--target", "sim", "--num-gpu-blocks", "1"], "--num-gpu-blocks is 1; accepted: "),
        (
            ["--target", "sim", "--host", "nowhere.invalid"],
            "--host is 'nowhere.invalid'; accepted: a name or an address of this machine",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(arguments, told):
    line = refused(*arguments)
    assert line.startswith(f"labcli: {told}") and "\n" not in line


def test_sizes_and_a_drafter_go_with_caching_off():
    with bind(ServerOptions(port=0)) as taken:  # what is taken is refused after all else
        port = str(taken.getsockname()[1])
        for flags in (["--block-size", "32", "--policy", "lpm"], ["--flavor", "sglang", "--page-size", "16", "--speculative"]):
            line = refused("--target", "sim", "--port", port, "--disable-radix-cache", *flags)
            assert line.startswith(f"labcli: --port is {port}; accepted: ")


def test_a_server_whose_engine_ends_by_itself_says_so_in_one_line(monkeypatch):
    def end(loop, wait):
        raise SystemExit

    monkeypatch.setattr(EngineLoop, "_carry_out_commands", end)
    result = CliRunner().invoke(app, ["serve", "--target", "sim", "--port", "0"])
    assert result.exit_code == 1
    assert result.stderr == "labcli: the engine ended by itself (SystemExit), and the server with it; start it again\n"


def test_a_port_in_use_is_refused_in_one_line():
    with bind(ServerOptions(port=0)) as taken:
        port = taken.getsockname()[1]
        assert refused("--target", "sim", "--port", str(port)).startswith(
            f"labcli: --port is {port}; accepted: a port that no other program"
        )
