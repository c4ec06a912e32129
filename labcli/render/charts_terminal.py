"""A chart in a terminal: bars, dots and letters; colour helps, and nothing depends on it.

shared system prompt    ████████████████▌   81.8 % ✓
first request (cold)    ·  ∙┃●·             86.0 ms [82.5–89.8] (20)
step 3                  AAAAAAaacccccccc.x
"""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labcli.render.chart_words import value_title, with_unit
from labcli.render.quantity import format_seconds, format_value
from labcli.render.svg.bars import is_predicted_and_measured
from labcli.render.svg.lines import in_readable_units, is_prediction
from labcli.render.svg.scale import Scale, full_scale, short_number
from labcli.render.trimmed import Trimmed
from labs.chart import BLOCK_STATES, Chart, ChartSeries

COLORS = ("blue", "yellow", "green", "magenta", "cyan", "red")
MARKS = "oxv+*#"  # of the lines of one plot
PLOT_ROWS = 12
MOST_WIDTH = 100  # columns; a wider picture is no clearer
_EIGHTHS = " ▏▎▍▌▋▊▉"
_STATE_STYLES = {".": "dim", "a": "black on yellow", "A": "bold white on blue", "c": "black on cyan", "x": "bold white on red"}


def print_chart(chart: Chart, console: Console) -> None:
    """Title, picture, and the words that say how to read it."""
    console.print(Trimmed(Text(chart.title, style="bold")))
    draw = {"bars": _bars, "times": _times, "lines": _lines, "block_map": _block_map}[chart.kind]
    draw(chart, console)


def _bars(chart: Chart, console: Console) -> None:
    found = [value for series in chart.series for values in series.values for value in values]
    scale = Scale.over(found, full=full_scale(chart.unit, found))
    paired = is_predicted_and_measured(chart)
    shown = [series for series in chart.series if not (paired and series.name == "predicted")]
    expected = next((dict(zip(one.rows, one.values)) for one in chart.series if paired and one.name == "predicted"), {})
    entries: list[tuple[str, float, str, str, float | None]] = []  # label, value, words, colour, predicted
    for row in dict.fromkeys(row for series in shown for row in series.rows):
        for number, series in enumerate(shown):
            if row not in series.rows or not (values := series.values[series.rows.index(row)]):
                continue
            label = row if len(shown) == 1 else f"{row}, {series.name}"
            words, predicted = with_unit(format_value(values[0], chart.unit), chart.unit), None
            if paired:
                predicted = expected[row][0]
                same = abs(values[0] - predicted) <= 1e-9 * max(abs(values[0]), abs(predicted))
                words += " ✓" if same else f" (predicted {format_value(predicted, chart.unit)})"
            entries.append((label, values[0], words, COLORS[number % 6], predicted))
    label_width, width = _widths(console, [entry[0] for entry in entries], [entry[2] for entry in entries])
    table = _grid(label_width)
    for label, value, words, color, predicted in entries:
        bar = _bar(scale, value, width, console.options.ascii_only)
        if predicted is not None:
            place = min(width - 1, int(scale.place(predicted) * width))
            bar = bar[:place] + "│" + bar[place + 1 :]
        table.add_row(Text(label), Text(bar, style=color), Text(words))
    console.print(Trimmed(Padding(table, (0, 0, 0, 2))))
    how = f"{value_title(chart)}; │ is where the bar was predicted to end" if paired else value_title(chart)
    console.print(Trimmed(Padding(Text(how, style="dim"), (0, 0, 0, 2))))


def _bar(scale: Scale, value: float, width: int, ascii_only: bool) -> str:
    """`width` cells with the part between 0 and the value filled; eighths of a cell at a right end."""
    low, high = sorted((scale.place(0.0) * width, scale.place(value) * width))
    cells = ""
    for cell in range(width):
        filled = max(0.0, min(high, cell + 1) - max(low, cell))
        if ascii_only:
            cells += "#" if filled >= 0.5 else " "
        else:
            cells += "█" if filled >= 0.99 else _EIGHTHS[int(filled * 8)]
    if value and not cells.strip():  # something is not nothing
        at = min(width - 1, int(low))
        cells = cells[:at] + ("#" if ascii_only else "▏") + cells[at + 1 :]
    return cells


def _times(chart: Chart, console: Console) -> None:
    samples = [value for series in chart.series for values in series.values for value in values]
    medians = [statistics.median(values) for series in chart.series for values in series.values if values]
    is_log = chart.log_x or (bool(medians) and min(samples) > 0 and max(medians) > 50 * min(medians))
    scale = Scale.over(samples, is_log=is_log)
    entries = [
        (row if len(chart.series) == 1 else f"{row}, {series.name}", values, number)
        for number, series in enumerate(chart.series)
        for row, values in zip(series.rows, series.values)
        if values
    ]
    words = [format_seconds(values) + (f" ({len(values)})" if len(values) > 1 else "") for _, values, _ in entries]
    label_width, width = _widths(console, [label for label, _, _ in entries], words)
    table = _grid(label_width)
    for (label, values, number), told in zip(entries, words):
        counts = Counter(min(width - 1, int(scale.place(value) * width)) for value in values)
        most = max(counts.values())
        strip = "".join(
            " " if not (n := counts[cell]) else "·" if n <= most / 3 and most > 1 else "∙" if n <= most / 2 else "●"
            for cell in range(width)
        )
        at = min(width - 1, int(scale.place(statistics.median(values)) * width))
        table.add_row(Text(label), Text(strip[:at] + "┃" + strip[at + 1 :], style=COLORS[number % 6]), Text(told))
    console.print(Trimmed(Padding(table, (0, 0, 0, 2))))
    ends = f"from {format_seconds([scale.low])} to {format_seconds([scale.high])}{', logarithmic' if scale.is_log else ''}"
    how = Text(f"{ends}; ┃ median, · few to ● many samples; median [least–most] (samples)", style="dim")
    console.print(Trimmed(Padding(how, (0, 0, 0, 2))))


