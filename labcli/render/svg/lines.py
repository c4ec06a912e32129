"""Lines: y over x. A series of predictions is a dashed line, measured ones have marks of their own shape."""

from __future__ import annotations

from dataclasses import replace

from labcli.render.chart_words import axis_unit, value_title
from labcli.render.svg.canvas import LINE_HEIGHT, MIN_WIDTH, at, h_line, mark, text, text_lines, text_width, v_line, wrap_text
from labcli.render.svg.rows import tick_number
from labcli.render.svg.scale import Scale, fitting_ticks, short_number
from labs.chart import Chart, ChartSeries

HEIGHT = 220  # px of the plot
MAX_MARKS = 40  # of a line; more would hide it
MAX_POINTS = 240  # of a line; more than a screen shows apart
TOP = 10  # px above the plot


def draw_lines(chart: Chart) -> tuple[str, float]:
    """The SVG inside and its height in px."""
    chart, y_title = in_readable_units(chart)
    points = [point for series in chart.series for point in series.points]
    xs = [x for x, _ in points]
    # A line that begins near 0 is read as one through 0, so 0 is there to see.
    x_scale = Scale.over(xs, from_zero=bool(xs) and 0 <= min(xs) < max(xs) / 4, is_log=chart.log_x)
    y_scale = Scale.over([y for _, y in points], full=100 if chart.unit == "%" else None).rounded()
    title = wrap_text(y_title, MIN_WIDTH)
    top = TOP + LINE_HEIGHT * len(title)
    y_ticks = y_scale.ticks(5)
    # The numbers of the y axis stand to the left of the plot, at the narrowest width too.
    left = (max((text_width(short_number(tick)) for tick in y_ticks), default=0) + 10) / MIN_WIDTH
    right = 1 - 0.02
    body = text_lines(0, LINE_HEIGHT - 4, title, "unit")

    def across(x: float) -> float:
        return left + (right - left) * x_scale.place(x)

    def down(y: float) -> float:
        return top + HEIGHT * (1 - y_scale.place(y))

    for tick in y_ticks:
        body += h_line(round(down(tick), 1), left, 1, "grid")
        body += text(left, round(down(tick) + 4, 1), short_number(tick), "end", "tick", dx=-6)
    bottom = top + HEIGHT
    body += h_line(bottom, left, 1, "axis")
    for tick in fitting_ticks(x_scale, MIN_WIDTH * (right - left)):
        x = across(tick)
        body += v_line(x, bottom, bottom + 4, "axis") + tick_number(x, bottom + LINE_HEIGHT + 2, tick)
    x_title = wrap_text(chart.x_label + (", logarithmic" if x_scale.is_log else ""), MIN_WIDTH)
    y_text = bottom + 2 * LINE_HEIGHT + 4
    body += "".join(text(1, y_text + number * LINE_HEIGHT, line, "end", "unit") for number, line in enumerate(x_title))
    for number, series in enumerate(chart.series):
        body += _line(series, number, left, right, top, x_scale, y_scale)
        if not is_prediction(series) and len(series.points) <= MAX_MARKS:
            marks = "".join(mark(across(x), round(down(y), 1), number) for x, y in series.points)
            body += f'<g class="mk k{number % 6}">{marks}</g>'
    return body, y_text + LINE_HEIGHT * (len(x_title) - 1) + 6


def in_readable_units(chart: Chart) -> tuple[Chart, str]:
    """The chart with seconds as milliseconds, … where they are small, and the title of its y axis."""
    title = value_title(chart)
    if chart.unit != "s":
        return chart, title
    factor, unit = axis_unit(max((y for series in chart.series for _, y in series.points), default=1.0))
    series = tuple(replace(one, points=tuple((x, y * factor) for x, y in one.points)) for one in chart.series)
    named = title.removesuffix("seconds").removesuffix(", s").rstrip(", ")
    return replace(chart, series=series), f"{named}, {unit}" if named else unit


def is_prediction(series: ChartSeries) -> bool:
    """Whether a line tells what the law says, rather than what was measured."""
    return "predict" in series.name.lower() or series.name.lower().startswith("law")


def _line(series: ChartSeries, number: int, left: float, right: float, top: float, x_scale: Scale, y_scale: Scale) -> str:
    """The line alone, in a frame that stretches; its width does not (vector-effect)."""
    path = " ".join(
        f"{round(1000 * x_scale.place(x), 1):g},{round(HEIGHT * (1 - y_scale.place(y)), 1):g}" for x, y in _some(series.points)
    )
    css = "law" if is_prediction(series) else f"ln l{number % 6}"
    return (
        f'<svg x="{at(left)}" y="{top:g}" width="{at(right - left)}" height="{HEIGHT}" viewBox="0 0 1000 {HEIGHT}" '
        f'preserveAspectRatio="none" overflow="visible"><polyline points="{path}" class="{css}"/></svg>'
    )


def _some(points: tuple[tuple[float, float], ...]) -> list[tuple[float, float]]:
    """All points of a short line; of a long one the lowest and highest of each stretch, so that no peak is lost."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = -(-len(points) // (MAX_POINTS // 2))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        ends = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
        kept += sorted(ends, key=stretch.index)
    return [points[0], *kept, points[-1]]
