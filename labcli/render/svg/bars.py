"""Bars: one value a row and series. Predicted beside measured becomes one bar with a line where it was to end."""

from __future__ import annotations

from labcli.render.chart_words import value_title, with_unit
from labcli.render.quantity import format_value
from labcli.render.svg.canvas import at, rect, text, v_line
from labcli.render.svg.rows import GAP, along, row_heading, track, value_axis
from labcli.render.svg.scale import Scale, full_scale
from labs.chart import Chart, ChartSeries

THICKNESS = 12  # px
LONGEST = 0.72  # of the width, where a bar's value stands behind it


def draw_bars(chart: Chart) -> tuple[str, float]:
    """The SVG inside and its height in px."""
    found = [value for series in chart.series for values in series.values for value in values]
    scale = Scale.over(found, full=full_scale(chart.unit, found))
    if is_predicted_and_measured(chart):
        rows, y = _with_predictions(chart, scale)
    elif len(chart.series) == 1:
        rows, y = _one_series(chart, scale)
    else:
        scale = Scale(scale.low, scale.low + (scale.high - scale.low) / LONGEST)
        rows, y = _several_series(chart, scale)
    axis, y = value_axis(scale, y, value_title(chart))
    return axis + rows, y


def is_predicted_and_measured(chart: Chart) -> bool:
    """Whether two series answer each other row by row."""
    series = {one.name: one for one in chart.series}
    return (
        chart.kind == "bars"
        and set(series) == {"predicted", "measured"}
        and series["predicted"].rows == series["measured"].rows
        and all(values for one in chart.series for values in one.values)
    )


def _with_predictions(chart: Chart, scale: Scale) -> tuple[str, float]:
    predicted, measured = sorted(chart.series, key=lambda series: series.name, reverse=True)
    body, y = "", 0.0
    for row, (expected, *_), (value, *_) in zip(predicted.rows, predicted.values, measured.values):
        told = with_unit(format_value(value, chart.unit), chart.unit)
        # Two floats that a person cannot tell apart are the same number here; the table beside it judges exactly.
        same = abs(value - expected) <= 1e-9 * max(abs(value), abs(expected))
        verdict = "✓" if same else f"(predicted {format_value(expected, chart.unit)})"
        heading, y = row_heading(y, row, f"{told} {verdict}")
        x = along(scale, expected)
        body += heading + track(y, THICKNESS) + _bar(scale, value, y, "f0")
        body += v_line(x, y - 2, y + THICKNESS + 2, "target")
        y += THICKNESS + GAP
    return body, y


def _one_series(chart: Chart, scale: Scale) -> tuple[str, float]:
    body, y = "", 0.0
    for row, values in zip(chart.series[0].rows, chart.series[0].values):
        if not values:
            continue
        heading, y = row_heading(y, row, with_unit(format_value(values[0], chart.unit), chart.unit))
        body += heading + track(y, THICKNESS) + _bar(scale, values[0], y, "f0")
        y += THICKNESS + GAP
    return body, y


def _several_series(chart: Chart, scale: Scale) -> tuple[str, float]:
    """A bar for each series that has the row, its value behind it; a stub for nothing, to tell whose nothing it is."""
    body, y = "", 0.0
    for row in dict.fromkeys(row for series in chart.series for row in series.rows):
        heading, y = row_heading(y, row, "")
        body += heading
        for number, series in enumerate(chart.series):
            value = _value_of(series, row)
            if value is None:
                continue
            told = with_unit(format_value(value, chart.unit), chart.unit)
            css = f"f{number % 6}"
            stub = f'<rect x="{at(along(scale, 0.0))}" y="{y:g}" width="2" height="{THICKNESS}" class="{css}"/>'
            body += _bar(scale, value, y, css) if value else stub
            body += text(along(scale, max(value, 0.0)), y + THICKNESS - 2, told, css="value", dx=5)
            y += THICKNESS + 4
        y += GAP - 4
    return body, y


def _value_of(series: ChartSeries, row: str) -> float | None:
    return series.values[series.rows.index(row)][0] if row in series.rows and series.values[series.rows.index(row)] else None


def _bar(scale: Scale, value: float, y: float, css: str) -> str:
    if not value:
        return ""
    zero, end = along(scale, 0.0), along(scale, value)
    return rect(min(zero, end), y, abs(end - zero), THICKNESS, css)
