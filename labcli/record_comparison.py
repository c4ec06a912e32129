"""Record comparison: what changed between two runs of one lab, and whether what they measured changed with it.

    counts   equal or changed: an engine that reuses the same tokens gives the same integers
    times    the ratio of the medians with its 95 % interval; an interval around 1 says "not significant", and fewer
             than five samples on a side say nothing
    rates    as times where the quantity has a spread, else equal or changed

Unlike things are not compared: times of another kind of target, cache state or machine, counts of another workload.
What the simulated target computes has no spread: there a time is exact, as a count is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

from labcli.fault import UsageFault
from labcli.record import ResultRecord
from labcli.target_facts import TargetFacts
from labs.measure import FEW_SAMPLES, ratio_of_medians
from labs.protocol import Measurement

_TIME_UNITS = ("s", "ms", "us", "µs", "ns")
_NOISY_UNITS = ("bytes",)  # of a process's memory: integers, and never the same twice


class UnlikeRecords(UsageFault):
    """Two records that answer different questions."""


@dataclass(frozen=True)
class Change:
    """One fact that is not the same in both records."""

    what: str  # "lab_config.num_requests", "engine.block_size", "commit", "package torch"
    first: Any
    second: Any


@dataclass(frozen=True)
class MeasuredChange:
    """One quantity of both records."""

    kind: str  # "count", "time" or "rate"
    group: str
    row: str
    name: str
    unit: str
    first: tuple[float | int, ...]  # samples
    second: tuple[float | int, ...]
    verdict: str  # "equal", "changed", "not significant", "cannot tell", "not compared"
    ratio: float | None = None  # median of the second over that of the first
    low: float | None = None  # where 95 % of resampled ratios lie
    high: float | None = None


@dataclass(frozen=True)
class RecordComparison:
    """All that two records of one lab have in common, and all that differs."""

    first: ResultRecord
    second: ResultRecord
    configuration: tuple[Change, ...]
    code: tuple[Change, ...]
    environment: tuple[Change, ...]
    workload: str  # "same", "different" or "cannot tell"
    not_compared: Mapping[str, str]  # "counts", "times" or "computed times": why
    measured: tuple[MeasuredChange, ...]
    only_first: tuple[Measurement, ...] = field(default=())
    only_second: tuple[Measurement, ...] = field(default=())

    def of(self, kind: str) -> list[MeasuredChange]:
        return [one for one in self.measured if one.kind == kind]


def compare_records(first: ResultRecord, second: ResultRecord, *, across_machines: bool = False) -> RecordComparison:
    """Compare the second record with the first. Raises UnlikeRecords for two labs, and for one record twice."""
    if first.label != second.label:
        raise UnlikeRecords(f"the records are of {first.label} and {second.label}", "two records of one lab")
    if first.run_id == second.run_id:
        raise UnlikeRecords(f"both records are run {first.run_id[:8]}", "two different runs")
    workload = _compare_workloads(first, second)
    not_compared = _reasons(first, second, workload, across_machines)
    firsts, seconds = ({_key(one): one for one in record.measurements} for record in (first, second))
    return RecordComparison(
        first,
        second,
        _configuration_changes(first, second),
        _code_changes(first, second),
        _environment_changes(first, second),
        workload,
        not_compared,
        tuple(
            _compare(one, seconds[key], first.target["kind"] == "sim", not_compared)
            for key, one in firsts.items()
            if key in seconds
        ),
        tuple(one for key, one in firsts.items() if key not in seconds),
        tuple(one for key, one in seconds.items() if key not in firsts),
    )


def _key(one: Measurement) -> tuple[str, str, str, str]:
    return one.group, one.row, one.name, one.unit


def _compare(first: Measurement, second: Measurement, is_sim: bool, not_compared: Mapping[str, str]) -> MeasuredChange:
    kind = _kind(first, second)
    low = high = ratio = None
    counted = kind == "count" or (kind == "rate" and not _has_spread(first) and not _has_spread(second))
    computed = is_sim and len({*first.samples}) == len({*second.samples}) == 1
    if first.value > 0 and second.value > 0:
        ratio = second.value / first.value
    if ("counts" if counted else "computed times" if computed else "times") in not_compared:
        verdict, ratio = "not compared", None
    elif {*first.samples} == {*second.samples}:
        verdict = "equal"
    elif counted or computed:
        verdict = "changed"
    elif min(len(first.samples), len(second.samples)) < FEW_SAMPLES or min(first.samples) <= 0:
        verdict = "cannot tell"
    else:
        interval = ratio_of_medians(second.samples, first.samples)
        low, high = interval.low, interval.high
        verdict = "not significant" if low <= 1 <= high else "changed"
    return MeasuredChange(kind, *_key(first), first.samples, second.samples, verdict, ratio, low, high)


def _kind(first: Measurement, second: Measurement) -> str:
    if first.unit in _TIME_UNITS:
        return "time"
    whole = all(isinstance(sample, int) for sample in (*first.samples, *second.samples))
    return "count" if whole and first.unit not in _NOISY_UNITS else "rate"


def _has_spread(one: Measurement) -> bool:
    """Whether another run would give another value: several samples, something per second, or judged by a range."""
    per_time = one.unit.endswith(("/s", "_per_s")) or one.unit in _NOISY_UNITS
    return len(one.samples) > 1 or per_time or (one.predicted is not None and one.predicted.low is not None)


def _reasons(first: ResultRecord, second: ResultRecord, workload: str, across_machines: bool) -> dict[str, str]:
    """Why counts, measured times or computed times are not compared; no entry for what is.

    A computed time is the same on any machine.
    """
    reasons: dict[str, str] = {}
    if workload == "different":
        reasons["counts"] = "the workloads differ: other tokens were sent"
    facts = TargetFacts.of(first), TargetFacts.of(second)
    kinds = tuple(_kind_words(one) for one in facts)
    states = first.cache_state, second.cache_state
    machines = tuple(record.environment.get("machine") for record in (first, second))
    unlike = reasons.get("counts")
    if kinds[0] != kinds[1]:
        unlike = f"the targets are {kinds[0]} and {kinds[1]}: their times answer different questions"
    elif states[0] != states[1]:
        unlike = f"the caches were {states[0]} and {states[1]} at the start: a hit is not a miss"
    if unlike is not None:
        reasons["times"] = reasons["computed times"] = unlike
    elif machines[0] != machines[1] and not across_machines:
        reasons["times"] = f"the machines are {machines[0]} and {machines[1]}; --across-machines compares all the same"
    elif facts[0].address != facts[1].address and not across_machines:
        addresses = f"{facts[0].address} and {facts[1].address}"
        reasons["times"] = f"the servers are at {addresses}; --across-machines compares all the same"
    if kinds[0] != kinds[1] and any(one.is_server for one in facts):
        reasons.setdefault("counts", f"the targets are {kinds[0]} and {kinds[1]}: a server's records compare with their like")
    return reasons


def _kind_words(facts: TargetFacts) -> str:
    """What answered; our own server in vLLM's flavor is not vLLM."""
    return f"labcli serve ({facts.kind})" if facts.is_labcli else facts.kind


