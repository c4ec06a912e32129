"""`labcli results` lists, shows and exports what was kept, old and new; a damaged file is named and stops nothing."""

import csv
import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from labcli.results_store import ResultsStore
from labs.protocol import Measurement, Prediction

SCHEMA_1 = Path(__file__).resolve().parents[1] / "golden" / "records_schema_1"


@pytest.fixture
def kept(labcli_command, record, tmp_path):
    """Three records of lab 04, one of a bench, in results/: the last of the lab missed a prediction."""
    store = ResultsStore("results")
    base = replace(record, target={"kind": "sim", "opened": [{"model": "llama-3-8b", "dtype": "bfloat16", "device": "H100"}]})
    missed = Measurement("hits", "tokens", (1984,), "hash", "shared", Prediction(2000, "law"))
    for number, change in enumerate(
        (
            {},
            {"status": "interrupted", "measurements": ()},
            {"status": "disagrees", "measurements": (missed,), "cache_state": "uncontrolled"},
            {"lab": {"number": None, "name": "hash-bench", "question": "?"}, "target": {"kind": "none"}, "cache_state": None},
        )
    ):
        store.save(replace(base, run_id=f"{number}a" * 16, started_at=f"2026-03-0{number + 1}T14:25:01.042Z", **change))
    return labcli_command


def test_the_list_has_the_newest_first_with_what_tells_runs_apart(kept):
    done = kept("results")
    assert done.exit_code == 0
    assert re.findall(r"^\da{1}\da", done.stdout, re.MULTILINE) == ["3a3a", "2a2a", "1a1a", "0a0a"]
    for words in (
        "hash-bench",
        "04 prefix-cache-hit-rate",
        "sim llama-3-8b bfloat16",
        "disagrees",
        "0/1",
        "uncontrolled",
        "4b825dc6",
    ):
        assert words in done.stdout


def test_the_list_fits_80_columns(kept, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, kept("results", "list").stdout.splitlines())) <= 80


@pytest.mark.parametrize("lab, number", [("04", 3), ("4", 3), ("hit-rate", 3), ("hash-bench", 1)])
def test_the_list_of_one_lab_holds_that_lab(kept, lab, number):
    found = json.loads(kept("results", "list", "--lab", lab, "--json").stdout)
    assert len(found) == number
    assert len({one["lab"]["name"] for one in found}) == 1


def test_the_list_as_json_says_where_each_record_lies(kept):
    newest = json.loads(kept("results", "--json").stdout)[1]
    assert newest["predictions"] == {"met": 0, "all": 1}
    assert (newest["status"], newest["target"]["model"]) == ("disagrees", "llama-3-8b")
    assert Path(newest["path"]).is_file()


def test_a_limit_says_how_many_are_not_shown(kept):
    done = kept("results", "list", "--limit", "1")
    assert "3 older records not shown; --limit 4 shows all" in done.stdout
    assert kept("results", "list", "--limit", "0").exit_code == 2


@pytest.mark.parametrize("command", [["results"], ["results", "list", "--lab", "04"]])
@pytest.mark.parametrize("exists", [False, True])
def test_no_records_are_told_in_one_friendly_line(labcli_command, tmp_path, command, exists):
    if exists:
        (tmp_path / "results").mkdir()
    done = labcli_command(*command)
    assert done.exit_code == 0
    assert re.fullmatch(r"no records( of 04)? in results yet; labcli run-lab 04 makes one\n", done.output)


@pytest.mark.parametrize("command", [["report"], ["export", "--csv"], ["export", "--csv", "--output", "a.csv"]])
def test_a_script_learns_that_nothing_was_written_because_there_are_no_records(labcli_command, command):
    done = labcli_command("results", *command, "--results-dir", "nope")
    assert (done.exit_code, done.stdout, list(Path().iterdir())) == (2, "", [])
    assert done.stderr.startswith("labcli: no records in nope, so nothing was written; accepted: a --results-dir that ")


