import json
import os
import threading
import time

import pytest

from engine.errors import ConfigError
from engine.model import model_cache
from engine.model.model_cache import MANIFEST, converted_folder, is_complete


@pytest.fixture
def gguf(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" * 10)
    return path


@pytest.fixture
def conversions(monkeypatch):
    """Counts conversions; each writes two small files."""
    calls = []

    def convert(gguf_path, folder, progress):
        calls.append(folder)
        progress("unpacking the weights", 1, 1)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"w" * 1000)

    monkeypatch.setattr(model_cache, "_convert", convert)
    return calls


def test_a_model_is_converted_once(gguf, tmp_path, conversions):
    reports = []
    first = converted_folder(gguf, tmp_path / "cache", lambda *report: reports.append(report))
    second = converted_folder(gguf, tmp_path / "cache", lambda *report: pytest.fail("nothing to convert"))
    assert first == second and len(conversions) == 1 and reports
    assert os.listdir(first.parent) == [first.name]


def test_another_file_of_the_same_name_is_converted_anew(gguf, tmp_path, conversions):
    first = converted_folder(gguf, tmp_path / "cache")
    gguf.write_bytes(b"GGUF" * 11)
    assert converted_folder(gguf, tmp_path / "cache") != first and len(conversions) == 2


@pytest.mark.parametrize("damage", ["no manifest", "torn manifest", "short file", "missing file"])
def test_a_damaged_folder_is_never_used(gguf, tmp_path, conversions, damage):
    folder = converted_folder(gguf, tmp_path / "cache")
    weights = folder / "model.safetensors"
    if damage == "no manifest":
        (folder / MANIFEST).unlink()
    elif damage == "torn manifest":
        (folder / MANIFEST).write_text('{"format": 1, "fil')
    elif damage == "short file":
        weights.write_bytes(b"w" * 999)
    else:
        weights.unlink()
    assert not is_complete(folder)
    assert converted_folder(gguf, tmp_path / "cache") == folder
    assert is_complete(folder) and len(conversions) == 2
    assert os.listdir(folder.parent) == [folder.name]


def test_an_interrupted_conversion_leaves_nothing_behind(gguf, tmp_path, monkeypatch):
    def interrupted(gguf_path, folder, progress):
        (folder / "model.safetensors").write_bytes(b"w")
        raise KeyboardInterrupt

    monkeypatch.setattr(model_cache, "_convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        converted_folder(gguf, tmp_path / "cache")
    assert os.listdir(tmp_path / "cache" / "models") == []


def test_two_conversions_at_once_end_with_one_complete_folder(gguf, tmp_path, conversions, monkeypatch):
    both_started = threading.Barrier(2)
    write_files = model_cache._convert

    def convert(*args):
        both_started.wait(timeout=10)
        write_files(*args)

    monkeypatch.setattr(model_cache, "_convert", convert)
    folders = []
    threads = [threading.Thread(target=lambda: folders.append(converted_folder(gguf, tmp_path / "cache"))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conversions) == 2 and len(set(folders)) == 1 and is_complete(folders[0])
    assert os.listdir(folders[0].parent) == [folders[0].name]


def test_what_a_killed_conversion_left_long_ago_is_removed(gguf, tmp_path, conversions):
    folder = converted_folder(gguf, tmp_path / "cache")
    (folder / MANIFEST).unlink()
    old, young = (folder.parent / f"{folder.name}.tmp-{age}" for age in ("old", "young"))
    old.mkdir()
    young.mkdir()
    os.utime(old, (time.time() - 10_000,) * 2)
    converted_folder(gguf, tmp_path / "cache")
    assert not old.exists() and young.exists()


def test_a_cache_folder_that_cannot_be_written_is_named(gguf, tmp_path, conversions):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cache_dir.*file"):
        converted_folder(gguf, tmp_path / "file")


def test_the_manifest_names_every_file_with_its_size(gguf, tmp_path, conversions):
    folder = converted_folder(gguf, tmp_path / "cache")
    assert json.loads((folder / MANIFEST).read_text())["files"] == {"config.json": 2, "model.safetensors": 1000}


def test_unpacking_reports_each_tensor_and_prints_nothing(capfd):
    import transformers.modeling_gguf_pytorch_utils as gguf_loader

    reports = []
    with model_cache._tensor_progress(lambda done, total: reports.append((done, total))):
        assert list(gguf_loader.tqdm(["a", "b"], desc="Converting")) == ["a", "b"]
    assert reports == [(0, 2), (1, 2), (2, 2)]
    assert capfd.readouterr() == ("", "")


def test_the_file_is_parsed_once_for_tokenizer_config_and_weights(monkeypatch):
    import gguf

    parsed = []
    monkeypatch.setattr(gguf, "GGUFReader", lambda path: parsed.append(path) or object())
    original = gguf.GGUFReader
    with model_cache._file_parsed_once():
        assert gguf.GGUFReader("a.gguf") is gguf.GGUFReader("a.gguf")
    assert parsed == ["a.gguf"] and gguf.GGUFReader is original
