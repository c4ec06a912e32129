"""`labcli verify`: the newcomer's evidence, in seconds; a corrupted recording fails it by name and step."""

import json

from labs.conformance.golden import read_scenarios


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
