"""LiveVerification: fresh random workloads, done by a real engine now and by ours, compared step by step.

Pools are too small for many a request, too small for all at once, and ample. The seed decides every workload: with the
number in a scenario's name it comes back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, Protocol

from labs.conformance.random_scenarios import POOL_SIZES, random_manager_scenario, random_scheduler_scenario
from labs.conformance.verification import Verified, verify_scenarios

REQUESTS_PER_SCENARIO = 50

_GENERATORS: dict[str, Callable[[int, int, int], dict[str, Any]]] = {
    "manager": random_manager_scenario,
    "scheduler": random_scheduler_scenario,
}


class Recorder(Protocol):
    """A real engine that does scenarios and tells what it did."""

    version: str

    def record(self, kind: str, scenario: dict[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class LivePart:
    """What was compared of one kind in one pool."""

    num_blocks: int
    verified: Verified


def verify_live(
    recorder: Recorder, num_requests: int, seed: int, on_scenario: Callable[[str], None] | None = None
) -> Iterator[LivePart]:
    """Compare at least `num_requests` random requests of each kind in each pool. Raises PeerError."""
    for kind, generate in _GENERATORS.items():
        for num_blocks in POOL_SIZES:
            parts = []
            for number in range(-(-num_requests // REQUESTS_PER_SCENARIO)):
                scenario = generate(seed + number, REQUESTS_PER_SCENARIO, num_blocks)
                parts.append(verify_scenarios(kind, [recorder.record(kind, scenario)], on_scenario))
            yield LivePart(num_blocks, _sum(kind, parts))


def num_scenarios(num_requests: int) -> int:
    """Scenarios that `verify_live` will do."""
    return len(_GENERATORS) * len(POOL_SIZES) * -(-num_requests // REQUESTS_PER_SCENARIO)


def _sum(kind: str, parts: list[Verified]) -> Verified:
    return Verified(
        kind,
        sum(part.num_scenarios for part in parts),
        sum(part.num_requests for part in parts),
        sum(part.num_steps for part in parts),
        tuple(difference for part in parts for difference in part.differences),
    )
