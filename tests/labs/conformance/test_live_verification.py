"""Live verification: counts, the seed, and a peer that does something otherwise."""

from __future__ import annotations

import copy

import pytest

from labs.conformance.live_verification import LiveVerification
from labs.conformance.manager_replay import ManagerReplay
from labs.conformance.scheduler_replay import SchedulerReplay


class OwnRecorder:
    """Answers as our own engine does: what is compared is then equal by construction, and only counting is tested."""

    version = "ours"

    def __init__(self, spoil=None):
        self.names: list[str] = []
        self.spoil = spoil  # changes what was recorded, or fails

    def record(self, kind, scenario):
        self.names.append(scenario["name"])
        scenario = copy.deepcopy(scenario)
        if kind == "manager":
            replay = ManagerReplay({**scenario, "expect": [{} for _ in scenario["ops"]], "final": {}})
            answers = [one.ours for one in replay.run()]
            recorded = {**scenario, "expect": answers[:-1], "final": answers[-1]}
        else:
            steps, final = self._steps(scenario)
            recorded = {**scenario, "steps": steps, "final": final}
        return self.spoil(kind, recorded) if self.spoil else recorded

    def _steps(self, scenario):
        last = max([arrival["step"] for arrival in scenario["arrivals"]] + [action["step"] for action in scenario["actions"]])
        replay = SchedulerReplay({**scenario, "steps": [{} for _ in range(last + 1)], "final": {}})
        answers = [one.ours for one in replay.run()]
        return answers[:-1], answers[-1]


def run(recorder, num_requests, seed):
    live = LiveVerification(num_requests, seed)
    live.run(recorder)
    return live


def test_every_kind_meets_every_pool_with_as_many_requests_as_asked_for():
    recorder = OwnRecorder()
    labels: list[str] = []
    live = LiveVerification(60, 5)
    live.run(recorder, labels.append)
    assert [(part.verified.kind, part.num_blocks) for part in live.parts] == [
        (kind, pool) for kind in ("manager", "scheduler") for pool in (8, 20, 200)
    ]
    assert all((part.verified.num_scenarios, part.verified.num_requests) == (2, 100) for part in live.parts)
    assert all(part.verified.num_steps > 50 and not part.verified.differences for part in live.parts)
    assert len(labels) == len(recorder.names) == live.num_scenarios == 12


def test_a_seed_brings_its_workloads_back_and_another_brings_others():
    first, again, other = OwnRecorder(), OwnRecorder(), OwnRecorder()
    for recorder, seed in ((first, 5), (again, 5), (other, 900)):
        run(recorder, 50, seed)
    assert first.names == again.names and not set(first.names) & set(other.names)


def test_a_peer_that_does_one_thing_otherwise_is_told_with_the_workloads_name():
    def spoil(kind, recorded):
        if kind == "manager" and recorded["name"].endswith("x20"):
            index = next(index for index, one in enumerate(recorded["expect"]) if one.get("new"))
            recorded["expect"][index]["new"] = [999, *recorded["expect"][index]["new"][1:]]
        return recorded

    live = run(OwnRecorder(spoil), 50, 5)
    differing = [part for part in live.parts if part.verified.differences]
    assert [(part.verified.kind, part.num_blocks) for part in differing] == [("manager", 20)]
    (difference,) = live.differences
    assert differing[0].verified.differences == (difference,)
    assert difference.scenario == "random-manager-5-50x20" and difference.what.startswith("new[0]: expected 999, ours ")


@pytest.mark.parametrize("failure", [ValueError("it broke"), KeyboardInterrupt()])
def test_a_run_that_breaks_off_keeps_every_scenario_it_had_finished(failure):
    def fail(kind, recorded):
        if recorded["name"] == "random-manager-6-50x20":  # the second in the second pool
            raise failure
        return recorded

    live = LiveVerification(100, 5)
    with pytest.raises(type(failure)) as raised:
        live.run(OwnRecorder(fail))
    assert [(part.num_blocks, part.verified.num_scenarios) for part in live.parts] == [(8, 2), (20, 1)]
    assert sum(part.verified.num_requests for part in live.parts) == 150
    notes = [] if isinstance(failure, KeyboardInterrupt) else ["in manager 'random-manager-6-50x20' of seed 5"]
    assert getattr(raised.value, "__notes__", []) == notes