@pytest.mark.parametrize("command", [["list"], ["report"], ["export", "--csv"], ["show", "04"], ["show", "latest"]])
@pytest.mark.parametrize("folder", ["a_file", "", " "])
def test_a_folder_of_results_that_is_none_is_bad_usage(labcli_command, command, folder):
    Path("a_file").write_text("mine")
    done = labcli_command("results", *command, "--results-dir", folder)
    assert (done.exit_code, done.stdout, [path.name for path in Path().iterdir()]) == (2, "", ["a_file"])
    assert "labcli: --results-dir is " in done.stderr and "; accepted: a folder" in done.stderr


def test_a_lab_that_does_not_exist_is_bad_usage(kept):
    done = kept("results", "list", "--lab", "nope")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "labcli: no records of 'nope' in results; accepted: 04-prefix-cache-hit-rate, hash-bench\n"


@pytest.mark.parametrize(
    "name, run",
    [
        ("latest", "3a"), ("latest~2", "1a"), ("04", "2a"), ("4~1", "1a"), ("hit-rate~2", "0a"), ("hash-bench", "3a"),
        ("1a1a", "1a"), ("20260301T", "0a"), ("20260302T142501Z_1f0c9a3e_4b825dc6.json", "1a"),
        ("results/04-prefix-cache-hit-rate/20260303T142501Z_1f0c9a3e_4b825dc6.json", "2a"),
    ],
)  # fmt: skip
def test_a_record_goes_by_many_names(kept, name, run):
    done = kept("results", "show", name, "--json")
    assert json.loads(done.stdout)["run_id"].startswith(run)


@pytest.mark.parametrize(
    "name, message",
    [
        ("04~7", "'04~7' goes further back than the 3 there are in results; accepted: ~0 to ~2"),
        ("2026", "'2026' begins 4 records; accepted: more letters: hash-bench/20260304T142501Z_1f0c9a3e_4b825dc6, 04-"),
        ("hash-bench~1", "'hash-bench~1' goes further back than the one there is in results; accepted: ~0\n"),
        ("zzz", "no record 'zzz' in results; accepted: a path"),
        ("01", "no record of '01' in results yet; accepted: one that labcli run-lab"),
    ],
)
def test_a_name_of_no_record_or_of_several_is_bad_usage(kept, name, message):
    done = kept("results", "show", name)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_a_record_is_shown_as_its_run_showed_it_with_charts_derived_where_it_has_none(kept):
    done = kept("results", "show", "04~2")
    assert "run 0a0a0a0a · 2026-03-01 14:25:01 UTC · ok · commit 4b825dc6 · machine 1f0c9a3e" in done.stdout
    assert "1 of 1 predictions met exactly" in done.stdout
    assert "Hits, predicted and measured" in done.stdout.replace("hits,", "Hits,")
    assert "predicted to end" not in kept("results", "show", "04~2", "--no-charts").stdout


@pytest.fixture
def damaged(kept, record):
    """The same, with files that hold no record, each newer than the records."""
    folder = Path("results/04-prefix-cache-hit-rate")
    content = json.loads(record.to_json())
    measurement = content["measurements"][0]
    bad = {
        "not JSON": record.to_json()[:500],
        "a JSON object is expected": "[]",
        "schema_version 99 is newer": json.dumps({**content, "schema_version": 99}),
        "a text stands where a number is": json.dumps({**content, "measurements": [{**measurement, "samples": ["many"]}]}),
        "has no samples": json.dumps({**content, "measurements": [{**measurement, "samples": []}]}),
        "NaN is no number": json.dumps({**content, "measurements": [{**measurement, "samples": [float("nan")]}]}),
        "a chart does not fit": json.dumps({**content, "charts": [{"kind": "pie", "title": "x", "series": []}]}),
        "target does not fit": json.dumps({**content, "target": {"kind": "sim", "opened": ["llama"]}}),
        "nested too deeply": "[" * 100_000,
        "not a text in UTF-8": b"\xff\xff",
    }
    for number, text in enumerate(bad.values()):
        path = folder / f"2027010{number}T000000Z_1f0c9a3e_4b825dc6.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (folder / "20280101T000000Z_1f0c9a3e_4b825dc6.json").symlink_to("nowhere")
    return kept, [*bad, "No such file"]


