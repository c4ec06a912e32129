"""A chart in words: the text that stands for the picture where it cannot be seen, with its numbers."""

from __future__ import annotations

from collections import Counter

from labcli.render.quantity import format_samples, format_value
from labs.chart import BLOCK_STATES, Chart, ChartSeries

MAX_WORDS = 40  # entries told one by one; a reader who listens to more than that wants the table


def describe_chart(chart: Chart) -> str:
    """The kind of picture, then each of its numbers: "Bars, in tokens. predicted: shared 2,000; salted 0. measured: …"."""
    kind = {"bars": "Bars", "times": "Samples", "lines": "Lines", "block_map": "Blocks of the pool, step by step"}[chart.kind]
    parts = [f"{kind}{'' if chart.kind == 'block_map' else f', in {unit_words(chart)}'}."]
    for series in chart.series:
        entries = _entries(chart, series)
        told = "; ".join(entries[:MAX_WORDS])
        more = f"; and {len(entries) - MAX_WORDS} more" if len(entries) > MAX_WORDS else ""
        parts.append(f"{series.name}: {told}{more}.")
    return " ".join(parts)


def unit_words(chart: Chart) -> str:
    """The unit, spelt out where it is one letter."""
    return {"s": "seconds", "%": "percent"}.get(chart.unit, chart.unit or "numbers")


def value_title(chart: Chart) -> str:
    """What the values are, with their unit; of times the axis names the unit, as it fits their size."""
    label, unit = chart.y_label, unit_words(chart)
    if not label:
        return unit
    return label if chart.unit in ("s", "ratio") or unit in label or chart.unit in label else f"{label}, {unit}"


def axis_unit(high: float) -> tuple[float, str]:
    """For an axis of seconds that ends at `high`: what to multiply them by, and what they are then."""
    units = ((1.0, "seconds"), (1e3, "milliseconds"), (1e6, "microseconds"), (1e9, "nanoseconds"))
    return next((pair for pair in units if high * pair[0] >= 1), units[-1])


def with_unit(text: str, unit: str) -> str:
    """A formatted value with its unit behind it; times have theirs already."""
    return text if unit == "s" or not unit else f"{text} {unit}" if unit in ("%", "ms", "µs", "ns", "GiB", "MiB") else text


def run_lengths(cells: str) -> list[tuple[str, int]]:
    """A step of a block map as runs of equal blocks: "AAc." is A 2, c 1, . 1."""
    runs: list[tuple[str, int]] = []
    for letter in cells:
        if runs and runs[-1][0] == letter:
            runs[-1] = (letter, runs[-1][1] + 1)
        else:
            runs.append((letter, 1))
    return runs


def _entries(chart: Chart, series: ChartSeries) -> list[str]:
    if chart.kind == "block_map":
        rows = series.rows or tuple(str(number) for number in range(1, len(series.cells) + 1))
        return [f"{row}: {_count_states(cells)}" for row, cells in zip(rows, series.cells)]
    if chart.kind == "lines":
        return [f"{format_value(x, '')} → {format_value(y, chart.unit)}" for x, y in series.points]
    return [
        f"{row} {with_unit(format_samples(values, chart.unit), chart.unit)}"
        for row, values in zip(series.rows, series.values)
        if values
    ]


def _count_states(cells: str) -> str:
    counts = Counter(cells)
    return ", ".join(f"{counts[letter]} {words.split(':')[0]}" for letter, words in BLOCK_STATES.items() if counts[letter])
