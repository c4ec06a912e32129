"""`labcli run-lab --target URL`: a run, its record and its ends, against servers of the simulated engine on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from engine.kvcache import kv_cache_manager
from tests.engine.server.served import served, serving
from tests.servers.gateways.fronts import PrependCounter
from tests.servers.gateways.gateway import COMPLETIONS, Gateway, fronted
from tests.servers.gateways.salts import DropSalt, SaltEachRequest

KEY = "a-secret-key"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def labcli(tmp_path, monkeypatch):
    from labcli.main import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.delenv("LABCLI_RESULTS_DIR", raising=False)
    monkeypatch.delenv("LABCLI_API_KEY", raising=False)
    return lambda *arguments: CliRunner().invoke(app, list(arguments), prog_name="labcli")


@pytest.fixture(scope="module")
def vllm():
    with served(num_gpu_blocks=4_000) as url:
        yield url


@pytest.fixture(scope="module")
def sglang():
    with served(flavor="sglang", num_gpu_blocks=60_000) as url:
        yield url


def record_of(result) -> dict:
    assert result.stderr == "" and result.exit_code == 0, (result.exit_code, result.stderr)
    return json.loads(result.stdout)


def test_lab_04_on_a_server_meets_its_predictions_and_its_record_tells_the_server(labcli, vllm, tmp_path):
    result = labcli("run-lab", "04", "--quick", "--target", vllm)
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"target labcli serve (vllm) sim at {vllm} · cache reset between phases · cache cold at the start" in result.stdout
    assert "counted" in result.stdout and "predictions met exactly" in result.stdout
    (path,) = tmp_path.glob("results/04-prefix-cache-hit-rate/*.json")
    record = json.loads(path.read_text())
    assert record["target"]["kind"] == "vllm" and record["target"]["engine_config"] is None
    settings = record["target"]["opened"][0]["config"]
    assert (settings["address"], settings["unit_size"], settings["isolation"]) == (vllm, 16, "reset")
    assert record["status"] == "ok" and record["cache_state"] == "cold"


def test_the_model_s_name_is_one_that_the_server_lists(labcli, vllm):
    record = record_of(labcli("run-lab", "13", "--target", vllm, "--model", "sim", "--json", "--no-save"))
    assert record["target"]["opened"][0]["model"] == "sim"
    result = labcli("run-lab", "13", "--target", vllm, "--model", "gpt", "--no-save")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "serves no model 'gpt'; accepted: sim" in result.stderr


def test_all_labs_that_make_sense_run_one_after_the_other(labcli, sglang):
    result = labcli("run-lab", "all", "--quick", "--target", sglang, "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    records = json.loads(result.stdout)
    assert [one["lab"]["number"] for one in records] == [2, 3, 4, 5, 6, 10, 13]
    assert {one["status"] for one in records} == {"ok"} and {one["cache_state"] for one in records} == {"cold"}


def test_a_broken_server_ends_with_1_and_the_first_prediction_it_misses(labcli, monkeypatch):
    def without_cap(self, request):
        return self.prefix_cache.match(request, request.num_tokens)

    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "get_computed_blocks", without_cap)
    with served(num_gpu_blocks=4_000) as url:
        result = labcli("run-lab", "03", "--quick", "--target", url, "--no-save")
    assert result.exit_code == 1 and "✗" in result.stdout
    assert "predictions were not met; the first: " in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("gateway", [SaltEachRequest, PrependCounter])
def test_a_gateway_that_spoils_every_request_does_not_pass_and_the_next_step_is_named(labcli, vllm, gateway):
    with fronted(vllm, gateway=gateway()) as url:
        result = labcli("run-lab", "04", "--quick", "--target", url, "--json", "--no-save")
    assert result.exit_code == 1
    findings = json.loads(result.stdout)["findings"]
    assert any("NOTHING is reused" in line and "labcli probe" in line for line in findings)


class CountOthers(Gateway):
    """Every request comes with somebody else's prompt of 40 tokens."""

    num_sent = 0

    def change_request(self, path, body):
        self.num_sent += path == COMPLETIONS

    def change_text(self, path, text):
        def more(found):
            return f"{found[1]}{float(found[2]) + 40 * self.num_sent}"

        return re.sub(r"^(vllm:prefix_cache_queries_total\S* )(\S+)$", more, text, flags=re.MULTILINE)


