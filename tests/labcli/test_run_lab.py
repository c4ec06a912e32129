"""`labcli run-lab`: every way a run can end has its exit code, its line and its record."""

import json
import signal

import pytest
from typer.testing import CliRunner

RUN_FIELDS = ("run_id", "started_at", "finished_at", "environment")


def only_record(folder):
    (path,) = folder.glob("results/90-stub-lab/*.json")
    return json.loads(path.read_text())


def test_a_run_prints_its_table_and_saves_its_record(labcli_command, tmp_path):
    result = labcli_command("run-lab", "90")
    assert result.exit_code == 0
    assert "18,000  18,000  ✓" in result.stdout
    assert "1 of 1 predictions met exactly" in result.stdout
    assert "\x1b" not in result.stdout
    record = only_record(tmp_path)
    assert record["status"] == "ok"
    assert "results/90-stub-lab/" in result.stdout
    assert record["cache_state"] == "cold"
    assert len(record["sources"]["labs/lab_90_stub_lab.py"]) == 64
    assert len(record["target"]["opened"]) == 1, "the same engine opened twice is told once"
    assert record["measurements"][1]["samples"] == [0.0823, 0.0801, 0.0904]


def test_a_missed_prediction_ends_with_1_and_says_which(labcli_command, tmp_path):
    result = labcli_command("run-lab", "stub", "--set", "ending=disagrees")
    assert result.exit_code == 1
    assert "✗" in result.stdout
    assert result.stderr == (
        "labcli: 1 of 1 predictions were not met; the first: hash cache, shared, hits: "
        "predicted 18,000, measured 17,984\n"
    )
    assert only_record(tmp_path)["status"] == "disagrees"


def test_an_error_in_the_middle_keeps_what_was_measured(labcli_command, tmp_path):
    result = labcli_command("run-lab", "90", "--set", "ending=fails")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("labcli: the stub gave up; accepted: another ending; 1 measurement before that, saved in ")
    assert result.stderr.count("\n") == 1
    record = only_record(tmp_path)
    assert (record["status"], len(record["measurements"])) == ("failed", 1)
    assert record["error"].startswith("TargetError: the stub gave up")


def test_an_error_before_any_measurement_leaves_no_record(labcli_command, tmp_path):
    result = labcli_command("run-lab", "90", "--set", "ending=fails before measuring")
    assert (result.exit_code, result.stderr) == (1, "labcli: the stub gave up; accepted: another ending\n")
    assert not list(tmp_path.glob("results/*/*"))


def test_an_unexpected_error_is_one_line_and_its_text_stays_out_of_the_record(labcli_command, tmp_path):
    result = labcli_command("run-lab", "90", "--set", "ending=breaks")
    assert result.exit_code == 1
    assert result.stderr.startswith("labcli: RuntimeError: first line second line (--debug shows where)")
    assert result.stderr.count("\n") == 1
    assert only_record(tmp_path)["error"] == "RuntimeError"


@pytest.mark.parametrize("place", [0, 1, 4])
def test_debug_shows_the_traceback_wherever_it_stands(labcli_command, place):
    arguments = ["run-lab", "90", "--set", "ending=breaks"]
    arguments.insert(place, "--debug")
    result = labcli_command(*arguments)
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr


def test_an_interrupt_keeps_what_was_measured(labcli_command, tmp_path):
    result = labcli_command("run-lab", "90", "--set", "ending=interrupted")
    assert result.exit_code == 130
    assert result.stderr.startswith("labcli: interrupted after 1 measurement, saved in results/90-stub-lab/")
    record = only_record(tmp_path)
    assert (record["status"], record["error"], len(record["measurements"])) == ("interrupted", None, 1)


def test_ctrl_c_in_a_real_process_keeps_what_was_measured(labcli_process, tmp_path):
    process = labcli_process("run-lab", "90", "--set", "ending=waits", "--target", "sim")
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.startswith("labcli: interrupted after 1 measurement, saved in ")
    assert stderr.count("\n") == 1
    assert only_record(tmp_path)["status"] == "interrupted"


def test_json_is_the_record_and_nothing_else(labcli_process, tmp_path):
    process = labcli_process("run-lab", "90", "--json")
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (0, "")
    assert json.loads(stdout) == only_record(tmp_path)