@pytest.mark.parametrize("command", [["list"], ["report"], ["export", "--csv"], ["show", "latest"], ["show", "04"]])
def test_a_damaged_record_is_named_in_one_line_and_stops_nothing(damaged, command):
    labcli, reasons = damaged
    done = labcli("results", *command)
    assert done.exit_code == 0 and done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == len(reasons)
    for reason in reasons:
        assert sum(reason in line for line in lines) == 1, (reason, lines)
    assert all(re.match(r"labcli: results/04-prefix-cache-hit-rate/202\S+ is left out: ", line) for line in lines)


def test_a_damaged_record_asked_for_by_name_is_bad_usage(damaged):
    labcli, _ = damaged
    done = labcli("results", "show", "20270100")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "holds no record: not JSON" in done.stderr and done.stderr.count("\n") == 1


def test_records_of_schema_1_are_listed_shown_exported_and_reported(labcli_command):
    folder = ("--results-dir", str(SCHEMA_1.parent))
    assert "80/80" in labcli_command("results", *folder).stdout
    shown = labcli_command("results", "show", "20261130T071704", *folder)
    assert "80 of 80 predictions met exactly" in shown.stdout
    assert "predicted to end" in shown.stdout and "┃ median" in shown.stdout
    assert labcli_command("results", "export", "--csv", *folder).stdout.count("\n") > 100
    files = sorted(map(str, SCHEMA_1.glob("*.json")))
    assert labcli_command("results", "report", *files).exit_code == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert page.count("<svg role=img ") == 4


def test_a_record_of_schema_1_is_written_again_as_schema_2_with_all_it_had():
    for path in SCHEMA_1.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        again = json.loads(ResultsStore("results").load(path).to_json())
        assert json.loads(text)["schema_version"] == 1 and again.pop("schema_version") == 2
        assert again.pop("charts") == []
        for measurement in again["measurements"]:
            for bound in ("low", "high"):
                assert not measurement["predicted"] or measurement["predicted"].pop(bound) is None
        assert again == {name: value for name, value in json.loads(text).items() if name != "schema_version"}


def test_the_export_has_one_line_a_sample(kept, record):
    rows = list(csv.DictReader(io.StringIO(kept("results", "export", "--csv", "04~2").stdout)))
    assert [(row["name"], row["sample_index"], row["value"]) for row in rows] == [
        ("hits", "0", "2000"),
        ("ttft", "0", "0.25"),
        ("ttft", "1", "0.5"),
    ]
    assert (
        rows[0] | {"predicted": "2000", "agrees": "True", "model": "llama-3-8b", "cache_state": "cold", "status": "ok"} == rows[0]
    )
    assert rows[1]["predicted"] == rows[1]["agrees"] == ""