def _lines(chart: Chart, console: Console) -> None:
    chart, y_title = in_readable_units(chart)
    points = [point for series in chart.series for point in series.points]
    xs = [x for x, _ in points]
    x_scale = Scale.over(xs, from_zero=bool(xs) and 0 <= min(xs) < max(xs) / 4, is_log=chart.log_x)
    y_scale = Scale.over([y for _, y in points], full=100 if chart.unit == "%" else None).rounded()
    labels = {round((PLOT_ROWS - 1) * (1 - y_scale.place(tick))): short_number(tick) for tick in y_scale.ticks(5)}
    left = max(map(len, labels.values()), default=0)
    width = max(20, min(console.width, MOST_WIDTH) - left - 6)
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    for number, series in enumerate(chart.series):
        _draw_line(series, number, cells, width, x_scale, y_scale)
    console.print(Trimmed(Padding(Text(y_title, style="dim"), (0, 0, 0, 2))))
    for row in range(PLOT_ROWS):
        line = Text(f"  {labels.get(row, ''):>{left}} ┤" if row in labels else f"  {'':>{left}} │", style="dim")
        for column in range(width):
            mark, color = cells.get((row, column), (" ", ""))
            line.append(mark, style=color or None)
        line.rstrip()
        console.print(line)
    console.print(Text(f"  {'':>{left}} └{'─' * width}", style="dim"))
    first, last = short_number(x_scale.low), short_number(x_scale.high)
    middle = chart.x_label + (", logarithmic" if x_scale.is_log else "")
    console.print(Text(f"  {'':>{left}}  {first}{middle:^{max(0, width - len(first) - len(last))}}{last}", style="dim"))
    entries = [
        Text(f"{'·' if is_prediction(series) else MARKS[number % 6]} {series.name}", style=COLORS[number % 6])
        for number, series in enumerate(chart.series)
    ]
    if any(mark == "&" for mark, _ in cells.values()):
        entries.append(Text("& several", style="dim"))
    fits = sum(entry.cell_len + 3 for entry in entries) <= console.width
    console.print(Trimmed(Padding(Text("   " if fits else "\n").join(entries), (0, 0, 0, 2))))


def _draw_line(
    series: ChartSeries, number: int, cells: dict[tuple[int, int], tuple[str, str]], width: int, x_scale: Scale, y_scale: Scale
) -> None:
    """Dots from point to point, and a measured series' mark on each point; "&" where two series have one."""
    color = COLORS[number % 6]

    def cell(x: float, y: float) -> tuple[int, int]:
        return round((PLOT_ROWS - 1) * (1 - y)), round((width - 1) * x)

    placed = [(x_scale.place(x), y_scale.place(y)) for x, y in series.points]
    for (x, y), (next_x, next_y) in zip(placed, placed[1:]):
        steps = max(abs(next_x - x) * width, abs(next_y - y) * PLOT_ROWS)
        for step in range(int(steps) + 1):
            part = step / max(1.0, steps)
            cells.setdefault(cell(x + (next_x - x) * part, y + (next_y - y) * part), ("·", color))
    for x, y in () if is_prediction(series) else placed:
        mark, other = cells.get(cell(x, y), ("·", color))
        taken = mark not in ("·", MARKS[number % 6]) and other != color
        cells[cell(x, y)] = ("&", "") if taken else (MARKS[number % 6], color)


def _block_map(chart: Chart, console: Console) -> None:
    width = min(console.width, MOST_WIDTH)
    for series in chart.series:
        if len(chart.series) > 1:
            console.print(Trimmed(Padding(Text(series.name), (0, 0, 0, 2))))
        labels = series.rows or tuple(str(number) for number in range(1, len(series.cells) + 1))
        label_width = min(max(map(len, labels), default=0), width // 3)
        room = max(10, width - label_width - 6)
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=label_width, overflow="fold")
        table.add_column(no_wrap=True)
        for label, cells in zip(labels, series.cells):
            lines = [cells[start : start + room] for start in range(0, len(cells), room)] or [""]
            table.add_row(Text(label), Text("\n").join(map(_letters, lines)))
        console.print(Trimmed(Padding(table, (0, 0, 0, 2))))
    used = {letter for series in chart.series for cells in series.cells for letter in cells}
    legend = "; ".join(f"{letter} {words}" for letter, words in BLOCK_STATES.items() if letter in used)
    down = f"downwards: {chart.x_label}; " if chart.x_label else ""
    console.print(Trimmed(Padding(Text(f"{down}{legend}", style="dim"), (0, 0, 0, 2))))


def _letters(cells: str) -> Text:
    text = Text()
    for letter in cells:
        text.append(letter, style=_STATE_STYLES[letter])
    return text


def _grid(label_width: int) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=label_width, overflow="fold")
    table.add_column(no_wrap=True)
    table.add_column(justify="right", overflow="fold")
    return table


def _widths(console: Console, labels: Sequence[str], words: Sequence[str]) -> tuple[int, int]:
    """Columns for labels and for what is drawn; the words get what they need, up to a half."""
    width = min(console.width, MOST_WIDTH) - 4
    label_width = min(max(map(len, labels), default=0), max(12, width * 2 // 5))
    words_width = min(max(map(len, words), default=0), width // 2)
    return label_width, max(8, width - label_width - words_width - 2)