def test_json_of_an_interrupted_run_is_what_was_measured(labcli_command):
    result = labcli_command("run-lab", "90", "--json", "--set", "ending=interrupted", "--no-save")
    assert result.exit_code == 130
    assert result.stderr == "labcli: interrupted after 1 measurement, not saved\n"
    assert json.loads(result.stdout)["status"] == "interrupted"


def test_two_runs_differ_only_in_what_belongs_to_the_run(labcli_command):
    texts = []
    for _ in range(2):
        content = json.loads(labcli_command("run-lab", "90", "--json", "--no-save").stdout)
        for name in RUN_FIELDS:
            del content[name]
        texts.append(json.dumps(content))
    assert texts[0] == texts[1]


def test_no_save_keeps_nothing(labcli_command, tmp_path):
    result = labcli_command("run-lab", "90", "--no-save")
    assert result.exit_code == 0
    assert "record:" not in result.stdout
    assert not (tmp_path / "results").exists()


def test_the_environment_chooses_the_results_folder_and_the_option_wins(labcli_command, tmp_path, monkeypatch):
    monkeypatch.setenv("LABCLI_RESULTS_DIR", str(tmp_path / "a"))
    labcli_command("run-lab", "90")
    labcli_command("run-lab", "90", "--results-dir", str(tmp_path / "b"))
    assert len(list(tmp_path.glob("a/90-stub-lab/*.json"))) == len(list(tmp_path.glob("b/90-stub-lab/*.json"))) == 1


def test_quick_full_and_set_decide_the_configuration(labcli_command):
    def configuration(*arguments):
        return json.loads(labcli_command("run-lab", "90", "--json", "--no-save", *arguments).stdout)["lab_config"]

    assert configuration()["num_requests"] == 3
    assert configuration("--quick")["num_requests"] == 1
    assert configuration("--full")["num_requests"] == 100
    changed = configuration(
        "--quick", "--set", "block_sizes=32,64", "--set", "label=x", "--set", "greedy=no", "--set", "ratio=1e-3"
    )
    assert changed == {
        "ending": "ok", "num_requests": 1, "block_sizes": [32, 64], "label": "x", "ratio": 0.001, "greedy": False
    }  # fmt: skip


def test_model_dtype_and_device_reach_the_engine(labcli_command):
    result = labcli_command(
        "run-lab", "90", "--json", "--no-save", "--model", "synthetic:tiny", "--dtype", "float32", "--device", "cpu"
    )
    config = json.loads(result.stdout)["target"]["engine_config"]
    assert (config["model"], config["dtype"], config["device"]) == ("synthetic:tiny", "float32", "cpu")


BAD_USAGE = {
    "an unknown lab": (["run-lab", "nope"], "no lab 'nope'; accepted: "),
    "no lab": (["run-lab"], "missing argument 'LAB'; accepted: labcli run-lab"),
    "an unknown command": (["runlab"], "no command 'runlab'; accepted: run-lab, labs, "),
    "an unknown option": (["run-lab", "90", "--fast"], "labcli run-lab has no option --fast; accepted: --target, --set, "),
    "an unknown option of labcli": (["--fast"], "labcli has no option --fast; accepted: --version, --debug, "),
    "an option without its value": (["run-lab", "90", "--target"], "option '--target' requires an argument; accepted: --target"),
    "a value too many": (["run-lab", "90", "91"], "got unexpected extra argument(s) (91); accepted: labcli run-lab"),
    "an unknown field": (
        ["run-lab", "90", "--set", "size=1"],
        "lab 90 has no field 'size'; accepted: ending (text), num_requests (a whole number), "
        "block_sizes (a whole number, or several with commas), label (text or none), ratio (a number), greedy (true or false)",
    ),
    "a value of another type": (["run-lab", "90", "--set", "num_requests=many"], "num_requests is 'many'; accepted: a whole number"),
    "a bad value in a list": (["run-lab", "90", "--set", "block_sizes=8,x"], "block_sizes is '8,x'; accepted: a whole number, or"),
    "a value out of range": (["run-lab", "90", "--set", "num_requests=0"], "num_requests is 0; accepted: a whole number from 1"),
    "no assignment": (["run-lab", "90", "--set", "num_requests"], "--set 'num_requests' is no assignment; accepted: --set field=value"),
    "both sizes": (["run-lab", "90", "--quick", "--full"], "--quick and --full ask for different sizes; accepted: "),
    "an unknown target": (["run-lab", "90", "--target", "gpu"], "no target 'gpu'; accepted: engine, sim or a server's URL"),
    "a password in what is no address": (["run-lab", "90", "--target", "https:/u:pepper@host"], "the address has no scheme; accepted: http"),
    "a dtype out of range": (["run-lab", "90", "--dtype", "int3"], "dtype is 'int3'; accepted: auto, bfloat16, float16, float32"),
}


