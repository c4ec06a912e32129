"""Our KVCacheManager does, operation by operation, what vLLM 0.32.0's was recorded doing."""

import pytest

from tests.oracle.golden_files import scenarios
from tests.oracle.manager_replay import ManagerReplay


@pytest.mark.parametrize("scenario", scenarios("manager"), ids=lambda scenario: scenario["name"])
def test_manager_scenario_is_reproduced_exactly(scenario):
    replay = ManagerReplay(scenario)
    for index, op, expected, ours in replay.run():
        assert ours == expected, f"operation {index}: {op}"
    assert replay.final() == scenario["final"]
