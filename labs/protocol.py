"""Lab, Prediction, Measurement, LabReport: what every lab asks, predicts, measures and concludes.

A lab's `run` gets a `LabSession` and its configuration. It computes each prediction with `labs/theory.py` before
the run that tests it, hands every finished measurement to `session.record(...)` (so that an interrupted run
keeps what it has), and returns a LabReport.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Protocol

from labs.chart import Chart
from labs.targets.base import OpenTarget


@dataclass(frozen=True)
class Prediction:
    """A value computed from theory before the run, with the law that gave it.

    A count must be met exactly. A ratio of times cannot: it is predicted with a range, and judged by its median.
    """

    value: float | int
    law: str  # the formula with its numbers filled in, for people
    low: float | None = None  # the range that agrees; None: exactly `value`
    high: float | None = None


@dataclass(frozen=True)
class Measurement:
    """One quantity of one scenario, with all raw samples.

    An integer quantity with a prediction must equal it exactly; a time carries its spread and is not judged, a ratio
    only where its prediction has a range.
    """

    name: str  # "hits", "queries", "ttft_cold", ... ; columns of the table
    unit: str  # "tokens", "s", "ratio", ...
    samples: tuple[float | int, ...]  # raw values; counts have one
    group: str = ""  # table title, e.g. "radix cache, page 16"
    row: str = ""  # table row, e.g. "fresh salt per request"
    predicted: Prediction | None = None
    params: Mapping[str, Any] = field(default_factory=dict)  # what the scenario varied
    note: str = ""  # one line shown under the table
    key: bool = False  # whether its law is shown under the table; every law is in the record

    @property
    def value(self) -> float | int:
        """The sample, or the median of several; of counts a count, thus the lower of two in the middle."""
        is_count = all(isinstance(sample, int) for sample in self.samples)
        return (statistics.median_low if is_count else statistics.median)(self.samples)

    @property
    def agrees(self) -> bool | None:
        """Whether every sample equals the prediction, or their median lies in its range; None when nothing was predicted."""
        if self.predicted is None:
            return None
        if self.predicted.low is not None and self.predicted.high is not None:
            return self.predicted.low <= self.value <= self.predicted.high
        return all(sample == self.predicted.value for sample in self.samples)

    @property
    def deviating_sample(self) -> float | int | None:
        """The first sample that differs from the prediction, or the median outside its range; None when it agrees."""
        if self.agrees is not False or self.predicted is None:
            return None
        if self.predicted.low is not None:
            return self.value
        return next(sample for sample in self.samples if sample != self.predicted.value)


@dataclass(frozen=True)
class LabReport:
    """Everything one run of a lab found."""

    measurements: tuple[Measurement, ...]
    cache_state: str  # "cold" (verified by a canary), "primed" or "uncontrolled"
    findings: tuple[str, ...] = ()  # one line each: verdicts with their evidence
    conclusion: str = ""  # a readable closing paragraph: what happened, what to do in production
    details: Mapping[str, Any] = field(default_factory=dict)  # further JSON-ready evidence; no prompts, no salts
    charts: tuple[Chart, ...] = ()  # the lab's main points, for `labcli results show` and `report`

    @property
    def agrees(self) -> bool:
        """Whether every prediction was met."""
        return all(measurement.agrees is not False for measurement in self.measurements)


class LabSession(Protocol):
    """What the command gives a running lab.

    typed  fields of the configuration that a person set: a lab that fits its sizes to a server leaves them as they are
    """

    open_target: OpenTarget
    typed: frozenset[str]

    def record(self, *measurements: Measurement) -> None:
        """Keep finished measurements, even if the run is interrupted later."""
        ...

    def cold(self, state: str) -> None:
        """Report the cache state reached so far: "cold", "primed" or "uncontrolled"."""
        ...

    def expect(self, num_requests: int) -> None:
        """Announce how many more requests the lab will send, for the progress bar."""
        ...

    def fitted(self, config: Any) -> None:
        """Tell the configuration that is really run, where it was fitted to a server: the record holds that one."""
        ...

    def progress(self, label: str, num_requests: int = 1) -> None:
        """Say what is running now and count finished requests."""
        ...


@dataclass(frozen=True)
class Lab:
    """One question. A file `labs/lab_NN_topic.py` defines one as LAB and is found by `labs/catalog.py`."""

    number: int
    name: str  # "prefix-cache-hit-rate"
    question: str
    config_type: type  # frozen dataclass; each field settable with --set
    quick: Any  # a config_type instance that finishes in seconds
    run: Callable[[LabSession, Any], LabReport]
    full: Any = None  # a config_type instance for --full; None: the default is already full length
    targets: tuple[str, ...] = ("engine", "sim")  # the targets it makes sense on; "server": any URL
    in_process_fields: tuple[str, ...] = ()  # that mean nothing on a server, whose one cache is as it is

    @property
    def title(self) -> str:
        return f"Lab {self.number:02d}: {self.question}"
