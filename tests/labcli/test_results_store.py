"""The store writes a record whole, under a name of its own, and never over another."""

import errno
import os
from contextlib import contextmanager
from dataclasses import replace

import pytest

from labcli.results_store import ResultsStore


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
