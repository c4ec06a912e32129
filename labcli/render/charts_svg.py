"""A chart as an SVG image with a legend, for a page: no scripts, no fixed colours, its numbers also in words."""

from __future__ import annotations

from labcli.render.chart_words import describe_chart, run_lengths
from labcli.render.svg.bars import draw_bars, is_predicted_and_measured
from labcli.render.svg.block_map import STATE_CSS, draw_block_map
from labcli.render.svg.canvas import clean
from labcli.render.svg.lines import MAX_MARKS, draw_lines, is_prediction
from labcli.render.svg.times import draw_times
from labs.chart import BLOCK_STATES, Chart

_DRAW = {"bars": draw_bars, "times": draw_times, "lines": draw_lines, "block_map": draw_block_map}

# Hatches, dots and marks that all charts of a page share: series differ in pattern and shape, not in colour alone.
SHARED_DEFINITIONS = (
    '<svg width="0" height="0" class="shared" aria-hidden="true"><defs>'
    '<pattern id="p1" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" class="t1"/><rect width="3" height="6" class="c1"/></pattern>'
    '<pattern id="p2" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<rect width="6" height="6" class="t2"/><circle cx="3" cy="3" r="1.9" class="c2"/></pattern>'
    '<pattern id="p3" width="5" height="6" patternUnits="userSpaceOnUse">'
    '<rect width="5" height="6" class="t3"/><rect width="2" height="6" class="c3"/></pattern>'
    '<pattern id="p4" width="6" height="5" patternUnits="userSpaceOnUse">'
    '<rect width="6" height="5" class="t4"/><rect width="6" height="2" class="c4"/></pattern>'
    '<pattern id="p5" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">'
    '<rect width="7" height="7" class="t5"/><path d="M0 0H7M0 0V7" class="c5"/></pattern>'
    '<pattern id="pu" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="5" height="5" class="tu"/><rect width="1.5" height="5" class="cu"/></pattern>'
    # The marks become smaller, so that one does not hide an earlier one at the same place.
    '<circle id="m0" r="5.5"/><rect id="m1" x="-4" y="-4" width="8" height="8"/><path id="m2" d="M0 -4.5L4.5 3.5H-4.5Z"/>'
    '<path id="m3" d="M0 -4L4 0L0 4L-4 0Z"/><path id="m4" d="M-3.5 -1.2H-1.2V-3.5H1.2V-1.2H3.5V1.2H1.2V3.5H-1.2V1.2H-3.5Z"/>'
    '<path id="m5" d="M0 3.5L3 -2.5H-3Z"/></defs></svg>'
)


def chart_figure(chart: Chart, number: int) -> str:
    """A <figure>: title, legend, picture. `number` tells it from the page's other charts."""
    body, height = _DRAW[chart.kind](chart)
    legend = "".join(f"<li>{sample}{clean(words)}</li>" for sample, words in _legend(chart))
    return (
        f'<figure><figcaption id="t{number}">{clean(chart.title)}</figcaption>'
        + (f'<ul class="legend">{legend}</ul>' if legend else "")
        + f'<div class="plot"><svg role="img" aria-labelledby="t{number} d{number}" class="chart" '
        f'height="{height:g}"><desc id="d{number}">{clean(describe_chart(chart))}</desc>'
        f"{body}</svg></div></figure>\n"
    )


def _legend(chart: Chart) -> list[tuple[str, str]]:
    """Samples of what is drawn, each with its words; none for a lone series that the title explains."""
    if chart.kind == "block_map":
        used = {letter for series in chart.series for cells in series.cells for letter, _ in run_lengths(cells)}
        return [(_swatch(f"cell {STATE_CSS[letter]}", letter), words) for letter, words in BLOCK_STATES.items() if letter in used]
    if chart.kind == "times":
        dots = [
            (_dot(number), series.name if len(chart.series) > 1 else "one sample") for number, series in enumerate(chart.series)
        ]
        return [*dots, (_target(), "median"), ("", "beside it: median [least–most] (number of samples)")]
    if chart.kind == "lines":
        return [(_line_sample(chart, number), series.name) for number, series in enumerate(chart.series)]
    if is_predicted_and_measured(chart):
        return [(_swatch("f0"), "measured"), (_target(), "predicted"), ("", "✓ as predicted")]
    if len(chart.series) == 1:
        return []
    return [(_swatch(f"f{number % 6}"), series.name) for number, series in enumerate(chart.series)]


def _sample(inside: str, width: int = 18) -> str:
    return f'<svg class="sample" width="{width}" height="14" aria-hidden="true">{inside}</svg>'


def _swatch(css: str, letter: str = "") -> str:
    told = f'<text x="50%" y="11" class="on-{css.removeprefix("cell ")}">{letter}</text>' if letter else ""
    return _sample(f'<rect x="1" y="1" width="16" height="12" class="{css}"/>{told}')


def _dot(number: int) -> str:
    return _sample(f'<circle cx="9" cy="7" r="4" class="dot d{number % 6}"/>')


def _target() -> str:
    return _sample('<line x1="9" x2="9" y1="0" y2="14" class="target"/>')


def _line_sample(chart: Chart, number: int) -> str:
    series = chart.series[number]
    if is_prediction(series):
        return _sample('<line x1="0" x2="30" y1="7" y2="7" class="law"/>', 30)
    has_marks = len(series.points) <= MAX_MARKS
    marked = f'<use href="#m{number % 6}" x="15" y="7" class="mk k{number % 6}"/>' if has_marks else ""
    return _sample(f'<line x1="0" x2="30" y1="7" y2="7" class="ln l{number % 6}"/>{marked}', 30)
