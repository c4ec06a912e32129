"""Block map: one line a step, runs of equal blocks as boxes with their letter, so that it reads without colour."""

from __future__ import annotations

from labcli.render.chart_words import run_lengths
from labcli.render.svg.canvas import LINE_HEIGHT, MIN_WIDTH, at, rect, text, text_lines, text_width, v_line, wrap_text
from labs.chart import Chart, ChartSeries

ROW = 18  # px
LETTER = 9  # px that a letter needs
STATE_CSS = {".": "free", "a": "used", "A": "held", "c": "kept", "x": "gone"}


def draw_block_map(chart: Chart) -> tuple[str, float]:
    """The SVG inside and its height in px."""
    body, y = "", 0.0
    for series in chart.series:
        if len(chart.series) > 1:
            lines = wrap_text(series.name, MIN_WIDTH)
            body += text_lines(0, y + LINE_HEIGHT - 4, lines)
            y += LINE_HEIGHT * len(lines)
        drawn, y = _draw_series(series, y)
        body += drawn
    for line in wrap_text(_axis_words(chart), MIN_WIDTH):
        body += text(1, y + LINE_HEIGHT - 6, line, "end", "unit")
        y += LINE_HEIGHT
    return body, y


def _draw_series(series: ChartSeries, y: float) -> tuple[str, float]:
    """Steps below each other from y on, and the y below them."""
    labels = series.rows or tuple(str(number) for number in range(1, len(series.cells) + 1))
    widest = max(map(text_width, labels), default=0.0)
    beside = widest <= 0.3 * MIN_WIDTH  # longer labels stand above their line
    left = (widest + 10) / MIN_WIDTH if beside else 0.0
    body, letters, top = "", _Letters(), y
    for label, cells in zip(labels, series.cells):
        lines = [label] if beside else wrap_text(label, MIN_WIDTH)
        body += text_lines(0, y + (ROW - 5 if beside else LINE_HEIGHT - 4), lines)
        y += 0 if beside else LINE_HEIGHT * len(lines)
        body += _step(cells, left, y, letters)
        y += ROW + (3 if beside else 6)
    # Between blocks one line through all steps, in the page's colour, so that it shows in the boxes alone.
    num_blocks = max(map(len, series.cells), default=0)
    share = (1 - left) / max(1, num_blocks)
    if beside and share * MIN_WIDTH >= LETTER:
        body += "".join(v_line(left + number * share, top, y, "between") for number in range(1, num_blocks))
    return body + letters.svg(), y + LINE_HEIGHT / 2


def _axis_words(chart: Chart) -> str:
    down = f"; downwards: {chart.x_label}" if chart.x_label else ""
    return f"{chart.y_label or 'blocks of the pool, from left to right'}{down}"


class _Letters:
    """Letters of a series, gathered by state: one element holds all of a state, each letter with its own place."""

    def __init__(self) -> None:
        self._places: dict[str, list[tuple[float, float]]] = {}

    def add(self, letter: str, x: float, y: float) -> None:
        self._places.setdefault(letter, []).append((x, y))

    def svg(self) -> str:
        return "".join(
            f'<text x="{" ".join(at(x) for x, _ in places)}" y="{" ".join(f"{y:g}" for _, y in places)}" '
            f'class="on-{STATE_CSS[letter]}">{letter * len(places)}</text>'
            for letter, places in self._places.items()
        )


def _step(cells: str, left: float, y: float, letters: _Letters) -> str:
    """A box for each run of equal blocks, with each block's letter where there is room, else with one."""
    body, done = "", 0
    share = (1 - left) / max(1, len(cells))
    for letter, count in run_lengths(cells):
        x = left + done * share
        body += rect(x, y, count * share, ROW, f"cell {STATE_CSS[letter]}")
        if share * MIN_WIDTH >= LETTER:
            for number in range(count):
                letters.add(letter, x + (number + 0.5) * share, y + ROW - 5)
        elif count * share * MIN_WIDTH >= LETTER + 2:
            letters.add(letter, x + count * share / 2, y + ROW - 5)
        done += count
    return body
