"""Times: every sample a dot, the median a line; rows share one axis, which begins at zero."""

from __future__ import annotations

import statistics

from labcli.render.chart_words import axis_unit
from labcli.render.quantity import format_seconds
from labcli.render.svg.canvas import at, v_line
from labcli.render.svg.rows import EDGE, GAP, along, row_heading, track, value_axis
from labcli.render.svg.scale import Scale
from labs.chart import Chart

STRIP = 14  # px
MAX_DOTS = 60  # of a row; of more samples, evenly chosen ones with both ends


def draw_times(chart: Chart) -> tuple[str, float]:
    """The SVG inside and its height in px."""
    samples = [value for series in chart.series for values in series.values for value in values]
    medians = [statistics.median(values) for series in chart.series for values in series.values if values]
    # Rows a hundred times apart would leave one of them a point at zero.
    is_log = chart.log_x or (bool(medians) and min(samples) > 0 and max(medians) > 50 * min(medians))
    scale = Scale.over(samples, is_log=is_log)
    factor, unit = axis_unit(scale.high)
    body, y = "", 0.0
    for number, series in enumerate(chart.series):
        for row, values in zip(series.rows, series.values):
            if not values:
                continue
            label = row if len(chart.series) == 1 else f"{row}, {series.name}"
            count = f" ({len(values)})" if len(values) > 1 else ""
            heading, y = row_heading(y, label, format_seconds(values) + count)
            body += heading + track(y, STRIP)
            dots = "".join(_dot(along(scale, value, EDGE), y + STRIP / 2) for value in _some(sorted(values)))
            body += f'<g class="dot d{number % 6}">{dots}</g>'
            x = along(scale, statistics.median(values), EDGE)
            body += v_line(x, y - 1, y + STRIP + 1, "target")
            y += STRIP + GAP
    title = f"{unit}{', logarithmic: each step multiplies' if scale.is_log else ''}"
    axis, y = value_axis(scale, y, title, factor=factor, edge=EDGE)
    return axis + body, y


def _dot(x: float, y: float) -> str:
    return f'<circle cx="{at(x)}" cy="{y:g}" r="4"/>'


def _some(values: list[float]) -> list[float]:
    if len(values) <= MAX_DOTS:
        return values
    return [values[round(number * (len(values) - 1) / (MAX_DOTS - 1))] for number in range(MAX_DOTS)]
