"""The environment names the machine's kind and the code's version, and nobody."""

import getpass
import json
import platform
import subprocess
import sys
from pathlib import Path

from labcli import environment


def test_it_is_json_and_names_neither_user_nor_host():
    text = json.dumps(environment.read_environment())
    facts = json.loads(text)
    assert facts["python"] == platform.python_version()
    assert facts["num_cpus"] >= 1
    assert {"torch", "transformers", "labcli"} <= facts["packages"].keys()
    assert str(Path.home()) not in text
    for name in (getpass.getuser(), platform.node()):
        # Short names ("root", "vm") may be part of another word; longer ones may not be there at all.
        assert len(name) < 5 or name not in text


def test_the_machine_is_the_same_each_time():
    assert environment.machine_id() == environment.machine_id()
    assert len(environment.machine_id()) == 8


def test_the_gpu_is_asked_only_of_a_torch_that_is_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert environment.read_environment()["gpu"] is None
    assert "torch" not in sys.modules


def test_commit_and_changes_are_those_of_the_checkout_the_code_lies_in(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True)

    (tmp_path / "labcli").mkdir()
    (tmp_path / "labcli" / "environment.py").write_text("")
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "labcli" / "environment.py"))
    assert environment.read_commit() == (None, None)
    git("init")
    assert environment.read_commit() == (None, True)
    git("add", ".")
    git("commit", "-m", "first")
    commit, dirty = environment.read_commit()
    assert len(commit) == 40 and dirty is False
    (tmp_path / "new").write_text("")
    assert environment.read_commit() == (commit, True)
    # The same code installed deeper inside that checkout is not that checkout's code.
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "lib" / "labcli" / "environment.py"))
    (tmp_path / "lib" / "labcli").mkdir(parents=True)
    assert environment.read_commit() == (None, None)


def test_the_home_folder_is_not_told(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    value = {"model": "/home/somebody/models/x", "list": ["/home/somebody"], "number": 1}
    assert environment.without_home(value) == {"model": "~/models/x", "list": ["~"], "number": 1}
