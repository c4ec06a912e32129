"""`labcli verify`: the newcomer's evidence, in seconds; a corrupted recording fails it by name and step."""

import json
import sys
from pathlib import Path

import pytest

from labs.conformance.golden import read_scenarios
from labs.peers import vllm_recorder
from labs.peers.worker_process import PeerEnded
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
    assert (as_json["vllm"], as_json["seed"], as_json["error"], len(as_json["parts"])) == ("ours", 7, None, 6)


def test_without_a_seed_each_run_has_a_new_one_and_says_it(labcli_command, monkeypatch):
    monkeypatch.setattr("labs.peers.vllm_recorder.VllmRecorder", StubRecorder)
    outputs = [labcli_command("verify", "--against", "vllm", "--requests", "1").stdout for _ in range(2)]
    assert len({output.rpartition("--seed ")[2] for output in outputs}) == 2


# Answers as our own engine does, until the fourth question.
BREAKS_OFF = """
import json, sys, time
sys.path.insert(0, {root!r})
from tests.labs.conformance.test_live_verification import OwnRecorder
recorder = OwnRecorder()
print(json.dumps({{"version": "0.0.stub"}}), flush=True)
for number, line in enumerate(sys.stdin):
    if number == 3:
        print("MemoryError: no room", file=sys.stderr, flush=True)
        {end}
    asked = json.loads(line)
    recorded = recorder.record(asked["kind"], {{"name": "one", **asked["scenario"]}})
    print(json.dumps({{key: value for key, value in recorded.items() if key in ("expect", "final")}}), flush=True)
"""


@pytest.fixture(params=["dies", "hangs"])
def broken_worker(request, tmp_path, monkeypatch):
    """How a worker ends half-way, and what is told of it."""
    worker = tmp_path / "worker.py"
    end = "raise SystemExit(1)" if request.param == "dies" else "time.sleep(60)"
    worker.write_text(BREAKS_OFF.format(root=str(Path(__file__).resolve().parents[2]), end=end))
    monkeypatch.setattr(vllm_recorder, "_WORKER", worker)
    monkeypatch.setattr(vllm_recorder, "ANSWER_TIMEOUT_S", 5.0)
    return "vLLM's process ended: MemoryError: no room" if request.param == "dies" else "vLLM's process did not answer within 5 s"


def test_a_worker_that_breaks_off_half_way_leaves_what_was_compared(labcli_command, broken_worker):
    result = labcli_command("verify", "--against", "vllm", "--vllm-python", sys.executable, "--requests", "100", "--seed", "7")
    assert (result.exit_code, result.stderr) == (1, f"labcli: {broken_worker}; in manager 'random-manager-8-50x20' of seed 7\n")
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("KVCacheManager")]
    assert [row[:4] for row in rows] == [["KVCacheManager", "8", "2", "100"], ["KVCacheManager", "20", "1", "50"]]
    assert "0 differing steps of 150 random requests" in result.stdout
    assert "(--seed 7); broken off after 3 of 12 scenarios" in result.stdout


def test_a_difference_before_the_break_is_told_too(labcli_command, monkeypatch):
    class Breaking(StubRecorder):
        def record(self, kind, scenario):
            if len(self.names) == 2:
                raise PeerEnded("vLLM's process ended")
            recorded = super().record(kind, scenario)
            if len(self.names) == 1:
                recorded["final"] = {**recorded["final"], "usage": 0.123}
            return recorded

    monkeypatch.setattr("labs.peers.vllm_recorder.VllmRecorder", Breaking)
    arguments = ("verify", "--against", "vllm", "--requests", "50", "--seed", "7")
    result = labcli_command(*arguments)
    assert result.exit_code == 1 and "1 scenarios differ of 100 random requests" in result.stdout
    difference, failure = result.stderr.splitlines()
    assert difference.startswith("labcli: manager 'random-manager-7-50x8', the end: usage: expected 0.123, ours ")
    assert failure == "labcli: vLLM's process ended; in manager 'random-manager-7-50x200' of seed 7"
    as_json = labcli_command(*arguments, "--json")
    content = json.loads(as_json.stdout)
    assert (as_json.exit_code, as_json.stderr) == (1, result.stderr)
    assert content["error"] == failure.removeprefix("labcli: ") and [len(part["differences"]) for part in content["parts"]] == [1, 0]


def test_an_interrupted_comparison_shows_what_it_had(labcli_command, monkeypatch):
    class Interrupted(StubRecorder):
        def record(self, kind, scenario):
            if len(self.names) == 2:
                raise KeyboardInterrupt
            return super().record(kind, scenario)

    monkeypatch.setattr("labs.peers.vllm_recorder.VllmRecorder", Interrupted)
    result = labcli_command("verify", "--against", "vllm", "--requests", "50", "--seed", "7")
    assert (result.exit_code, result.stderr) == (130, "labcli: interrupted\n")
    assert "broken off after 2 of 6 scenarios" in result.stdout


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
