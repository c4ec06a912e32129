"""`labcli run-lab all`: every lab in turn; one that fails ends itself alone."""

from __future__ import annotations

import json
import sys

import pytest

import labs.catalog
from tests.labcli.conftest import STUB_LAB


@pytest.fixture
def stub_labs(stub_folder, monkeypatch):
    """Makes labs 91, 92, … that end as asked; the catalog then holds these alone."""

    def make(*endings):
        for number, ending in enumerate(endings, start=91):
            source = STUB_LAB.replace("Lab 90", f"Lab {number}").replace("Lab(90, ", f"Lab({number}, ")
            source = source.replace('ending: str = "ok"', f'ending: str = "{ending}"').replace('"stub-lab"', f'"stub-{number}"')
            sys.modules.pop(f"labs.lab_{number}_stub_{number}", None)  # an earlier test's
            (stub_folder / f"lab_{number}_stub_{number}.py").write_text(source, encoding="utf-8")
        found = [entry for entry in labs.catalog.find_labs() if entry.number > 90]
        monkeypatch.setattr(labs.catalog, "find_labs", lambda: found)

    return make


def test_every_lab_runs_and_leaves_its_record(labcli_command, stub_labs, tmp_path):
    stub_labs("ok", "ok")
    result = labcli_command("run-lab", "all")
    assert result.exit_code == 0 and result.stderr == ""
    assert "stub-91" in result.stdout and "stub-92" in result.stdout
    assert "2 of 2 predictions met in 2 labs" in result.stdout
    assert len(list((tmp_path / "results").glob("9?-stub-9?/*.json"))) == 2


def test_a_lab_that_fails_or_disagrees_does_not_stop_the_others(labcli_command, stub_labs, tmp_path):
    stub_labs("fails before measuring", "disagrees", "fails", "ok")
    result = labcli_command("run-lab", "all")
    assert result.exit_code == 1
    assert result.stdout.count("failed: the stub gave up; accepted: another ending") == 2
    assert "1 measurement before that, saved in results" in " ".join(result.stdout.split())
    assert "not met: hash cache, shared, hits: predicted 18,000, measured 17,984" in result.stdout
    assert "2 of 3 predictions met in 4 labs" in result.stdout
    assert len(list((tmp_path / "results").glob("9?-*/*.json"))) == 3


def test_ctrl_c_ends_all_labs_and_keeps_what_was_measured(labcli_command, stub_labs, tmp_path):
    stub_labs("ok", "interrupted", "ok")
    result = labcli_command("run-lab", "all")
    assert result.exit_code == 130
    assert result.stderr.startswith("labcli: lab 92: interrupted after 1 measurement, saved in results")
    assert len(list((tmp_path / "results").glob("9?-*/*.json"))) == 2


def test_a_results_folder_that_cannot_be_written_is_found_once_and_before_any_lab(labcli_command, stub_labs, tmp_path):
    stub_labs("ok", "ok")
    (tmp_path / "a_file").write_text("")
    result = labcli_command("run-lab", "all", "--results-dir", "a_file")
    assert result.exit_code == 1 and result.stdout == "" and result.stderr.count("a_file") == 1


def test_ctrl_c_still_prints_the_records_there_are(labcli_command, stub_labs):
    stub_labs("ok", "interrupted", "ok")
    result = labcli_command("run-lab", "all", "--json", "--no-save")
    assert result.exit_code == 130
    assert [record["status"] for record in json.loads(result.stdout)] == ["ok", "interrupted"]


def test_json_is_a_list_of_records_and_nothing_else(labcli_command, stub_labs):
    stub_labs("ok", "fails")
    result = labcli_command("run-lab", "ALL", "--json", "--no-save", "--quick")
    assert result.exit_code == 1
    assert [record["lab"]["number"] for record in json.loads(result.stdout)] == [91, 92]


def test_a_field_of_one_lab_is_refused_for_all(labcli_command, stub_labs):
    stub_labs("ok")
    result = labcli_command("run-lab", "all", "--set", "num_requests=3")
    assert result.exit_code == 2 and result.stderr.startswith("labcli: --set names a field of one lab")
