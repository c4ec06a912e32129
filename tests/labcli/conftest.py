"""A stub lab, number 90, that ends in each way a lab can; labcli as a person calls it; a record."""

import importlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

import labs
from labcli.record import ResultRecord
from labs.protocol import Measurement, Prediction
from labs.targets.base import TargetInfo

ROOT = Path(__file__).resolve().parents[2]

STUB_LAB = '''
"""Lab 90: how does a lab end?"""
import time
from dataclasses import dataclass

from labs.protocol import Lab, LabReport, Measurement, Prediction
from labs.targets.base import TargetError


@dataclass(frozen=True)
class Config:
    ending: str = "ok"
    num_requests: int = 3
    block_sizes: tuple[int, ...] = (8, 16)
    label: str | None = None
    ratio: float = 0.5
    greedy: bool = True

    def __post_init__(self):
        if self.num_requests < 1:
            raise ValueError(f"num_requests is {self.num_requests}; accepted: a whole number from 1")


def run(session, config):
    session.open_target(prefix_cache="hash")
    session.open_target(prefix_cache="hash")
    session.expect(2)
    session.cold("cold")
    if config.ending == "fails before measuring":
        raise TargetError("the stub gave up; accepted: another ending")
    hits = Measurement("hits", "tokens", (18_000 if config.ending != "disagrees" else 17_984,), "hash cache", "shared",
                       Prediction(18_000, "9·16·⌊2,000/16⌋"), {"block_size": 16})
    session.record(hits)
    session.progress("shared")
    if config.ending == "fails":
        raise TargetError("the stub gave up; accepted: another ending")
    if config.ending == "breaks":
        raise RuntimeError("first line\\nsecond line")
    if config.ending == "interrupted":
        raise KeyboardInterrupt
    if config.ending == "waits":
        print("waiting", flush=True)
        time.sleep(60)
    ttft = Measurement("ttft_cold", "s", (0.0823, 0.0801, 0.0904), "hash cache", "shared")
    session.record(ttft)
    session.progress("times")
    return LabReport((hits, ttft), "cold", ("[salt] the ids are equal",), "It works.", {"num": config.num_requests})


LAB = Lab(90, "stub-lab", "How does a lab end?", Config, Config(num_requests=1), run, full=Config(num_requests=100))
'''


@pytest.fixture
def stub_folder(tmp_path_factory, monkeypatch):
    """The folder of the stub lab, part of the catalog while the test runs."""
    folder = tmp_path_factory.mktemp("stub_labs")
    (folder / "lab_90_stub_lab.py").write_text(STUB_LAB, encoding="utf-8")
    monkeypatch.setattr(labs, "__path__", [*labs.__path__, str(folder)])
    sys.modules.pop("labs.lab_90_stub_lab", None)
    importlib.invalidate_caches()
    yield folder
    sys.modules.pop("labs.lab_90_stub_lab", None)


class _StubTarget:
    info = TargetInfo("sim", "hash", 16, 2048, 32_000, 4096, "stub-model", "bfloat16", "none", {"block_size": 16})


@dataclass
class _OpenStub:
    kind: str
    served = None
    isolation = None

    def notes(self):
        return ()

    def __call__(self, **engine_fields):
        return _StubTarget()


@pytest.fixture
def stub_target(monkeypatch):
    """Every target opens as a stub that answers nothing."""
    import labcli.lab_run

    monkeypatch.setattr(labcli.lab_run, "open_target_factory", lambda target, config, **rest: _OpenStub(target))


@pytest.fixture
def labcli_command(stub_folder, stub_target, tmp_path, monkeypatch):
    """labcli in this process, in an empty folder: a call gives exit_code, stdout, stderr."""
    from labcli.main import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("LABCLI_RESULTS_DIR", raising=False)
    return lambda *arguments: CliRunner().invoke(app, list(arguments), prog_name="labcli")


@pytest.fixture
def labcli_process(stub_folder, tmp_path):
    """labcli in a process of its own, with the stub lab and the stub target, started in an empty folder."""
    script = (
        "import sys, labs\n"
        f"labs.__path__.append({str(stub_folder)!r})\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import conftest, labcli.lab_run\n"
        "labcli.lab_run.open_target_factory = lambda target, config, **rest: conftest._OpenStub(target)\n"
        "from labcli.main import main\n"
        "main()\n"
    )

    def start(*arguments, **settings):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", script, *arguments]
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return subprocess.Popen(command, cwd=tmp_path, env=environment, **{**pipes, **settings})

    return start


@pytest.fixture
def record():
    """A small record of lab 04."""
    return ResultRecord(
        run_id="0" * 32,
        started_at="2026-03-01T14:25:01.042Z",
        finished_at="2026-03-01T14:25:02.000Z",
        environment={"machine": "1f0c9a3e", "commit": "4b825dc642cb6eb9a060e54bf8d69288fbee4904"},
        lab={"number": 4, "name": "prefix-cache-hit-rate", "question": "Why?"},
        sources={"labs/lab_04_prefix_cache_hit_rate.py": "ab"},
        lab_config={"block_sizes": [8, 16]},
        target={"kind": "sim"},
        status="ok",
        cache_state="cold",
        measurements=(
            Measurement("hits", "tokens", (2000,), "hash", "shared", Prediction(2000, "⌊2,000/16⌋·16"), {"k": [1]}),
            Measurement("ttft", "s", (0.25, 0.5)),
        ),
        findings=("one",),
        details={"hashes": ["ab", "cd"]},
    )
