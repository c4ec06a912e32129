"""LiveVerification: fresh random workloads, done by a real engine now and by ours, compared step by step.

Pools are too small for many a request, too small for all at once, and ample. The seed decides every workload: with the
number in a scenario's name it comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Protocol

from labs.conformance.random_scenarios import POOL_SIZES, random_manager_scenario, random_scheduler_scenario
from labs.conformance.verification import Difference, Verified, verify_scenarios

REQUESTS_PER_SCENARIO = 50

_GENERATORS: dict[str, Callable[[int, int, int], dict[str, Any]]] = {
    "manager": random_manager_scenario,
    "scheduler": random_scheduler_scenario,
}


class Recorder(Protocol):
    """A real engine that does scenarios and tells what it did."""

    def record(self, kind: str, scenario: dict[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class LivePart:
    """What was compared of one kind in one pool."""

    num_blocks: int
    verified: Verified


class LiveVerification:
    """At least `num_requests` random requests of each kind in each pool, to be compared.

    parts   what has been compared, by kind and pool; of a run that broke off too, and the scenarios it had finished
    """

    def __init__(self, num_requests: int, seed: int) -> None:
        self.seed = seed
        self._per_part = -(-num_requests // REQUESTS_PER_SCENARIO)
        self._verified: dict[tuple[str, int], list[Verified]] = {}

    @property
    def num_scenarios(self) -> int:
        """Scenarios that `run` will do."""
        return len(_GENERATORS) * len(POOL_SIZES) * self._per_part

    @property
    def parts(self) -> tuple[LivePart, ...]:
        return tuple(LivePart(num_blocks, _sum(kind, done)) for (kind, num_blocks), done in self._verified.items())

    @property
    def differences(self) -> tuple[Difference, ...]:
        return tuple(difference for part in self.parts for difference in part.verified.differences)

    def run(self, recorder: Recorder, on_scenario: Callable[[str], None] | None = None) -> None:
        """Compare. What the recorder raises has a note that names the scenario."""
        for kind, generate in _GENERATORS.items():
            for num_blocks in POOL_SIZES:
                for number in range(self._per_part):
                    scenario = generate(self.seed + number, REQUESTS_PER_SCENARIO, num_blocks)
                    try:
                        recorded = recorder.record(kind, scenario)
                    except Exception as error:
                        error.add_note(f"in {kind} {scenario['name']!r} of seed {self.seed}")
                        raise
                    verified = verify_scenarios(kind, [recorded], on_scenario)
                    self._verified.setdefault((kind, num_blocks), []).append(verified)


def _sum(kind: str, parts: list[Verified]) -> Verified:
    return Verified(
        kind,
        sum(part.num_scenarios for part in parts),
        sum(part.num_requests for part in parts),
        sum(part.num_steps for part in parts),
        tuple(difference for part in parts for difference in part.differences),
    )