def test_the_export_replaces_a_file_only_when_told_to(kept):
    Path("runs.csv").write_text("mine")
    refused = kept("results", "export", "--csv", "--output", "runs.csv")
    assert refused.exit_code == 2 and "runs.csv exists; accepted: another --output, or --force" in refused.stderr
    assert Path("runs.csv").read_text() == "mine"
    assert kept("results", "export", "--csv", "--output", "runs.csv", "--force").exit_code == 0
    assert Path("runs.csv").read_text().startswith("run_id,started_at,lab,")
    assert [path.name for path in Path().iterdir() if path.name.startswith(".partial")] == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["export"], "no format; accepted: --csv"),
        (["export", "--csv", "--output", ""], "--output is ''; accepted: a file in a folder that exists"),
        (["export", "--csv", "--output", "no/where.csv"], "--output is no/where.csv; accepted: a file in a folder that exists"),
        (["export", "--csv", "--lab", "04", "latest"], "--lab was given with records; accepted: one or the other"),
        (["report", "--output", "no/where.html"], "accepted: a file in a folder that exists"),
        (["report", "--output", "results"], "--output is results; accepted: a file in a folder"),
        (["compare", "04"], "missing argument"),
        (["nope"], "no command 'nope'; accepted: list, show, compare, export, report"),
    ],
)
def test_bad_usage_is_one_line(kept, arguments, message):
    done = kept("results", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_a_report_replaces_a_report_and_nothing_else(kept):
    assert kept("results", "report").exit_code == 0
    assert kept("results", "report", "--lab", "04").exit_code == 0
    assert Path("report.html").read_text(encoding="utf-8").count("<section ") == 1
    assert kept("results", "report", "04", "04~0", "2a2a").exit_code == 0
    assert Path("report.html").read_text(encoding="utf-8").count("<section ") == 1
    Path("page.html").write_text("<!doctype html>mine")
    refused = kept("results", "report", "--output", "page.html")
    assert refused.exit_code == 2 and "page.html is no report of labcli and would be lost" in refused.stderr
    assert Path("page.html").read_text() == "<!doctype html>mine"


def test_a_report_has_the_latest_record_of_each_lab_even_if_it_was_interrupted(kept, record):
    ResultsStore("results").save(replace(record, run_id="f" * 32, status="interrupted", started_at="2027-01-01T00:00:00.000Z"))
    assert kept("results", "report").exit_code == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert re.findall(r"<dd>([0-9a-f]{32}) in", page) == ["f" * 32, "3a" * 16]


def test_the_list_opens_no_more_files_than_it_shows(kept, monkeypatch):
    opened = []
    load = ResultsStore.load
    monkeypatch.setattr(ResultsStore, "load", lambda store, path: opened.append(path) or load(store, path))
    kept("results", "list", "--limit", "2")
    assert len(opened) == 2


def test_the_folder_of_results_comes_from_the_environment_as_with_run_lab(kept, monkeypatch, tmp_path):
    os.rename("results", "elsewhere")
    monkeypatch.setenv("LABCLI_RESULTS_DIR", "elsewhere")
    assert "0a0a0a0a" in kept("results").stdout


def test_the_latest_of_two_runs_of_one_second_is_the_one_that_started_later(labcli_command, record):
    store = ResultsStore("results")
    for lab, milliseconds, machine in (("b", "900", "a"), ("a", "950", "a"), ("b", "100", "z"), ("a", "001", "z")):
        store.save(
            replace(
                record,
                run_id=f"{milliseconds}f",
                started_at=f"2026-03-01T14:25:01.{milliseconds}Z",
                environment={**record.environment, "machine": machine},
                lab={"number": None, "name": lab, "question": "?"},
            )
        )
    found = json.loads(labcli_command("results", "list", "--json").stdout)
    assert [one["run_id"] for one in found] == ["950f", "900f", "100f", "001f"]
    assert json.loads(labcli_command("results", "show", "latest~1", "--json").stdout)["run_id"] == "900f"
    assert json.loads(labcli_command("results", "show", "b", "--json").stdout)["run_id"] == "900f"


def test_records_of_one_name_in_two_folders_are_told_apart_by_the_folder(labcli_command, record):
    for number, name in enumerate(("one", "two")):
        lab = {"number": number + 1, "name": name, "question": "?"}
        ResultsStore("results").save(replace(record, run_id=f"{number}" * 32, lab=lab))
    refused = labcli_command("results", "show", "20260301T142501Z_1f0c9a3e_4b825dc6")
    assert refused.exit_code == 2 and "names 2 records" in refused.stderr
    first = re.search(r"more letters: (\S+), (\S+)\n", refused.stderr)[1]
    assert first == "02-two/20260301T142501Z_1f0c9a3e_4b825dc6"
    for name in (first, f"{first}.json", "02-two/2026"):
        assert json.loads(labcli_command("results", "show", name, "--json").stdout)["run_id"] == "1" * 32


def test_a_text_that_utf_8_cannot_hold_is_shown_and_comes_out_of_the_json_as_it_was(labcli_command, record):
    ResultsStore("results").save(replace(record, findings=("half \ud800 a pair",)))
    done = labcli_command("results", "show", "latest", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["findings"] == ["half \ud800 a pair"]
    assert "half \ufffd a pair" in labcli_command("results", "show", "latest").stdout


@pytest.mark.parametrize(
    "command", [["show", "04", "--json"], ["list", "--json"], ["export", "--csv"], ["compare", "04~1", "04", "--json"]]
)
def test_a_closed_stdout_is_one_line_on_stderr(kept, command, monkeypatch):
    monkeypatch.setattr("labcli.utf8_output.sys", type("Closed", (), {"stdout": None}))
    done = kept("results", *command)
    assert (done.exit_code, done.stderr) == (1, "labcli: stdout: it is closed\n")


def test_a_pipe_among_the_records_or_as_output_is_not_waited_for(kept):
    os.mkfifo("results/04-prefix-cache-hit-rate/20290101T000000Z_1f0c9a3e_4b825dc6.json")
    done = kept("results", "list")
    assert done.exit_code == 0 and "is left out: not a regular file" in done.stderr
    os.mkfifo("pipe")
    for command in (["report"], ["export", "--csv"], ["export", "--csv", "--force"]):
        refused = kept("results", *command, "--output", "pipe")
        assert refused.exit_code == 2 and "--output is pipe, which is no regular file" in refused.stderr
    assert Path("pipe").is_fifo()


@pytest.mark.parametrize("exists", [False, True])
def test_what_a_link_points_to_is_written_and_the_link_stays(kept, exists):
    Path("elsewhere").mkdir()
    if exists:
        Path("elsewhere/runs.csv").write_text("old")
    Path("link.csv").symlink_to("elsewhere/runs.csv")
    done = kept("results", "export", "--csv", "--output", "link.csv", *(["--force"] if exists else []))
    assert (done.exit_code, done.stdout) == (0, "4 records in link.csv\n")
    assert Path("link.csv").is_symlink() and Path("elsewhere/runs.csv").read_text().startswith("run_id,")


@pytest.mark.parametrize("command", [["list", "--limit", "9"], ["show", "04"], ["show", "04~2"], ["compare", "04~2", "04"]])
def test_nothing_of_a_record_is_obeyed_by_a_terminal(labcli_command, record, command):
    evil = "\x1b[31mred\x9b2J\x07\u202etxt"
    measurement = replace(record.measurements[0], name=evil, unit=evil, group=evil, row=evil, note=evil, key=True)
    hostile = replace(
        record,
        run_id=f"\x1b{evil}", started_at=evil, cache_state=evil, findings=(evil,), conclusion=evil, error=evil,
        environment={"machine": evil, "commit": evil, "os": evil}, lab_config={evil: evil}, target={"kind": evil},
        lab={**record.lab, "question": evil}, measurements=(replace(measurement, predicted=Prediction(2000, evil)),),
    )  # fmt: skip
    for number in range(3):
        changed = replace(hostile, run_id=f"{number}{evil}", sources={evil: str(number)}, lab_config={evil: f"{number}{evil}"})
        other = replace(changed.measurements[0], samples=(2000 + number,))
        text = replace(changed, measurements=(other,)).to_json()
        path = Path(f"res\x1b[31m/04-prefix-cache-hit-rate/2026030{number + 1}T000000Z_a_b.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (path.parent / "20270101T000000Z_\x1b[31m_b.json").write_text('{"schema_version": "\\u001b[31m"}')
    done = labcli_command("results", *command, "--results-dir", "res\x1b[31m")
    assert done.exit_code == 0 and "\ufffd[31m" in done.stdout
    assert not re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", done.stdout + done.stderr)


def test_options_may_stand_before_the_command_they_belong_to(kept):
    for arguments in (
        ["--results-dir", "results", "show", "04", "--json"], ["--json", "--results-dir=results", "show", "04"],
    ):  # fmt: skip
        done = kept("results", *arguments)
        assert done.exit_code == 0 and json.loads(done.stdout)["run_id"].startswith("2a2a")
    assert kept("results", "--lab", "04", "--limit", "1").stdout.count("prefix-cache-hit-rate") == 1


@pytest.mark.parametrize("width", ["30", "40", "60", "69"])
def test_a_narrow_list_has_lines_instead_of_columns_and_cuts_no_word(kept, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    lines = kept("results", "list").stdout.splitlines()
    assert max(map(len, lines)) <= int(width) and len(lines) <= 4 * 6
    assert "  04 prefix-cache-hit-rate" in lines and "2a2a2a2a  2026-03-03 14:25" in lines
    assert lines == [line.rstrip() for line in lines]


def test_what_is_shown_has_no_blanks_at_the_end_of_a_line(kept):
    for command in (["list"], ["show", "04"], ["show", "04~2"], ["compare", "04~2", "04"]):
        lines = kept("results", *command).stdout.splitlines()
        assert lines == [line.rstrip() for line in lines]


def test_the_help_tells_each_command_in_a_whole_sentence(labcli_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert "..." not in labcli_command("results", "--help").stdout.partition("Commands:")[2]
