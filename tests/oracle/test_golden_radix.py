"""Ours does, step by step, what the real engine was recorded doing: every scenario of radix.jsonl.gz."""

import pytest

from labs.conformance.golden import read_scenarios
from labs.conformance.verification import REPLAYS


@pytest.mark.parametrize("scenario", read_scenarios("radix"), ids=lambda scenario: scenario["name"])
def test_radix_scenario_is_reproduced_exactly(scenario):
    compared = list(REPLAYS["radix"](scenario).run())
    assert [one for one in compared if one.differs] == []
    assert len(compared) == len(scenario.get("ops", scenario.get("steps"))) + 1
