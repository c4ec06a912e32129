"""MetricsPage: one reading of a server's /metrics, by exact names, summed over engines and replicas of one process.

Parsed by prometheus_client. A series that is not there is None, never 0: dashboards that mix the two have shown both
"0 %" for a cache that worked and empty panels for one that was renamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Sequence

from labs.targets.base import TargetError


@dataclass(frozen=True)
class Sample:
    """One line of the page."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class MetricsPage:
    """Samples of a page, by their exact name ("vllm:prefix_cache_hits_total"), and the names of all its series."""

    samples: Mapping[str, tuple[Sample, ...]]
    names: frozenset[str]

    @classmethod
    def parse(cls, text: str, wanted: Sequence[str]) -> MetricsPage:
        """The samples of these exact names: of the thousands of lines a server shows, a few count.

        Raises TargetError for a text that is no page of metrics.
        """
        from prometheus_client.parser import text_string_to_metric_families

        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        starts = tuple(f"{name}{after}" for name in wanted for after in "{ ")
        counting = "".join(f"{line}\n" for line in lines if line.startswith(starts))

        found: dict[str, list[Sample]] = {}
        try:
            for family in text_string_to_metric_families(counting):
                for sample in family.samples:
                    found.setdefault(sample.name, []).append(Sample(sample.labels, sample.value))
        except (ValueError, KeyError, IndexError, TypeError):  # what the parser meets in other texts
            raise TargetError("/metrics is no page of Prometheus metrics") from None
        names = frozenset(line.partition("{")[0].partition(" ")[0] for line in lines)
        return cls({name: tuple(samples) for name, samples in found.items()}, names)

    def total(self, names: Sequence[str], **labels: str | tuple[str, ...]) -> float | None:
        """The sum of the first of these names that is on the page, over its samples with these labels; None without one.

        names   the current name first, then older ones
        labels  a value, or several of which each counts
        """
        for name in names:
            if name in self.samples:
                return sum(sample.value for sample in self.samples[name] if _has(sample.labels, labels))
        return None

    def first(self, name: str) -> float | None:
        """The value of a setting that each rank of a server shows alike; None when it is not there."""
        found = self.samples.get(name)
        return found[0].value if found else None

    def labels_of(self, name: str) -> list[Mapping[str, str]]:
        """The label sets of a series; empty when it is not there."""
        return [sample.labels for sample in self.samples.get(name, ())]

    def has_prefix(self, prefix: str) -> bool:
        """Whether any series begins so: of that engine ("vllm:", "sglang:"), of drafts ("vllm:spec_decode")."""
        return any(name.startswith(prefix) for name in self.names)


def _has(labels: Mapping[str, str], wanted: Mapping[str, str | tuple[str, ...]]) -> bool:
    return all(labels.get(name) in ((value,) if isinstance(value, str) else value) for name, value in wanted.items())
