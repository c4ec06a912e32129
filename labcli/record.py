"""ResultRecord: everything one run leaves behind, as JSON.

Schema history
    1   first version
    2   charts; a prediction may have a range (low, high)

Four top-level keys differ between two runs that are otherwise equal: `run_id`, `started_at`, `finished_at` and
`environment`. On the simulated target, whose clock is virtual, all other bytes are equal.

A record holds raw samples; medians, rates and verdicts are derived when it is shown. It never holds prompt text
or salts. `results/README.md` describes each field.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Mapping

from labs.chart import Chart, ChartSeries
from labs.protocol import Measurement, Prediction

SCHEMA_VERSION = 2
STATUSES = ("ok", "disagrees", "interrupted", "failed")

_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "run_id": str, "started_at": str, "finished_at": str, "environment": dict, "lab": dict, "sources": dict,
    "lab_config": dict, "target": dict, "status": str, "error": (str, type(None)), "cache_state": (str, type(None)),
    "measurements": list, "findings": list, "conclusion": str, "details": dict, "charts": list,
}  # fmt: skip


class RecordError(ValueError):
    """A text is no record that this version can read."""


@dataclass(frozen=True)
class ResultRecord:
    """One run of a lab or of a bench. Times are ISO 8601 in UTC."""

    run_id: str
    started_at: str
    finished_at: str
    environment: Mapping[str, Any]
    lab: Mapping[str, Any]  # number (None for a bench), name, question
    sources: Mapping[str, str]  # file name -> SHA-256 of its content
    lab_config: Mapping[str, Any]
    target: Mapping[str, Any]  # kind, gpu, engine_config, opened: one entry for each engine the lab opened
    status: str
    error: str | None = None
    cache_state: str | None = None  # None where no cache takes part
    measurements: tuple[Measurement, ...] = ()
    findings: tuple[str, ...] = ()
    conclusion: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    charts: tuple[Chart, ...] = ()

    @property
    def label(self) -> str:
        """The folder its file lies in: "04-prefix-cache-hit-rate", "hash-bench"."""
        number = self.lab["number"]
        return self.lab["name"] if number is None else f"{number:02d}-{self.lab['name']}"

    @property
    def num_predictions(self) -> int:
        return sum(measurement.predicted is not None for measurement in self.measurements)

    @property
    def missed(self) -> list[Measurement]:
        """The measurements that do not equal their prediction."""
        return [measurement for measurement in self.measurements if measurement.agrees is False]

    def to_json(self) -> str:
        """The record as text: the keys always in the same order, one line feed at the end."""
        content: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        for name in _JSON_TYPES:
            content[name] = json_ready(getattr(self, name))
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ResultRecord:
        """Read `to_json`'s text back. Raises RecordError naming what does not fit."""
        try:
            content = json.loads(text)
        except ValueError as error:
            raise RecordError(f"not JSON: {error}") from None
        if not isinstance(content, dict):
            raise RecordError("not a record: a JSON object is expected")
        version = content.pop("schema_version", None)
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise RecordError(f"schema_version {version} is newer than this labcli reads; accepted: 1 to {SCHEMA_VERSION}")
        if isinstance(version, bool) or version not in range(1, SCHEMA_VERSION + 1):
            raise RecordError(f"schema_version is {version!r}; accepted: 1 to {SCHEMA_VERSION}")
        if version == 1:
            content.setdefault("charts", [])  # had none
        _check_fields(content)
        content["measurements"] = tuple(_measurement_from(one) for one in content["measurements"])
        content["charts"] = tuple(_chart_from(one) for one in content["charts"])
        content["findings"] = tuple(content["findings"])
        return cls(**content)


def json_ready(value: Any) -> Any:
    """Dataclasses and mappings as dicts, sequences as lists. Raises RecordError for what JSON cannot say."""
    if is_dataclass(value) and not isinstance(value, type):
        return json_ready({key: one for key, one in asdict(value).items()})
    if isinstance(value, Mapping):
        return {str(key): json_ready(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise RecordError(f"{value} cannot be recorded; accepted: finite numbers")
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise RecordError(f"a {type(value).__name__} cannot be recorded; accepted: texts, numbers, lists, mappings")


def _check_fields(content: dict[str, Any]) -> None:
    missing = [name for name in _JSON_TYPES if name not in content]
    unknown = [name for name in content if name not in _JSON_TYPES]
    if missing or unknown:
        raise RecordError(f"fields missing: {missing or 'none'}, unknown: {unknown or 'none'}")
    for name, expected in _JSON_TYPES.items():
        if not isinstance(content[name], expected):
            raise RecordError(f"{name} is a {type(content[name]).__name__}, which is not what a record holds there")
    if content["status"] not in STATUSES:
        raise RecordError(f"status is {content['status']!r}; accepted: {', '.join(STATUSES)}")
    if not {"number", "name", "question"} <= content["lab"].keys():
        raise RecordError("lab lacks one of number, name, question")


def _measurement_from(content: Any) -> Measurement:
    try:
        predicted = content["predicted"]
        return Measurement(
            **{**content, "samples": tuple(content["samples"]), "predicted": Prediction(**predicted) if predicted else None}
        )
    except (TypeError, KeyError) as error:
        raise RecordError(f"a measurement does not fit: {error}") from None


def _chart_from(content: Any) -> Chart:
    try:
        series = tuple(
            ChartSeries(
                name=one["name"],
                rows=tuple(one["rows"]),
                values=tuple(map(tuple, one["values"])),
                points=tuple(map(tuple, one["points"])),
                cells=tuple(one["cells"]),
            )
            for one in content["series"]
        )
        return Chart(**{**content, "series": series})
    except (TypeError, KeyError, ValueError) as error:
        raise RecordError(f"a chart does not fit: {error}") from None
