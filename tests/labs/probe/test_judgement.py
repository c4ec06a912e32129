"""Every rule asked about one sight: a healthy server has no fault, the worst comes first, and faults say what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.probe import sent as kinds
from labs.probe.explanation import Explanation
from labs.probe.judgement import judge
from labs.probe.observation import Observations
from labs.probe.verdict import CONFIDENCES, FAULT, STATES, worst_first
from tests.labs.probe.fake_sight import LAW, SGLANG, VLLM, changed, sight, unreported, usage
from tests.labs.probe.verdicts import faults, verdict


@pytest.mark.parametrize("facts, law", [(VLLM, LAW), (SGLANG, Explanation(1)), (replace(SGLANG, unit_size=64), Explanation(64))])
def test_a_server_that_follows_the_law_has_no_fault(facts, law):
    seen = sight(facts, law)
    assert faults(seen) == []
    for name in (
        "caching",
        "usage",
        "metrics",
        "replicas",
        "front",
        "chat",
        "unit",
        "witnesses",
        "salts",
        "shared",
        "counters",
        "stream",
    ):
        assert verdict(seen, name)[0] == "fine", name


def test_verdicts_come_worst_first_and_of_equals_the_surest_first():
    found = judge(sight(replace(VLLM, is_caching=False, has_counters=False)))
    assert [(STATES.index(one.state), CONFIDENCES.index(one.confidence)) for one in found] == sorted(
        (STATES.index(one.state), CONFIDENCES.index(one.confidence)) for one in found
    )
    assert worst_first(reversed(found))[0].is_fault


def test_a_probe_that_saw_nothing_is_judged_too():
    assert verdict(Observations(replace(VLLM, is_caching=None), "ids"), "caching") == ("cannot tell", "weak")
    assert verdict(Observations(VLLM, "ids"), "caching") == ("fine", "certain"), "the configuration says it"


def test_every_fault_says_what_to_do_next_and_on_what_evidence():
    sights = [
        sight(), sight(replace(VLLM, is_caching=False)), sight(law=LAW, burst_hits=[0, 0, 256, 256, 256, 256]),
        changed(sight(law=LAW), unreported), sight(VLLM, Explanation(1_056), prompt_tokens=900),
        changed(sight(), lambda one: replace(one, usage=usage(one.num_ids + 4, 0)), *kinds.OF_REPEATS),
    ]  # fmt: skip
    found = [one for seen in sights for one in judge(seen) if one.state == FAULT]
    assert len(found) >= len(sights)
    assert all(one.next_step and one.evidence for one in found if one.name != "metrics")
