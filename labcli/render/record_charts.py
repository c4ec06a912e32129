"""The charts of a record: the lab's own or, where it gave none, some derived from its measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from labcli.record import ResultRecord
from labs.chart import Chart, ChartSeries
from labs.protocol import Measurement

MAX_ROWS = 14  # of a derived chart: as many as one glance takes in
MOST_ROWS = 200  # of a lab's own chart, and of its series; a picture of thousands is a blot, and takes a minute to draw


def charts_of(record: ResultRecord) -> tuple[Chart, ...]:
    """Records of schema 1, benches and interrupted runs have no charts of their own."""
    return tuple(map(_shortened, record.charts)) or derived_charts(record.measurements)


def _shortened(chart: Chart) -> Chart:
    """The chart itself, or its first rows and series with a title that says so."""
    longest = max((len(one.values or one.cells) for one in chart.series), default=0)
    if max(longest, len(chart.series)) <= MOST_ROWS:
        return chart
    series = tuple(
        replace(one, rows=one.rows[:MOST_ROWS], values=one.values[:MOST_ROWS], cells=one.cells[:MOST_ROWS])
        for one in chart.series[:MOST_ROWS]
    )
    what, number = ("rows", longest) if longest > MOST_ROWS else ("series", len(chart.series))
    return replace(chart, series=series, title=f"{chart.title} (the first {MOST_ROWS} of {number:,} {what})")


def derived_charts(measurements: Sequence[Measurement]) -> tuple[Chart, ...]:
    """Predicted beside measured counts, and the samples of each time; none of either where there is nothing to draw."""
    return tuple(chart for chart in (_counts(measurements), _times(measurements)) if chart is not None)


def _counts(measurements: Sequence[Measurement]) -> Chart | None:
    """The hits, or the first other quantity that was predicted, by row."""
    predicted = [one for one in measurements if one.predicted is not None]
    if not predicted:
        return None
    names = list(dict.fromkeys(one.name for one in predicted))
    name = next((name for name in ("total", "hits") if name in names), names[0])
    found = [one for one in predicted if one.name == name]
    found, where = _first_rows(found)
    series = tuple(
        ChartSeries(label, tuple(_row(one, where) for one in found), tuple((value(one),) for one in found))
        for label, value in (("predicted", lambda one: one.predicted.value), ("measured", lambda one: one.value))
    )
    return Chart("bars", f"{_readable(name)}, predicted and measured{where and f': {where}'}", series, found[0].unit)


def _times(measurements: Sequence[Measurement]) -> Chart | None:
    """Every sample in seconds, by row and name."""
    found, where = _first_rows([one for one in measurements if one.unit == "s"])
    if not found:
        return None
    several = len({one.name for one in found}) > 1
    rows = tuple(
        ", ".join(part for part in (_row(one, where), _readable(one.name) if several else "") if part) or _readable(one.name)
        for one in found
    )
    title = "Times, every sample" if several else f"{_readable(found[0].name)}, every sample"
    return Chart(
        "times", f"{title}{where and f': {where}'}", (ChartSeries("measured", rows, tuple(one.samples for one in found)),), "s"
    )


def _first_rows(measurements: list[Measurement]) -> tuple[list[Measurement], str]:
    """All of them if they are few, else those of the first group; and the name of the one group they are of."""
    if len(measurements) > MAX_ROWS:
        measurements = [one for one in measurements if one.group == measurements[0].group][:MAX_ROWS]
    groups = {one.group for one in measurements}
    return measurements, groups.pop() if len(groups) == 1 else ""


def _row(one: Measurement, where: str) -> str:
    """The row's name, with its group's unless the title has it."""
    return ": ".join(part for part in ("" if where else one.group, one.row) if part)


def _readable(name: str) -> str:
    words = name.replace("_", " ")
    return {"ttft": "time to first token"}.get(words, words.replace("ttft", "TTFT"))
