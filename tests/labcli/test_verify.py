"""`labcli verify`: the newcomer's evidence, in seconds; a corrupted recording fails it by name and step."""

import json

import pytest

from labs.conformance.golden import read_scenarios
from tests.labs.conformance.test_live_verification import OwnRecorder


def test_it_counts_what_was_compared_and_finds_no_difference(labcli_command):
    result = labcli_command("verify")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "vLLM 0.32.0, KVCacheManager" in result.stdout and "SGLang 0.5.23, RadixCache" in result.stdout
    assert "0 differences in 129 scenarios" in result.stdout


def test_a_corrupted_value_fails_it_with_scenario_and_step(labcli_command, tmp_path):
    scenario = read_scenarios("scheduler")[0]
    scenario["steps"][1]["usage"] = 0.123
    (tmp_path / "scheduler.jsonl").write_text(json.dumps(scenario))
    result = labcli_command("verify", "--golden", str(tmp_path))
    assert result.exit_code == 1
    assert "1 of 1 scenarios differ" in result.stdout
    assert result.stderr.startswith(f"labcli: scheduler {scenario['name']!r}, step 1: usage: expected 0.123, ours ")
    as_json = labcli_command("verify", "--golden", str(tmp_path), "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["parts"][0]["differences"][0]["where"] == "step 1"


def test_a_folder_without_recordings_is_one_line(labcli_command, tmp_path):
    result = labcli_command("verify", "--golden", str(tmp_path / "none"))
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "holds no recorded scenarios; accepted: a folder with manager.jsonl.gz" in result.stderr


class StubRecorder(OwnRecorder):
    def __init__(self, python):
        super().__init__()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_against_vllm_tells_pools_counts_and_the_seed(labcli_command, monkeypatch):
    monkeypatch.setattr("labs.peers.vllm_recorder.VllmRecorder", StubRecorder)
    result = labcli_command("verify", "--against", "vllm", "--requests", "50", "--seed", "7")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "0 differing requests, 0 differing steps of 300 random requests" in result.stdout and "--seed 7" in result.stdout
    as_json = json.loads(labcli_command("verify", "--against", "vllm", "--requests", "50", "--seed", "7", "--json").stdout)
    assert (as_json["vllm"], as_json["seed"], len(as_json["parts"])) == ("ours", 7, 6)


def test_without_a_seed_each_run_has_a_new_one_and_says_it(labcli_command, monkeypatch):
    monkeypatch.setattr("labs.peers.vllm_recorder.VllmRecorder", StubRecorder)
    outputs = [labcli_command("verify", "--against", "vllm", "--requests", "1").stdout for _ in range(2)]
    assert len({output.rpartition("--seed ")[2] for output in outputs}) == 2


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["--against", "sglang"], "labcli: --against is 'sglang'; accepted: vllm"),
        (["--seed", "1"], "labcli: --seed means nothing without --against vllm; accepted: "),
        (["--requests", "5"], "labcli: --requests means nothing without --against vllm; accepted: "),
        (["--against", "vllm", "--golden", "x"], "labcli: --golden means nothing with --against vllm; accepted: "),
        (["--against", "vllm", "--requests", "0"], "labcli: --requests is 0; accepted: a whole number from 1"),
        (["--against", "vllm", "--seed", "-1"], "labcli: --seed is -1; accepted: a whole number from 0"),
        (["--against", "vllm", "--vllm-python", "/nope"], "labcli: '/nope' cannot be run ("),
    ],
)
def test_bad_usage_is_one_line(labcli_command, arguments, line):
    result = labcli_command("verify", *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(line)
