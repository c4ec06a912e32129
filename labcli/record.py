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
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from typing import Any, Iterable, Mapping

from labs.chart import Chart, ChartSeries
from labs.protocol import Measurement, Prediction

SCHEMA_VERSION = 2
STATUSES = ("ok", "disagrees", "interrupted", "failed")
LARGEST_NUMBER = 1e300  # of samples and charts: the difference of two is a number still

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
            content = json.loads(text, parse_constant=_refuse_constant)
        except RecursionError:
            raise RecordError("not a record: it is nested too deeply") from None
        except RecordError:
            raise
        except json.JSONDecodeError as error:
            raise RecordError(f"not JSON: {error}") from None
        except ValueError:  # Python reads whole numbers up to a number of digits
            raise RecordError("not a record: it holds a number of thousands of digits") from None
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
            raise RecordError(f"{name} is {_kind_words(content[name])}, which is not what a record holds there")
    if content["status"] not in STATUSES:
        raise RecordError(f"status is {content['status']!r}; accepted: {', '.join(STATUSES)}")
    lab = content["lab"]
    if not {"number", "name", "question"} <= lab.keys():
        raise RecordError("lab lacks one of number, name, question")
    if not (lab["number"] is None or _is_count(lab["number"])) or not _are_texts((lab["name"], lab["question"])):
        raise RecordError("lab has a number, name or question that is none")
    if not _is_target(content["target"]):
        raise RecordError("target does not fit: kind is a text, opened a list of engines with model, dtype and device")
    environment = content["environment"]
    if not all(environment.get(name) is None or isinstance(environment[name], str) for name in ("machine", "commit")):
        raise RecordError("environment has a machine or commit that is no text")
    if not _are_texts(content["findings"]) or not _are_texts(content["sources"].values()):
        raise RecordError("findings or sources hold something that is no text")


def _is_target(target: dict[str, Any]) -> bool:
    opened = target.get("opened") or []
    return (
        isinstance(target.get("kind"), str)
        and isinstance(target.get("engine_config"), (dict, type(None)))
        and isinstance(opened, list)
        and all(isinstance(one, dict) and _are_texts(one.get(name) for name in ("model", "dtype", "device")) for one in opened)
    )


def _refuse_constant(name: str) -> None:
    raise RecordError(f"{name} is no number; accepted: finite numbers")


def _are_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_KIND_WORDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}


def _kind_words(value: Any) -> str:
    """What a JSON value is, as people who know no Python call it."""
    return _KIND_WORDS.get(type(value), "a number")


def _number(value: Any) -> float | int:
    """The value, if it is a finite number. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{_kind_words(value)} stands where a number is expected")
    if not abs(value) <= LARGEST_NUMBER:
        raise ValueError(f"a number is larger than {LARGEST_NUMBER:.0e}, thus no finite number")
    return value


def _text(value: Any) -> str:
    """The value, if it is a text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{_kind_words(value)} stands where a text is expected")
    return value


def _items(value: Any) -> list[Any]:
    """The value, if it is a list. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{_kind_words(value)} stands where a list is expected")
    return value


def _fields_of(content: Any, kind: type) -> dict[str, Any]:
    """The content, if it is an object with the fields of the dataclass. Raises ValueError."""
    if not isinstance(content, dict):
        raise ValueError(f"{_kind_words(content)} stands where an object is expected")
    known = fields(kind)
    missing = [one.name for one in known if one.name not in content and one.default is MISSING and one.default_factory is MISSING]
    unknown = [name for name in content if name not in {one.name for one in known}]
    if missing or unknown:
        raise ValueError(f"fields missing: {missing or 'none'}, unknown: {unknown or 'none'}")
    return content


def _measurement_from(content: Any) -> Measurement:
    try:
        content = _fields_of(content, Measurement)
        one = Measurement(
            **{**content, "samples": tuple(map(_number, _items(content["samples"]))), "predicted": _prediction_from(content)}
        )
        for text in (one.name, one.unit, one.group, one.row, one.note):
            _text(text)
        if not one.samples:
            raise ValueError(f"{one.name} has no samples")
        if not isinstance(one.params, dict):
            raise ValueError(f"the params of {one.name} are {_kind_words(one.params)}")
        if not isinstance(one.key, bool):
            raise ValueError(f"{_kind_words(one.key)} stands where true or false is expected")
        return one
    except ValueError as error:
        raise RecordError(f"a measurement does not fit: {error}") from None


def _prediction_from(measurement: dict[str, Any]) -> Prediction | None:
    content = measurement.get("predicted")
    if content is None:
        return None
    one = Prediction(**_fields_of(content, Prediction))
    _text(one.law)
    for number in (one.value, *(bound for bound in (one.low, one.high) if bound is not None)):
        _number(number)
    return one


def _chart_from(content: Any) -> Chart:
    try:
        content = _fields_of(content, Chart)
        chart = Chart(**{**content, "series": tuple(map(_series_from, _items(content["series"])))})
        for text in (chart.title, chart.unit, chart.x_label, chart.y_label):
            _text(text)
        return chart
    except ValueError as error:
        raise RecordError(f"a chart does not fit: {error}") from None


def _series_from(content: Any) -> ChartSeries:
    content = _fields_of(content, ChartSeries)
    points = [_items(point) for point in _items(content.get("points", []))]
    if any(len(point) != 2 for point in points):
        raise ValueError("a point is not two numbers")
    return ChartSeries(
        name=_text(content["name"]),
        rows=tuple(map(_text, _items(content.get("rows", [])))),
        values=tuple(tuple(map(_number, _items(row))) for row in _items(content.get("values", []))),
        points=tuple((_number(x), _number(y)) for x, y in points),
        cells=tuple(map(_text, _items(content.get("cells", [])))),
    )
