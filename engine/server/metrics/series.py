"""Series: Prometheus metrics that share a registry and constant labels, opened once and looked up by the label that varies.

    maker = SeriesMaker(CollectorRegistry(), {"model_name": "smollm2"})
    rejections = maker.counter("server:rejections", "Requests turned away.", "reason")
    rejections.of("queue full").inc()
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, Mapping, Sequence, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Kind = TypeVar("Kind", Counter, Gauge, Histogram)


class Series(Generic[Kind]):
    """One metric; `of(value)` is its sample for a value of the label that varies, `of()` the only one where none does."""

    def __init__(self, metric: Kind, constant: Mapping[str, str], varying: str | None) -> None:
        self._metric, self._constant = metric, constant
        self._varying = () if varying is None else (varying,)
        self._samples: dict[tuple[str, ...], Kind] = {}

    def of(self, *value: str) -> Kind:
        sample = self._samples.get(value)
        if sample is None:
            labels = {**self._constant, **dict(zip(self._varying, value, strict=True))}
            sample = self._samples[value] = self._metric.labels(**labels)
        return sample


@dataclass(frozen=True)
class SeriesMaker:
    """Opens series in `registry`, each with the labels `constant`.

    shows_zero  a series is there from the start, at zero, and not only once it has a value
    varying     of a series: a further label; `declared` are the values of it that are there from the start
    """

    registry: CollectorRegistry
    constant: Mapping[str, str]
    shows_zero: bool = False

    def counter(self, name: str, text: str, varying: str | None = None, declared: Sequence[str] = ()) -> Series[Counter]:
        """A sum that only grows; prometheus_client adds `_total` to a name without it."""
        return self._open(Counter, name, text, varying, declared)

    def gauge(self, name: str, text: str, varying: str | None = None, declared: Sequence[str] = ()) -> Series[Gauge]:
        """A value that comes and goes."""
        return self._open(Gauge, name, text, varying, declared)

    def histogram(self, name: str, text: str, buckets: Sequence[float], varying: str | None = None) -> Series[Histogram]:
        """Counts of values up to each bucket's bound; the last one, without a bound, is added."""
        return self._open(Histogram, name, text, varying, (), buckets=buckets)

    def with_labels(self, **more: str) -> SeriesMaker:
        """The same registry, with further constant labels."""
        return replace(self, constant={**self.constant, **more})

    def _open(
        self, kind: type[Kind], name: str, text: str, varying: str | None, declared: Sequence[str], **settings: Any
    ) -> Series[Kind]:
        labels = [*self.constant, *([] if varying is None else [varying])]
        series = Series(kind(name, text, labels, registry=self.registry, **settings), self.constant, varying)
        if self.shows_zero and varying is None:
            series.of()
        for value in declared:
            series.of(value)
        return series
