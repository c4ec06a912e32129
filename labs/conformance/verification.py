"""Verification: every scenario of a folder replayed, what was compared counted, what differs named."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator, Protocol, Sequence

from labs.conformance.comparison import Comparison
from labs.conformance.golden import RECORDED_DIR, GoldenError, kinds_in, read_scenarios
from labs.conformance.manager_replay import ManagerReplay
from labs.conformance.radix_replay import RadixReplay
from labs.conformance.scheduler_replay import SchedulerReplay


class Replay(Protocol):
    """One scenario, done by ours."""

    num_requests: int

    def run(self) -> Iterator[Comparison]: ...


REPLAYS: dict[str, Callable[[dict[str, Any]], Replay]] = {
    "manager": ManagerReplay,
    "scheduler": SchedulerReplay,
    "radix": RadixReplay,
}


@dataclass(frozen=True)
class Difference:
    """The first thing in a scenario that we did otherwise; what follows from it is not looked at."""

    kind: str
    scenario: str
    where: str  # operation or step
    what: str  # "hit: expected 16, ours 32"

    def __str__(self) -> str:
        return f"{self.kind} {self.scenario!r}, {self.where}: {self.what}"


@dataclass(frozen=True)
class Verified:
    """What was compared of one kind."""

    kind: str
    num_scenarios: int
    num_requests: int
    num_steps: int  # operations or steps, the end of each scenario not counted
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Verification:
    """What was compared in all."""

    parts: tuple[Verified, ...] = field(default=())

    @property
    def differences(self) -> tuple[Difference, ...]:
        return tuple(difference for part in self.parts for difference in part.differences)


def verify_folder(folder: str | Path = RECORDED_DIR, on_scenario: Callable[[str], None] | None = None) -> Verification:
    """Replay all recorded scenarios of a folder. Raises GoldenError for a folder or file without any."""
    return Verification(tuple(verify_scenarios(kind, read_scenarios(kind, folder), on_scenario) for kind in kinds_in(folder)))


def verify_scenarios(
    kind: str, scenarios: Sequence[dict[str, Any]], on_scenario: Callable[[str], None] | None = None
) -> Verified:
    """Replay scenarios of one kind, each up to its first difference."""
    num_requests = num_steps = 0
    differences = []
    for scenario in scenarios:
        try:
            replay = REPLAYS[kind](scenario)
            num_requests += replay.num_requests
        except Exception as error:  # nothing of it was done yet: the scenario is no scenario
            message = f"{kind} {scenario.get('name')!r} is not of the schema ({type(error).__name__}: {error}); accepted: as in labs/recorded/README.md"
            raise GoldenError(message) from error
        difference, compared = _first_difference(kind, scenario["name"], replay)
        num_steps += compared
        if difference is not None:
            differences.append(difference)
        if on_scenario is not None:
            on_scenario(f"{kind}: {scenario['name']}")
    return Verified(kind, len(scenarios), num_requests, num_steps, tuple(differences))


def _first_difference(kind: str, name: str, replay: Replay) -> tuple[Difference | None, int]:
    """The first difference, and how many operations or steps were compared."""
    num_compared = 0
    steps = replay.run()
    while True:
        try:
            compared = next(steps, None)
        except Exception as error:  # the real engine came through: that we do not is a difference too
            what = "an invariant of ours broke" if isinstance(error, AssertionError) else f"ours failed with {type(error).__name__}"
            return Difference(kind, name, f"after {num_compared} compared", f"{what} ({error})"), num_compared
        if compared is None:
            return None, num_compared
        if compared.differs:
            return Difference(kind, name, compared.where, compared.first_difference), num_compared
        num_compared += compared.where != "the end"
