"""Our Scheduler does, step by step, what vLLM 0.32.0's was recorded doing."""

import pytest

from tests.oracle.golden_files import scenarios
from tests.oracle.scheduler_replay import SchedulerReplay


@pytest.mark.parametrize("scenario", scenarios("scheduler"), ids=lambda scenario: scenario["name"])
def test_scheduler_scenario_is_reproduced_exactly(scenario):
    replay = SchedulerReplay(scenario)
    for step, recorded, ours in replay.run():
        assert ours == recorded, f"step {step}"
    recorded = dict(scenario["final"])
    assert recorded.pop("total_steps") == len(scenario["steps"])
    ours = replay.final()
    assert {key: ours[key] for key in recorded} == recorded
