"""A report is readable at any width: numbers are never cut, and nothing but text is written into a pipe."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from labcli.render.lab_report import print_lab_report
from labcli.render.quantity import format_samples, format_seconds, format_value
from labs.protocol import Measurement, Prediction

ROWS = ("shared fraction", "fresh salt per request", "one unique token prepended to the system prompt")


@pytest.fixture
def wide_record(record):
    measurements = []
    for group in ("hash cache, block 16", "radix cache, page 1"):
        for row in ROWS:
            measurements += [
                Measurement("queries", "tokens", (22_000,), group, row, Prediction(22_000, "N·L = 10·2,200")),
                Measurement("hits", "tokens", (17_984,), group, row, Prediction(18_000, "(N−1)·B·⌊P/B⌋")),
                Measurement("ttft_cold", "s", (0.0823, 0.0801, 0.0904), group, row, note="first request"),
                Measurement("ttft_unrelated", "s", (0.0813,), group, row),
            ]
    return replace(record, measurements=tuple(measurements), findings=("[salt] ids equal",), conclusion="It works. " * 30)


def printed(record, width):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_lab_report(record, None, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [50, 60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(wide_record, width):
    text = printed(wide_record, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert "\x1b" not in text
    assert text.count("17,984") == text.count("✗") == 6
    assert text.count("22,000") == 12
    assert text.count("82.3 ms [80.1–90.4]") == 6
    assert "6 of 12 predictions met exactly" in text


def test_text_of_a_lab_is_not_taken_for_markup(wide_record):
    assert "[salt] ids equal" in printed(wide_record, 80)


def test_laws_of_missed_predictions_are_told_and_notes_once_a_group(wide_record):
    text = printed(wide_record, 120)
    assert text.count("hits = (N−1)·B·⌊P/B⌋") == 2  # missed in both groups, in every row
    assert "N·L" not in text  # met, and not called key by the lab
    assert text.count("first request") == 2


def test_a_key_law_of_some_rows_names_them(wide_record):
    one, *others = wide_record.measurements
    text = printed(replace(wide_record, measurements=(replace(one, key=True), *others)), 120)
    assert "queries = N·L = 10·2,200  (shared fraction)" in text


@pytest.mark.parametrize(
    "samples, text",
    [
        ((1.5,), "1.50 s"),
        ((0.0823, 0.0801, 0.0904), "82.3 ms [80.1–90.4]"),
        ((0.00075,), "750 µs"),
        ((0,), "0.00 s"),
        ((1234.0,), "1,234 s"),
    ],
)
def test_seconds_are_told_in_the_unit_that_fits(samples, text):
    assert format_seconds(samples) == text


def test_counts_have_thousands_separators_and_ratios_four_digits():
    assert format_value(18_000, "tokens") == "18,000"
    assert format_value(0.818181, "ratio") == "0.8182"
    assert format_samples((1, 1, 1), "tokens") == "1"
    assert format_samples((1.0, 2.0, 4.0), "ratio") == "2 [1–4]"


def test_of_thousands_of_measurements_the_first_of_each_group_are_told_and_how_many_more_there_are(record):
    rows = [
        Measurement("hits", "tokens", (7,), group, f"request {row}", Prediction(row + 8, f"law {row}"), note=f"note {row}")
        for group in ("first", "second")
        for row in range(3_000)
    ]
    text = printed(replace(record, measurements=tuple(rows), findings=("found",) * 1_000), 80)
    assert text.count("… and 2,500 more measurements; --json has all") == 2
    assert "… and 2,970 more laws" in text and "… and 2,970 more notes" in text and "… and 970 more findings" in text
    assert "0 of 6,000 predictions met exactly" in text and len(text.splitlines()) < 1_300


def test_of_thousands_of_groups_the_first_are_told(record):
    groups = tuple(Measurement("hits", "tokens", (7,), f"group {number}") for number in range(3_000))
    assert "… and 2,900 more groups of measurements" in printed(replace(record, measurements=groups), 80)


@pytest.mark.parametrize("width", [50, 80, 160])
def test_no_line_ends_with_blanks(wide_record, width):
    lines = printed(replace(wide_record, findings=("a finding " * 30,)), width).splitlines()
    assert lines == [line.rstrip() for line in lines]
