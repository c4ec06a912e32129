"""Every kind of chart is drawn, in a terminal and as SVG, with its numbers, its units and no colour alone."""

import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from rich.console import Console

from labcli.render.chart_words import describe_chart
from labcli.render.charts_svg import chart_figure
from labcli.render.charts_terminal import print_chart
from labcli.render.record_charts import MAX_ROWS, charts_of, derived_charts
from labcli.render.svg.scale import Scale, fitting_ticks, short_number
from labs.chart import Chart, ChartSeries, bars_of, times_of
from labs.protocol import Measurement, Prediction
from tests.labcli.chart_records import every_chart, hostile_text

CHARTS = {chart.title: chart for chart in every_chart()}


def drawn(chart, width=80):
    """What a terminal without colours shows."""
    text = io.StringIO()
    print_chart(chart, Console(file=text, width=width, highlight=False, color_system=None))
    return text.getvalue()


@pytest.mark.parametrize("title", CHARTS)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_chart_fits_any_terminal(title, width):
    lines = drawn(CHARTS[title], width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(title[:30])


def test_a_bar_is_as_long_as_its_value_and_marks_where_it_was_predicted_to_end():
    rows = {"predicted": [("half", 50.0), ("none", 100.0)], "measured": [("half", 50.0), ("none", 0.0)]}
    half, none = drawn(bars_of("t", rows, "%")).splitlines()[1:3]
    width = none.index("│") - half.index("█") + 1
    assert abs(half.count("█") - width / 2) <= 1 and "50 % ✓" in half
    assert "█" not in none and "0 % (predicted 100)" in none


def test_bars_that_start_left_of_zero_end_at_zero():
    less, more = drawn(bars_of("t", {"saved": [("less", -10), ("more", 10)]})).splitlines()[1:3]
    assert less.rindex("█") < more.index("█")


def test_samples_stand_at_their_time():
    first, second = drawn(times_of("t", {"early": [0.01], "late": [0.1]})).splitlines()[1:3]
    start = len("  early ")
    assert 0 < first.index("┃") - start < (second.index("┃") - start) / 8
    assert "10.0 ms" in first and "100 ms" in second


def test_a_line_rises_and_series_have_marks_of_their_own():
    points = tuple((float(x), float(x)) for x in range(11))
    flat = tuple((x, 5.0) for x, _ in points)
    lines = drawn(
        Chart("lines", "t", (ChartSeries("a", points=points), ChartSeries("b", points=flat)), "tokens", "x")
    ).splitlines()
    top, bottom = lines[2], next(line for line in reversed(lines) if "┤" in line)
    assert top.partition("┤")[2].index("o") > bottom.partition("┤")[2].index("o") == 0
    assert "o a   x b   & several" in lines[-1]


def test_a_block_map_shows_one_letter_a_block_and_what_each_means():
    text = drawn(CHARTS["Two conversations take turns in a pool of 24 blocks"])
    assert "step 2  AAAAaaccccccccccccccccx." in text
    for words in ("c free, cached", "x evicted in this step", "downwards: step"):
        assert words in " ".join(text.split())


@pytest.mark.parametrize("title", CHARTS)
def test_an_svg_is_sound_and_tells_its_numbers_to_who_cannot_see_it(title):
    chart = CHARTS[title]
    figure = ElementTree.fromstring(chart_figure(chart, 7))
    picture = svg(chart)
    assert picture.get("role") == "img"
    named = [figure.find(f".//*[@id='{name}']").text for name in picture.get("aria-labelledby").split()]
    assert named == [title, describe_chart(chart)]
    assert len(named[1]) > 40


def svg(chart):
    """The picture of a figure, parsed as XML; every reference inside it is to the page itself."""
    figure = chart_figure(chart, 7)
    assert not re.search(r"(href|src)=\"(?!#)", figure) and "<script" not in figure
    return ElementTree.fromstring(figure).find(".//svg[@role='img']")


def test_the_words_of_a_chart_hold_every_value():
    words = describe_chart(CHARTS["Hit rate by scenario: one token in front costs every block"])
    assert "fresh salt per request 12.5 %" in words and "predicted: shared system prompt 81.8 %" in words
    pool = describe_chart(CHARTS["Two conversations take turns in a pool of 24 blocks"])
    assert "step 3: 1 free, holds nothing, 2 in use, not findable, 6 in use, cached, 14 free, cached, 1 evicted" in pool
    assert describe_chart(CHARTS["Hits grow a block at a time"]).count("→") == 40 + 16


def test_bars_of_an_svg_have_their_share_of_the_width():
    bars = svg(bars_of("t", {"saved": [("a", 25.0), ("b", 100.0)]}, "%")).findall(".//rect[@class='f0']")
    assert [bar.get("width") for bar in bars] == ["25%", "100%"]


def test_small_times_over_x_are_told_in_a_unit_that_fits():
    chart = Chart("lines", "t", (ChartSeries("a", points=((1.0, 0.0002), (2.0, 0.0004))),), "s", "tokens", "time of a lookup")
    assert "time of a lookup, microseconds" in drawn(chart) and "400 ┤" in drawn(chart)
    assert [text.text for text in svg(chart).findall(".//text") if "unit" in text.get("class", "")] == [
        "time of a lookup, microseconds",
        "tokens",
    ]


def test_series_differ_in_more_than_colour():
    text = chart_figure(CHARTS["Six series that cross"], 1)
    assert len(set(re.findall(r'href="#(m\d)"', text))) == 6
    letters = re.findall(r'class="on-\w+">(.)<', chart_figure(CHARTS["Two conversations take turns in a pool of 24 blocks"], 1))
    assert set(letters) == set(".aAcx")


def test_texts_of_a_chart_are_no_markup():
    hostile = hostile_text()
    text = chart_figure(bars_of(hostile, {hostile: [(hostile, 1.0)]}, unit=hostile), 1)
    assert "<script" not in text and "<img" not in text
    ElementTree.fromstring(text.encode("utf-8"))


@pytest.mark.parametrize("chart", [
    Chart("bars", "t", ()), Chart("times", "t", ()), Chart("lines", "t", ()), Chart("block_map", "t", ()),
    Chart("bars", "t", (ChartSeries("a", ("r",), ((),)),)), Chart("times", "t", (ChartSeries("a", ("r",), ((),)),)),
    Chart("lines", "t", (ChartSeries("a"), ChartSeries("b", points=((1.0, 1e300), (1.0, -1e300)))), log_x=True),
    Chart("lines", "t", (ChartSeries("a", points=((0.0, 0.0),)),), log_x=True),
    Chart("block_map", "t", (ChartSeries("a", ("r",), cells=("",)),)),
])  # fmt: skip
def test_a_chart_with_little_or_extreme_data_is_drawn_all_the_same(chart):
    assert drawn(chart)
    assert svg(chart) is not None


def test_a_lab_without_charts_gets_its_counts_and_its_times():
    found = [
        Measurement("hits", "tokens", (value,), "hash", f"row {value}", Prediction(16, "law")) for value in range(MAX_ROWS + 5)
    ]
    found += [Measurement("ttft_cold", "s", (0.1, 0.2), "hash", "row 1"), Measurement("ttft_warm", "s", (0.01,), "hash", "row 1")]
    counts, times = derived_charts(found)
    assert (counts.kind, counts.title, len(counts.series[0].rows)) == ("bars", "hits, predicted and measured: hash", MAX_ROWS)
    assert [series.name for series in counts.series] == ["predicted", "measured"]
    assert times.series[0].rows == ("row 1, TTFT cold", "row 1, TTFT warm") and times.series[0].values[0] == (0.1, 0.2)
    assert derived_charts(()) == ()


def test_ticks_are_round_within_the_axis_and_apart():
    assert Scale(0, 18_000).ticks() == [0, 5_000, 10_000, 15_000]
    assert Scale(8, 2048, True).ticks() == [8, 32, 128, 512, 2048]
    assert Scale(1e-6, 10.0, True).ticks(4) == [1e-6, 1e-4, 1e-2, 1.0]
    assert len(fitting_ticks(Scale(0, 123_456_789_000), 100)) < 5
    assert [short_number(value) for value in (0, 0.25, 1500, 2_500_000, 1e-20)] == ["0", "0.25", "1,500", "2.5M", "1e-20"]


def test_a_chart_of_thousands_of_rows_shows_the_first_and_says_so(record):
    rows = [(f"row {number}", 1.0) for number in range(5_000)]
    kept = replace(record, charts=(bars_of("title", {"predicted": rows, "measured": rows}),))
    (chart,) = charts_of(kept)
    assert chart.title == "title (the first 200 of 5,000 rows)"
    assert "row 199" in drawn(chart) and "row 200" not in drawn(chart)


def test_a_value_too_small_for_its_width_is_still_seen():
    bars = svg(bars_of("t", {"saved": [("a", 0.001), ("b", 100.0)]}, "%")).findall(".//rect[@class='f0']")
    assert [bar.get("width") for bar in bars] == ["0.1%", "100%"]
