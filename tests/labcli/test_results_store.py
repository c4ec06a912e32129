"""The store writes a record whole, under a name of its own, and never over another."""

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from labcli import results_store
from labcli.fault import UsageFault
from labcli.results_store import ResultsStore

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path):
    return ResultsStore(tmp_path / "results")


def test_a_record_lies_in_its_labs_folder_under_time_machine_and_commit(store, record):
    path = store.save(record)
    assert path == store.folder / "04-prefix-cache-hit-rate" / "20260301T142501Z_1f0c9a3e_4b825dc6.json"
    assert store.load(path) == record


def test_a_bench_has_a_folder_of_its_own_and_code_outside_a_checkout_is_marked(store, record):
    bench = replace(record, lab={"number": None, "name": "hash-bench", "question": "?"}, environment={})
    assert store.save(bench) == store.folder / "hash-bench" / "20260301T142501Z_unknown_nocommit.json"


def test_records_of_one_second_all_stay(store, record):
    paths = [store.save(replace(record, conclusion=str(number))) for number in range(3)]
    assert [path.stem.removeprefix("20260301T142501Z_1f0c9a3e_4b825dc6") for path in paths] == ["", "_2", "_3"]
    assert [store.load(path).conclusion for path in paths] == ["0", "1", "2"]


def test_records_of_one_second_all_stay_without_hard_links(store, record, monkeypatch):
    def no_links(*_):
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    assert len({store.save(record) for _ in range(3)}) == 3
    assert len(store.find()) == 3


def test_a_write_that_fails_leaves_nothing_behind(store, record, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        store.save(record)
    assert [path for path in store.folder.rglob("*") if path.is_file()] == []


def test_records_are_found_newest_first(store, record):
    old = store.save(record)
    new = store.save(replace(record, started_at="2027-01-01T00:00:00.000Z"))
    other = store.save(replace(record, lab={"number": 2, "name": "other", "question": "?"}))
    assert store.find("04-prefix-cache-hit-rate") == [new, old]
    assert set(store.find()) == {old, new, other}


def test_the_check_makes_the_folder_and_leaves_no_file(store):
    store.check_writable("90-stub-lab")
    assert list(store.folder.iterdir()) == []


@contextmanager
def without_root():
    """As an ordinary user: root may write everywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_without_write_permission_is_named(store):
    store.folder.mkdir()
    store.folder.chmod(0o500)
    with without_root(), pytest.raises(PermissionError, match="accepted: --results-dir") as refused:
        store.check_writable("90-stub-lab")
    assert str(store.folder) in str(refused.value)


def test_a_lab_folder_that_is_a_file_is_named_before_the_run(store):
    store.folder.mkdir(parents=True, exist_ok=True)
    (store.folder / "90-stub-lab").write_text("")
    with pytest.raises(OSError, match="not a folder; accepted: --results-dir"):
        store.check_writable("90-stub-lab")


SAVE_MANY = """
import sys
from pathlib import Path
from labcli.record import ResultRecord
from labcli.results_store import ResultsStore
record = ResultRecord.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
store = ResultsStore(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[3])):
    store.save(record)
"""


def start_saving(record, folder, count, tmp_path, before=""):
    """A process that saves one record `count` times when it is told to; `before`: code it runs first."""
    source = tmp_path / "source.json"
    source.write_text(record.to_json(), encoding="utf-8")
    command = [sys.executable, "-c", before + SAVE_MANY, str(source), str(folder), str(count)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert process.stdout.readline() == b"ready\n"
    return process


def test_many_processes_that_save_in_one_second_overwrite_nothing(store, record, tmp_path):
    processes = [start_saving(record, store.folder, 25, tmp_path) for _ in range(6)]
    for process in processes:
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    paths = store.find()
    assert len(paths) == 150
    assert all(store.load(path) == record for path in paths)


def test_a_process_killed_while_it_saves_leaves_whole_records_or_none(store, record, tmp_path):
    large = replace(record, details={"hashes": ["ab" * 32] * 4_000})
    for kill_after_s in (0.0, 0.004, 0.011, 0.023, 0.05, 0.08):
        process = start_saving(large, store.folder, 10_000, tmp_path)
        process.stdin.write(b"go\n")
        process.stdin.flush()
        time.sleep(kill_after_s)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert all(store.load(path) == large for path in store.find())


DIE_IN_THE_MIDDLE_OF_A_WRITE = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # ends the process when a file would grow beyond this:
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
"""


def test_a_process_that_dies_half_way_through_a_write_leaves_no_record(store, record, tmp_path):
    large = replace(record, details={"hashes": ["ab" * 32] * 4_000})
    process = start_saving(large, store.folder, 1, tmp_path, DIE_IN_THE_MIDDLE_OF_A_WRITE)
    process.communicate(b"go\n")
    assert process.returncode == -signal.SIGXFSZ
    assert [path.stat().st_size for path in store.folder.rglob("*.json")] == [20_000]  # it got that far
    assert store.find() == []


def test_what_a_killed_process_left_is_no_record_and_is_removed_a_day_later(store, record):
    store.save(record)
    leftovers = [store.folder / record.label / f".partial-{name}.json" for name in ("old", "new")]
    for path in leftovers:
        path.write_text('{"schema_')
    os.utime(leftovers[0], (0, 0))
    assert len(store.find()) == 1
    store.save(record)
    assert [path.exists() for path in leftovers] == [False, True]


def test_records_of_one_second_are_found_in_the_order_they_were_saved(store, record):
    saved = [store.save(replace(record, conclusion=str(number))) for number in range(12)]
    assert store.find() == saved[::-1]


def test_a_file_that_holds_no_record_is_named_and_the_others_are_read(store, record):
    good = store.save(record)
    damaged = good.with_name("20270101T000000Z_x_y.json")
    damaged.write_text(record.to_json()[:700], encoding="utf-8")
    not_text = good.with_name("20270102T000000Z_x_y.json")
    not_text.write_bytes(b"\xff\xfe\x00")
    good.with_name("20270103T000000Z_x_y.json").mkdir()
    heard = []
    stored = list(store.read(store.find(), lambda path, reason: heard.append((path.name[:8], reason.partition(":")[0]))))
    assert [one.path for one in stored] == [good]
    assert heard == [("20270103", "Is a directory"), ("20270102", "not a text in UTF-8"), ("20270101", "not JSON")]


def test_a_folder_without_a_name_is_refused_before_anything_is_written():
    for name in ("", "  "):
        with pytest.raises(UsageFault, match="--results-dir is .*; accepted: a folder"):
            ResultsStore(name)


def test_files_are_opened_only_for_runs_that_share_a_second(store, record, monkeypatch):
    for day in range(1, 6):
        store.save(replace(record, started_at=f"2026-03-0{day}T00:00:00.000Z"))
    opened = []
    monkeypatch.setattr(results_store, "head_of", lambda path: opened.append(path) or ("", ""))
    store.find()
    assert opened == []
    store.save(replace(record, started_at="2026-03-05T00:00:00.500Z"))
    store.find()
    assert len(opened) == 2