@pytest.mark.parametrize("number", ["04", "13"])
def test_a_run_that_could_count_nothing_ends_with_1_and_says_why(labcli, number):
    with served(num_gpu_blocks=4_000, cache_report=False, reset_endpoint=False) as server, fronted(server, gateway=CountOthers()) as url:
        result = labcli("run-lab", number, "--quick", "--target", url)
    assert result.exit_code == 1 and result.stderr.startswith("labcli: nothing could be counted here: ")
    assert result.stderr.count("\n") == 1
    shown = " ".join(result.stdout.split())
    assert "Nothing could be counted here" in shown
    assert ("none of them about tokens found" if number == "04" else "nothing was predicted") in shown
    assert not any(claim in shown for claim in ("NOTHING is reused", "equals its prediction", "prediction was met"))
    record = json.loads(labcli("results", "show", "latest", "--json").stdout)
    assert (record["status"], record["error"]) == ("failed", result.stderr.removeprefix("labcli: ").strip())
    assert "until then" not in labcli("results", "list").stdout


def test_all_labs_are_not_well_where_one_could_count_nothing(labcli):
    with served(num_gpu_blocks=4_000, cache_report=False) as server, fronted(server, gateway=CountOthers()) as url:
        result = labcli("run-lab", "all", "--quick", "--target", url, "--no-save")
    assert result.exit_code == 1 and result.stdout.count("failed: nothing could be counted here") == 6


def test_the_record_holds_the_sizes_that_were_run(labcli):
    with served(num_gpu_blocks=4_000, max_model_len=300) as url:
        record = record_of(labcli("run-lab", "04", "--set", "num_requests=4", "--target", url, "--json", "--no-save"))
    sizes = record["lab_config"]
    assert sizes["num_requests"] == 4 and sizes["shared_tokens"] + sizes["user_tokens"] < 300
    assert f"shared_tokens 2000 → {sizes['shared_tokens']}" in " ".join(record["findings"])


def test_a_gateway_that_drops_salts_is_caught(labcli, vllm):
    with fronted(vllm, gateway=DropSalt()) as url:
        result = labcli("run-lab", "04", "--quick", "--target", url, "--no-save")
    assert result.exit_code == 1 and "ignores cache_salt" in " ".join(result.stdout.split())


def test_a_key_comes_from_the_environment_and_is_shown_nowhere(labcli, monkeypatch, tmp_path):
    with served(num_gpu_blocks=4_000, api_key=KEY) as url:
        refused = labcli("run-lab", "13", "--target", url)
        assert refused.exit_code == 1 and "LABCLI_API_KEY" in refused.stderr and refused.stderr.count("\n") == 1
        assert not (tmp_path / "results").exists()
        monkeypatch.setenv("LABCLI_API_KEY", KEY)
        result = labcli("run-lab", "13", "--target", url)
        assert (result.exit_code, result.stderr) == (0, "")
    kept = "".join(path.read_text() for path in tmp_path.glob("results/*/*.json"))
    assert kept and KEY not in kept + result.stdout + refused.stderr


def test_a_password_in_the_address_is_shown_nowhere(labcli, vllm, tmp_path):
    result = labcli("run-lab", "13", "--target", vllm.replace("http://", "http://me:pepper@"))
    assert result.exit_code == 0
    kept = "".join(path.read_text() for path in tmp_path.glob("results/*/*.json"))
    assert "pepper" not in kept + result.stdout


def test_a_limit_ends_the_run_and_what_was_measured_is_kept(labcli, vllm, tmp_path):
    result = labcli("run-lab", "04", "--quick", "--target", vllm, "--max-requests", "40")
    assert result.exit_code == 1
    assert "40 requests were sent" in result.stderr and "measurements before that, saved in " in result.stderr
    assert result.stderr.count("\n") == 1
    (path,) = tmp_path.glob("results/*/*.json")
    record = json.loads(path.read_text())
    assert record["status"] == "failed" and record["measurements"]


