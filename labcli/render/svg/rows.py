"""Rows of a chart: a label and a value on lines of their own, and below them what is drawn, over the whole width."""

from __future__ import annotations

from labcli.render.svg.canvas import LINE_HEIGHT, MIN_WIDTH, h_line, rect, text, text_lines, text_width, v_line, wrap_text
from labcli.render.svg.scale import Scale, fitting_ticks, short_number

GAP = 12  # px between rows
EDGE = 0.012  # of the width kept free on both sides of dots, so that one at an end is whole


def row_heading(y: float, label: str, value: str) -> tuple[str, float]:
    """The label to the left, the value to the right of its last line; and the y below both."""
    lines = wrap_text(label, MIN_WIDTH)
    if not value:
        return text_lines(0, y + LINE_HEIGHT - 4, lines), y + LINE_HEIGHT * len(lines)
    room = MIN_WIDTH - text_width(value) - 14
    beside = wrap_text(label, room) if room > 0 else []
    # A value that leaves the label little room gets its own line.
    lines = beside if beside and len(beside) <= len(lines) + 1 else [*lines, ""]
    y += LINE_HEIGHT * len(lines)
    body = text_lines(0, y - LINE_HEIGHT * (len(lines) - 1) - 4, [line for line in lines if line])
    return body + text(1, y - 4, value, "end", "value"), y


def along(scale: Scale, value: float, edge: float = 0.0) -> float:
    """The place of a value between the two edges."""
    return edge + (1 - 2 * edge) * scale.place(value)


def value_axis(scale: Scale, y: float, title: str, *, factor: float = 1.0, edge: float = 0.0) -> tuple[str, float]:
    """Grid lines from the top down to the axis at y, their numbers times `factor`, and what they count; and the y below."""
    scaled = Scale(scale.low * factor, scale.high * factor, scale.is_log)
    body = h_line(y, 0, 1, "axis")
    for tick in fitting_ticks(scaled, MIN_WIDTH):
        x = along(scaled, tick, edge)
        body += v_line(x, 0, y, "grid") + tick_number(x, y + LINE_HEIGHT - 2, tick)
    y += LINE_HEIGHT
    for line in wrap_text(title, MIN_WIDTH):
        y += LINE_HEIGHT
        body += text(1, y, line, "end", "unit")
    return body, y + 6


def tick_number(x: float, y: float, tick: float) -> str:
    """The number under a tick; one at an end stands inwards, so that nothing leaves the chart."""
    label = short_number(tick)
    half = text_width(label) / 2 / MIN_WIDTH
    return text(x, y, label, "start" if x < half else "end" if x > 1 - half else "middle", "tick")


def track(y: float, height: float) -> str:
    """What leads the eye from a row's label to its value."""
    return rect(0, y, 1, height, "track")
