"""The report is one file, says what it leaves out, and takes texts as texts."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from labcli.fault import UsageFault
from labcli.render.report_html import MARKER, MAX_BYTES, build_report
from labcli.results_store import StoredRecord
from labs.chart import bars_of
from labs.protocol import Measurement, Prediction
from tests.labcli.chart_records import every_chart, hostile_text, record_with_charts

MADE_AT = "2026-03-01T14:25:01.042Z"


def page_of(*records):
    return build_report(
        [StoredRecord(Path(f"/home/someone/results/lab/{number}.json"), one) for number, one in enumerate(records)], MADE_AT
    )


def many(record, number, charts=()):
    rows = tuple(
        Measurement("hits", "tokens", (row,), "hash cache, block 16", f"request {row} of many", Prediction(row, f"⌊{row}/16⌋·16"))
        for row in range(number)
    )
    return replace(record, measurements=rows, charts=charts)


class _Tags(HTMLParser):
    """Names and attributes of all elements."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_the_page_asks_for_nothing_and_runs_nothing(record):
    tags = _Tags(page_of(record_with_charts(record))).found
    assert not {tag for tag, _ in tags} & {"script", "img", "iframe", "object", "embed", "base"}
    links = [value for _, attributes in tags for name, value in attributes.items() if name in ("href", "src", "action")]
    assert links and all(link.startswith(("#", "data:,")) for link in links)
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]


def test_the_style_asks_for_nothing(record):
    style = re.search(r"<style>(.*?)</style>", page_of(record), re.DOTALL)[1]
    assert "@import" not in style and set(re.findall(r"url\((.)", style)) == {"#"}
    assert "prefers-color-scheme: dark" in style and "@media print" in style


def test_what_a_record_says_is_shown_as_text(record):
    page = page_of(record_with_charts(record))
    assert "<script" not in page.replace("&lt;script", "")
    assert page.count("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;") > 8
    assert "\x1b" not in page and hostile_text() not in page
    page.encode("utf-8")


def test_the_page_has_question_verdict_law_findings_conclusion_and_conditions(record):
    told = replace(
        record,
        conclusion="It works.",
        measurements=(replace(record.measurements[0], key=True),),
        environment={
            **record.environment,
            "cpu": "EPYC",
            "num_cpus": 2,
            "packages": {"torch": "2.13.0", "labcli": None},
            "dirty": True,
        },
        target={"kind": "sim", "gpu": "h200", "opened": [{"model": "llama-3-8b", "dtype": "bfloat16", "device": "H200"}]},
    )
    page = page_of(told)
    for words in (
        "Why?", "✓ the prediction was met", "hits = ⌊2,000/16⌋·16", "<li>one</li>", "It works.", "EPYC, 2 cores", "torch 2.13.0",
        "commit 4b825dc6, with changes", "sim llama-3-8b bfloat16 h200", "block_sizes (8 16)", "cold",
    ):  # fmt: skip
        assert words in page, words
    assert "/home/someone" not in page


@pytest.mark.parametrize(
    "change, words",
    [
        ({"status": "interrupted"}, "interrupted; the prediction was met until then"),
        ({"status": "failed", "error": "TargetError: gone"}, "✗ failed (TargetError: gone)"),
        ({"measurements": ()}, "nothing was predicted"),
    ],
)
def test_the_verdict_tells_how_a_run_ended(record, change, words):
    assert words in page_of(replace(record, **change))


def test_a_page_of_many_labs_stays_small_and_says_what_it_left_out(record):
    charts = every_chart()[:3]
    page = page_of(*(many(record, 60 * number, charts) for number in range(1, 15)))
    assert len(page.encode("utf-8")) <= MAX_BYTES
    left_out = [
        int(number.replace(",", "")) for number in re.findall(r"The table of all ([\d,]+) measurements was left out", page)
    ]
    assert left_out and min(left_out) > max(map(int, re.findall(r"All (\d+) measurements", page)))
    assert page.count("<svg role=img ") == 14 * 3


def test_charts_are_left_out_only_when_no_table_is_left(record):
    page = page_of(*(many(record, 20, every_chart()) for _ in range(14)))
    assert len(page.encode("utf-8")) <= MAX_BYTES
    assert page.count("measurements was left out") == 14 and "All 20 measurements" not in page
    assert "8 more charts were left out to keep this page small" in page


def test_a_small_page_leaves_nothing_out(record):
    page = page_of(many(record, 50), record)
    assert "left out" not in page and "All 50 measurements" in page and page.startswith(f"<!doctype html>\n{MARKER}")


def missed(record, number):
    rows = tuple(
        Measurement("hits", "tokens", (7,), "", f"request {row}", Prediction(row + 8, f"law {row}"))
        for row in range(number)
    )
    return replace(record, measurements=rows, findings=tuple(f"finding {row}" for row in range(number)))


@pytest.mark.parametrize(
    "change",
    [
        {"conclusion": "long " * 200_000},
        {"lab_config": {f"name {number}": number for number in range(50_000)}},
        {"error": "E" * 400_000, "status": "failed"},
        {"lab": {"number": 4, "name": "n" * 400_000, "question": "q" * 400_000}},
        {"findings": ("<" * 400_000,)},
        {"cache_state": "cold" * 100_000},
        {"charts": (bars_of("t" * 400_000, {"a": [("row", 1.0)]}),)},
    ],
)
def test_no_record_makes_a_page_too_large(record, change):
    page = page_of(replace(record, **change), record)
    assert len(page.encode("utf-8")) <= MAX_BYTES
    assert "<li>one</li>" in page  # the other record lost nothing


def test_a_record_of_thousands_of_missed_predictions_keeps_its_chart_and_the_first_laws(record):
    page = page_of(missed(record, 30_000))
    assert len(page.encode("utf-8")) <= MAX_BYTES
    assert "<svg role=img" in page and "law 5<" in page and "laws were left out" in page and "findings were left out" in page


def test_records_too_many_for_a_page_are_refused(record):
    long = replace(record, lab={"number": 4, "name": "n" * 100, "question": "q" * 190})
    with pytest.raises(UsageFault, match="1,000 records make a page of more than 300 kB .*; accepted: fewer records, or --lab"):
        page_of(*[long] * 1_000)