def test_a_server_that_says_how_to_see_more_is_quoted_in_the_findings(labcli):
    with served(num_gpu_blocks=4_000, metrics_endpoint=False) as url:
        record = record_of(labcli("run-lab", "13", "--target", url, "--json", "--no-save"))
    assert any("/metrics shows no counters" in line for line in record["findings"])
    assert not any(one["name"] in ("counted", "queries") for one in record["measurements"])


def test_a_strangers_cache_is_left_alone_by_renaming(labcli, tmp_path):
    with serving(num_gpu_blocks=4_000) as running:
        stranger = {"prompt": list(range(100)), "max_tokens": 1}
        found = []
        for arguments in ((), ("--isolation", "rename"), ("--isolation", "reset")):
            httpx.post(f"{running.url}/v1/completions", json=stranger)
            result = labcli("run-lab", "03", "--quick", "--target", running.url, "--json", *arguments)
            record = record_of(result)
            usage = httpx.post(f"{running.url}/v1/completions", json=stranger).json()["usage"]
            found.append((record["target"]["isolation"], record["cache_state"], usage["prompt_tokens_details"]["cached_tokens"]))
    assert found == [("reset", "cold", 0), ("renamed", "cold", 96), ("reset", "cold", 0)]
    assert "for everybody" in " ".join(labcli("run-lab", "--help").stdout.replace("│", " ").split())


def test_a_rate_that_leaves_no_time_ends_the_run_at_once(labcli, vllm):
    begin_s = time.monotonic()
    result = labcli("run-lab", "04", "--target", vllm, "--rate", "0.05", "--max-minutes", "0.1", "--no-save")
    assert result.exit_code == 1 and "at this rate the next request would start after 6 s" in result.stderr
    assert time.monotonic() - begin_s < 6


def test_no_reset_is_told_beside_the_state_of_the_cache(labcli):
    with served(num_gpu_blocks=4_000, reset_endpoint=False) as url:
        result = labcli("run-lab", "03", "--quick", "--target", url, "--no-save")
    assert result.exit_code == 0
    assert "no reset: prompts given other ids between phases · cache cold" in " ".join(result.stdout.split())


def test_results_show_the_server_and_compare_like_with_like(labcli, vllm, sglang):
    for url in (vllm, vllm, sglang):
        assert labcli("run-lab", "13", "--target", url).exit_code == 0
    listed = labcli("results", "list")
    assert listed.stdout.count("labcli serve (vllm) sim") == 2 and "labcli serve (sglang) sim" in listed.stdout
    rows = json.loads(labcli("results", "list", "--json").stdout)
    assert rows[0]["target"]["address"] == sglang and rows[0]["target"]["version"] == "0.5.23"
    newest, second, first = (row["run_id"] for row in rows)
    alike = json.loads(labcli("results", "compare", first, second, "--json").stdout)
    assert {one["verdict"] for one in alike["measured"] if one["kind"] == "count"} == {"equal"}
    unlike = json.loads(labcli("results", "compare", second, newest, "--json").stdout)
    assert "compare with their like" in unlike["not_compared"]["counts"]


BAD_USAGE = {
    "a lab for engines only": (["01"], "lab 01 does not run on a server; accepted: labs 02, 03, 04, 05, 06, 10, 13; this one with "),
    "a field without meaning": (["04", "--set", "block_size=32"], "block_size means nothing on a server, whose cache is as it is; accepted: shared_tokens"),
    "a dtype": (["04", "--dtype", "float32"], "--dtype means nothing with a server; accepted: --dtype with --target engine"),
    "a GPU": (["04", "--gpu", "H200"], "--gpu means nothing with a server; accepted: --gpu with --target sim"),
    "a concurrency of none": (["02", "--concurrency", "0"], "--concurrency is 0; accepted: a whole number from 1 to 256"),
    "a way that is none": (["04", "--isolation", "flush"], "--isolation is 'flush'; accepted: auto, reset, rename"),
    "a rate in words": (["02", "--rate", "fast"], "--rate is 'fast'; accepted: a number from 0.001 to "),
    "no time at all": (["02", "--max-minutes", "0"], "--max-minutes is 0; accepted: a number from 0.1 to "),
    "no requests": (["02", "--max-requests", "-1"], "--max-requests is -1; accepted: a whole number from 1 to "),
    "no patience": (["02", "--timeout", "0"], "--timeout is 0; accepted: a number from 1 to "),
    "a model without a name": (["04", "--model", " "], "--model is ' '; accepted: a name that the server lists"),
}


