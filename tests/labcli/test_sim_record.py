"""Lab 04 on the simulated target: two runs write the same record, and it holds no prompt and no salt."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def two_outputs():
    """What `labcli run-lab 04 --target sim --json` prints, twice, each time with another hash seed of Python."""
    command = [sys.executable, "-m", "labcli", "run-lab", "04", "--target", "sim", "--quick", "--json", "--no-save"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONHASHSEED", None)
    done = [subprocess.run(command, capture_output=True, text=True, env=environment, check=True) for _ in range(2)]
    assert [one.stderr for one in done] == ["", ""]
    return [one.stdout for one in done]


def test_two_runs_are_equal_byte_for_byte_apart_from_time_and_place(two_outputs):
    def shared_lines(text):
        content = json.loads(text)
        for name in ("run_id", "started_at", "finished_at", "environment"):
            del content[name]
        # Texts of the same bytes: no key may have moved either.
        return json.dumps(content, indent=2, ensure_ascii=False)

    assert shared_lines(two_outputs[0]) == shared_lines(two_outputs[1])


def test_it_agrees_with_every_prediction(two_outputs):
    record = json.loads(two_outputs[0])
    assert record["status"] == "ok"
    assert record["cache_state"] == "cold"
    assert all(
        sample == one["predicted"]["value"] for one in record["measurements"] if one["predicted"] for sample in one["samples"]
    )


def test_no_salt_and_no_run_of_prompt_tokens_is_in_the_record(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from labcli.main import app
    from labs.targets.in_process import InProcessTarget

    salts, prompts = set(), []
    complete = InProcessTarget.complete

    def noting(self, prompt_token_ids, **settings):
        salts.add(settings.get("cache_salt"))
        prompts.append(list(prompt_token_ids))
        return complete(self, prompt_token_ids, **settings)

    monkeypatch.setattr(InProcessTarget, "complete", noting)
    monkeypatch.chdir(tmp_path)
    arguments = ["run-lab", "04", "--target", "sim", "--quick", "--json", "--no-save"]
    result = CliRunner().invoke(app, arguments, prog_name="labcli")
    assert result.exit_code == 0
    assert len(salts - {None}) > 2 and prompts
    assert not [salt for salt in salts - {None} if salt in result.stdout]
    squeezed = "".join(result.stdout.split())
    assert not [prompt for prompt in prompts if ",".join(map(str, prompt[:8])) in squeezed]
