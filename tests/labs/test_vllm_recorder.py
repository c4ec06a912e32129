"""vLLM's manager and scheduler in another interpreter: the protocol with a stand-in, and the real ones where LABCLI_VLLM_PYTHON names them."""

from __future__ import annotations

import os
import sys

import pytest

from labs.conformance.golden import read_scenarios
from labs.conformance.random_scenarios import POOL_SIZES, random_manager_scenario, random_scheduler_scenario
from labs.conformance.verification import verify_scenarios
from labs.peers import vllm_recorder
from labs.peers.vllm_recorder import VllmRecorder
from labs.peers.worker_process import PeerEnded, PeerError, PeerUnavailable

needs_vllm = pytest.mark.skipif("LABCLI_VLLM_PYTHON" not in os.environ, reason="LABCLI_VLLM_PYTHON names no Python with vLLM")
# Not always told in a recording, but always by the worker.
EXTRA = {"manager": ("expect", "state"), "scheduler": ("steps", "queue")}

STAND_IN = """
import json, sys
print(json.dumps({"version": "0.0.stub"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    config = asked["scenario"]["config"]
    answer = {"error": "ValueError: not this one"} if "bad" in config else {"expect": [asked], "final": {}}
    text = json.dumps(answer) + "\\n"
    if "dies" in config:
        sys.stderr.write("Traceback\\nMemoryError: no room\\n")
        sys.stdout.write(text[: config["dies"]])
        break
    sys.stdout.write(text)
    sys.stdout.flush()
    if "deaf" in config:
        import time
        time.sleep(60)
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    worker = tmp_path / "worker.py"
    worker.write_text(STAND_IN)
    monkeypatch.setattr(vllm_recorder, "_WORKER", worker)


def test_a_scenario_is_asked_without_its_answers_and_completed(stub):
    scenario = {"name": "one", "config": {}, "ops": [], "expect": ["old"], "final": "old"}
    with VllmRecorder(sys.executable) as recorder:
        assert recorder.version == "0.0.stub"
        completed = recorder.record("manager", scenario)
    question = {"kind": "manager", "scenario": {"config": {}, "ops": []}}
    assert completed == {"name": "one", "config": {}, "ops": [], "expect": [question], "final": {}}
    assert scenario["expect"] == ["old"]


def test_equal_texts_of_a_scenario_are_objects_of_their_own(stub):
    text = "the same"
    with VllmRecorder() as recorder:
        (op,) = recorder.record("manager", {"config": {}, "ops": [{"salt": text, "lora": [text, "/path"]}]})["ops"]
    assert op["salt"] == op["lora"][0] and op["salt"] is not op["lora"][0]


def test_a_scenario_that_is_refused_leaves_the_worker_alive(stub):
    with VllmRecorder() as recorder:
        with pytest.raises(PeerError, match="not this one"):
            recorder.record("manager", {"config": {"bad": 1}, "ops": []})
        assert recorder.record("manager", {"config": {}, "ops": []})["final"] == {}


@pytest.mark.parametrize("num_characters", [0, 9])
def test_a_worker_that_dies_over_a_scenario_leaves_its_last_words(stub, num_characters):
    with VllmRecorder() as recorder:
        with pytest.raises(PeerEnded, match="^vLLM's process ended: MemoryError: no room$"):
            recorder.record("manager", {"config": {"dies": num_characters}, "ops": []})
        with pytest.raises(PeerEnded, match="^vLLM's process ended"):
            recorder.record("manager", {"config": {}, "ops": []})


def test_a_worker_that_hangs_before_it_has_read_a_long_scenario_is_ended_in_time(stub, monkeypatch):
    with VllmRecorder() as recorder:
        recorder.record("manager", {"config": {"deaf": 1}, "ops": []})
        monkeypatch.setattr(vllm_recorder, "ANSWER_TIMEOUT_S", 0.2)
        with pytest.raises(PeerEnded, match="did not answer within 0 s"):
            recorder.record("manager", {"config": {}, "ops": ["more than a pipe holds" * 50_000]})
        assert recorder._process.poll() is not None


def test_an_interpreter_without_vllm_is_refused():
    with pytest.raises(PeerUnavailable, match="cannot be run.*accepted: --vllm-python"):
        VllmRecorder("/nope/python")


@pytest.fixture(scope="module")
def vllm():
    with VllmRecorder(os.environ["LABCLI_VLLM_PYTHON"]) as recorder:
        yield recorder


@needs_vllm
@pytest.mark.parametrize("kind", EXTRA)
def test_the_real_vllm_does_again_what_was_recorded(vllm, kind):
    part, extra = EXTRA[kind]
    for recorded in read_scenarios(kind):
        done = vllm.record(kind, recorded)
        for one, again in zip(recorded[part], done[part]):
            if extra not in one:
                del again[extra]
        assert done == recorded, recorded["name"]


@needs_vllm
@pytest.mark.parametrize("num_blocks", POOL_SIZES)
@pytest.mark.parametrize("kind, make", [("manager", random_manager_scenario), ("scheduler", random_scheduler_scenario)])
def test_random_work_is_done_alike_by_the_real_vllm_and_by_ours(vllm, kind, make, num_blocks):
    scenarios = [vllm.record(kind, make(seed, 30, num_blocks)) for seed in range(8)]
    verified = verify_scenarios(kind, scenarios)
    assert verified.differences == ()
    assert verified.num_requests == 240 and verified.num_steps > 500
    if kind == "scheduler":
        assert all(scenario["final"]["drained"] for scenario in scenarios)