@pytest.mark.parametrize(("arguments", "line"), BAD_USAGE.values(), ids=BAD_USAGE.keys())
def test_bad_usage_is_one_line_and_asks_the_server_nothing(labcli, tmp_path, arguments, line):
    result = labcli("run-lab", *arguments, "--target", "http://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"labcli: {line}") and result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["engine", "sim"])
def test_an_option_for_servers_is_refused_elsewhere(labcli, target):
    result = labcli("run-lab", "04", "--target", target, "--concurrency", "4")
    assert result.exit_code == 2
    assert f"--concurrency means nothing with --target {target}; accepted: --concurrency with --target URL" in result.stderr


def test_a_key_that_no_header_can_hold_is_refused_without_showing_it(labcli, monkeypatch):
    monkeypatch.setenv("LABCLI_API_KEY", "pfeffer\nmühle")
    result = labcli("run-lab", "04", "--target", "http://127.0.0.1:1")
    assert result.exit_code == 2 and "LABCLI_API_KEY" in result.stderr and "pfeffer" not in result.stderr


@pytest.mark.parametrize(
    "address",
    [
        "ftp://me:pfeffer@127.0.0.1", "FTP://host", "://host", "http://", "HTTP://:80", "http://host:port", "http://host:99999",
        "http://me:pfeffer@host:0", "http://me:pfeffer/@host", "http://a b", "http://[::1", "http://[::1]:x", "localhost:8000",
        "me:pfeffer@gate.example", "host:8000/v1?key=pfeffer", "http:host", "https:/me:pfeffer@host",
    ],
)  # fmt: skip
def test_what_is_no_address_is_bad_usage_in_the_same_line_for_labs_and_probe(labcli, tmp_path, address):
    on_lab, on_probe = labcli("run-lab", "04", "--target", address), labcli("probe", address)
    assert (on_lab.exit_code, on_lab.stdout, on_lab.stderr.count("\n")) == (2, "", 1)
    assert on_lab.stderr.startswith("labcli: ") and "; accepted: http" in on_lab.stderr and "pfeffer" not in on_lab.stderr
    assert (on_probe.exit_code, on_probe.stdout, on_probe.stderr) == (2, "", on_lab.stderr)
    assert not list(tmp_path.iterdir())


def test_help_names_a_server_s_url_and_its_options(labcli):
    text = " ".join(labcli("run-lab", "--help").stdout.split())
    assert "or a server's URL" in text and "--concurrency" in text and "--max-minutes" in text
    assert "--target http://127.0.0.1:8000" in labcli("explain", "04").stdout


def tokens_looked_up(url: str) -> float:
    page = httpx.get(f"{url}/metrics").text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("vllm:prefix_cache_queries_total"))


def test_ctrl_c_during_a_request_keeps_what_was_measured(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with served(num_gpu_blocks=4_000, pace=1_000.0) as url:  # some tenths of a second a request
        command = [sys.executable, "-m", "labcli", "run-lab", "04", "--quick", "--target", url]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline_s = time.monotonic() + 60
        while tokens_looked_up(url) < 1_000 and time.monotonic() < deadline_s and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, (stdout, stderr)
    assert stderr.startswith("labcli: interrupted after ") and "saved in " in stderr and stderr.count("\n") == 1
    (path,) = tmp_path.glob("results/*/*.json")
    record = json.loads(path.read_text())
    assert record["status"] == "interrupted" and record["measurements"] and record["cache_state"] == "cold"
