"""A LabSession for tests: opens in-process targets, keeps what is recorded."""

from __future__ import annotations

from engine.config import EngineConfig
from labs.protocol import Measurement
from labs.targets.open_target import SIM_MODEL, open_target_factory


class FakeSession:
    def __init__(self, open_target=None, typed=()) -> None:
        self.open_target = open_target or open_target_factory("sim", EngineConfig(model=SIM_MODEL))
        self.typed = frozenset(typed)
        self.measurements: list[Measurement] = []
        self.states: list[str] = []
        self.expected = self.done = 0
        self.lab_config = None

    def record(self, *measurements: Measurement) -> None:
        self.measurements.extend(measurements)

    def cold(self, state: str) -> None:
        self.states.append(state)

    def expect(self, num_requests: int) -> None:
        self.expected += num_requests

    def fitted(self, config) -> None:
        self.lab_config = config

    def progress(self, label: str, num_requests: int = 1) -> None:
        self.done += num_requests
