"""Lab 08 on real K/V: what a preempted request finds again gives the outputs of one that was never preempted."""

from __future__ import annotations

from dataclasses import replace

from engine.config import EngineConfig
from labs.lab_08_preemption import LAB
from labs.targets.open_target import open_target_factory
from tests.labs.fake_session import FakeSession


def test_preemption_changes_no_output_of_a_real_model():
    config = EngineConfig(model="synthetic:tiny", dtype="float32", device="cpu")
    session = FakeSession(open_target_factory("engine", config))
    report = LAB.run(session, replace(LAB.quick, pool_tokens=(80,), wait_output_tokens=2))
    assert report.agrees and report.cache_state == "cold" and session.done == session.expected
    found = {one.name: one.samples for one in report.measurements if one.row == "pool for 160"}
    assert found["found"][0] > 0 and found["differ"] == (0,)
    assert all(sample > 0 for sample in found["time"])
