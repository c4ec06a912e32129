"""All labs on the simulated target: two runs write the same records, and none holds a prompt or a salt."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.request import Request

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = ["run-lab", "all", "--target", "sim", "--quick", "--json", "--no-save"]
# Hashing and lookups are timed by this machine's own clock, on every target.
HAVE_REAL_TIMES = (1, 11)


@pytest.fixture(scope="module")
def two_runs():
    """The records of two runs by lab, each run with another hash seed of Python."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONHASHSEED", None)
    command = [sys.executable, "-m", "labcli", *ARGUMENTS]
    done = [subprocess.run(command, capture_output=True, text=True, env=environment, check=True) for _ in range(2)]
    assert [one.stderr for one in done] == ["", ""]
    return [{record["lab"]["number"]: record for record in json.loads(one.stdout)} for one in done]


def test_two_runs_are_equal_byte_for_byte_apart_from_time_and_place(two_runs):
    def shared_lines(record):
        # Texts of the same bytes: no key may have moved either.
        content = {name: value for name, value in record.items() if name not in ("run_id", "started_at", "finished_at", "environment")}
        return json.dumps(content, indent=2, ensure_ascii=False)

    first, second = two_runs
    assert len(first) == len(second) >= 14
    for number in first.keys() - set(HAVE_REAL_TIMES):
        assert shared_lines(first[number]) == shared_lines(second[number])
    for number in HAVE_REAL_TIMES:
        counts, again = (
            [one for one in run[number]["measurements"] if one["predicted"] is not None] for run in (first, second)
        )
        assert counts == again and counts


def test_every_count_of_every_lab_equals_its_prediction(two_runs):
    for record in two_runs[0].values():
        assert record["status"] == "ok" and record["cache_state"] == "cold" and record["charts"]
        for one in record["measurements"]:
            if one["predicted"] and one["predicted"]["low"] is None:
                assert {*one["samples"]} == {one["predicted"]["value"]}


def test_no_salt_and_no_run_of_prompt_tokens_is_in_any_record(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from labcli.main import app

    salts, prompts = set(), []
    make = Request.__init__

    def noting(self, request_id, prompt_token_ids, sampling_params=None, **fields):
        salts.add(fields.get("cache_salt"))
        prompts.append(",".join(map(str, prompt_token_ids[:8])))
        make(self, request_id, prompt_token_ids, sampling_params, **fields)

    monkeypatch.setattr(Request, "__init__", noting)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ARGUMENTS, prog_name="labcli")
    assert result.exit_code == 0
    assert len(salts - {None}) > 4 and len(prompts) > 500
    assert not [salt for salt in salts - {None} if salt in result.stdout]
    squeezed = "".join(result.stdout.split())
    assert not [prompt for prompt in set(prompts) if prompt.count(",") == 7 and prompt in squeezed]