def _compare_workloads(first: ResultRecord, second: ResultRecord) -> str:
    """By the digests of what was sent where both have them, else by the configuration and the model that decide it."""
    digests = [
        {name: record.details[name] for name in ("workload", "workloads") if name in record.details} for record in (first, second)
    ]
    if digests[0] and digests[0].keys() == digests[1].keys():
        return "same" if digests[0] == digests[1] else "different"
    same = first.lab_config == second.lab_config and TargetFacts.of(first).model == TargetFacts.of(second).model
    return "same" if same else "cannot tell"


def _configuration_changes(first: ResultRecord, second: ResultRecord) -> tuple[Change, ...]:
    changes = _changes("lab_config.", first.lab_config, second.lab_config)
    changes += _changes("engine.", first.target.get("engine_config") or {}, second.target.get("engine_config") or {})
    facts = [vars(TargetFacts.of(record)) for record in (first, second)]
    told = {change.what.removeprefix("engine.") for change in changes}
    changes += [one for one in _changes("", *facts) if one.what not in told]
    return tuple(changes + _changes("", *({"cache at the start": record.cache_state} for record in (first, second))))


def _code_changes(first: ResultRecord, second: ResultRecord) -> tuple[Change, ...]:
    commits = [{name: record.environment.get(name) for name in ("commit", "dirty")} for record in (first, second)]
    return tuple(_changes("", *commits) + _changes("", first.sources, second.sources))


def _environment_changes(first: ResultRecord, second: ResultRecord) -> tuple[Change, ...]:
    flat = []
    for record in (first, second):
        environment = {name: value for name, value in record.environment.items() if name not in ("commit", "dirty")}
        packages = environment.pop("packages", None)
        flat.append(
            {**environment, **({f"package {name}": one for name, one in packages.items()} if isinstance(packages, dict) else {})}
        )
    return tuple(_changes("", *flat))


def _changes(prefix: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Change]:
    return [
        Change(prefix + name, first.get(name), second.get(name))
        for name in dict.fromkeys([*first, *second])
        if first.get(name) != second.get(name)
    ]