@pytest.mark.parametrize("arguments, line", BAD_USAGE.values(), ids=BAD_USAGE.keys())
def test_bad_usage_is_one_line_on_stderr_and_runs_nothing(labcli_command, tmp_path, arguments, line):
    result = labcli_command(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"labcli: {line}")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "https://example.org/v1"])
def test_a_lab_that_makes_no_sense_on_a_server_names_those_that_do(stub_folder, tmp_path, monkeypatch, address):
    from labcli.main import app

    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run-lab", "90", "--target", address], prog_name="labcli")
    assert result.exit_code == 2
    expected = "labcli: lab 90 does not run on a server; accepted: labs 02, 03, 04, 05, 06, 10, 13; this one with --target engine, sim\n"
    assert result.stderr == expected


@pytest.mark.parametrize("folder", ["a_file", "a_file/below", "/proc/labcli-results"])
def test_a_results_folder_that_cannot_be_written_is_found_before_the_run(labcli_command, tmp_path, folder):
    (tmp_path / "a_file").write_text("")
    result = labcli_command("run-lab", "90", "--results-dir", folder, "--set", "ending=breaks")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"labcli: {folder}: ")
    assert result.stderr.endswith("accepted: --results-dir with a folder that can be written, or --no-save\n")


def test_the_list_of_labs_holds_each_question(labcli_command):
    result = labcli_command("labs")
    assert result.exit_code == 0
    assert "90   stub-lab" in result.stdout and "How does a lab end?" in result.stdout


def test_labcli_alone_shows_its_help(labcli_command):
    result = labcli_command()
    assert result.exit_code == 0
    assert "run-lab" in result.stdout


def test_the_version_is_shown(labcli_command):
    result = labcli_command("--version")
    assert (result.exit_code, result.stdout.split()[0]) == (0, "labcli")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_labs(labcli_process, monkeypatch, shell):
    monkeypatch.setenv("_LABCLI_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", "labcli run-lab stub")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "labcli run-lab stub")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    stdout, _ = labcli_process().communicate(timeout=60)
    assert "stub-lab" in stdout


def test_a_server_s_password_and_key_are_never_shown(stub_folder, tmp_path, monkeypatch):
    from labcli.main import app

    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run-lab", "04", "--target", "http://me:pepper@127.0.0.1:1/v1?key=pepper"])
    assert result.exit_code == 1 and "nothing answers at http://127.0.0.1:1;" in result.stderr and "pepper" not in result.stderr
    assert list(tmp_path.iterdir()) == []  # what is refused leaves no folder behind


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--gpu", "H200"], "--gpu means nothing with --target engine"), (["--target", "sim", "--dtype", "float32"], "--dtype means nothing")],
)
def test_an_option_that_the_target_would_ignore_is_refused(stub_folder, arguments, named):
    from labcli.main import app

    result = CliRunner().invoke(app, ["run-lab", "90", "--no-save", *arguments])
    assert result.exit_code == 2 and named in result.stderr and result.stderr.count("\n") == 1


def test_a_run_that_cannot_be_saved_is_shown_all_the_same(stub_folder, tmp_path, monkeypatch):
    from labcli.main import app
    from labcli.results_store import ResultsStore

    def full_disk(self, *_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ResultsStore, "_save", full_disk)
    result = CliRunner().invoke(app, ["run-lab", "90", "--target", "sim", "--results-dir", str(tmp_path)])
    assert result.exit_code == 1 and "No space left on device; accepted" in result.stderr
    assert "It works." in result.stdout and "18,000" in result.stdout
