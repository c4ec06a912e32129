"""Chart: what a lab shows at one glance, as data; `labcli/render` draws it in a terminal or as SVG.

    bars        one value a row and series:  hits by scenario, predicted beside measured
    times       samples in seconds by row:   time to first token cold, warm, unrelated (every sample is drawn)
    lines       y over x, one line a series: hit length against prompt length, hit rate against pool size
    block_map   states of the pool's blocks, one line a step: who holds what when, and what is evicted
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ChartKind = Literal["bars", "times", "lines", "block_map"]

# Letters of a block map: one letter a block.
BLOCK_STATES = {
    ".": "free, holds nothing",
    "a": "in use, not findable",
    "A": "in use, cached",
    "c": "free, cached: found until it is handed out",
    "x": "evicted in this step",
}


@dataclass(frozen=True)
class ChartSeries:
    """One colour of a chart."""

    name: str  # "predicted", "measured", "hash cache, block 16"
    rows: tuple[str, ...] = ()  # bars, times: the row of each entry of `values`; block_map: the step's label
    values: tuple[tuple[float, ...], ...] = ()  # bars: one value a row; times: the samples of a row
    points: tuple[tuple[float, float], ...] = ()  # lines: (x, y)
    cells: tuple[str, ...] = ()  # block_map: one text a step, one letter of BLOCK_STATES a block

    def __post_init__(self) -> None:
        content = self.cells or self.values
        if self.rows and len(self.rows) != len(content):
            raise ValueError(f"rows are {len(self.rows)}; accepted: one for each of {len(content)} entries")
        unknown = set("".join(self.cells)) - set(BLOCK_STATES)
        if unknown:
            raise ValueError(f"cells hold {sorted(unknown)}; accepted: {', '.join(BLOCK_STATES)}")


@dataclass(frozen=True)
class Chart:
    """One picture: its kind, its words, its numbers."""

    kind: ChartKind
    title: str  # a sentence that says what to see: "One token in front costs every block"
    series: tuple[ChartSeries, ...]
    unit: str = "tokens"  # of the values or of y
    x_label: str = ""  # lines: what x is, with its unit; block_map: what a step is
    y_label: str = ""
    log_x: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("bars", "times", "lines", "block_map"):
            raise ValueError(f"kind is {self.kind!r}; accepted: bars, times, lines, block_map")


def bars_of(title: str, groups: dict[str, list[tuple[str, float]]], unit: str = "tokens") -> Chart:
    """A bar chart from {series: [(row, value), …]}."""
    series = tuple(
        ChartSeries(name, tuple(row for row, _ in entries), tuple((value,) for _, value in entries))
        for name, entries in groups.items()
    )
    return Chart("bars", title, series, unit)


def times_of(title: str, samples: dict[str, list[float] | tuple[float, ...]], name: str = "measured") -> Chart:
    """A chart of samples in seconds from {row: samples}."""
    rows = {row: tuple(values) for row, values in samples.items() if values}
    return Chart("times", title, (ChartSeries(name, tuple(rows), tuple(rows.values())),), "s")
