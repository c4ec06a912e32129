"""Records with every kind of chart, with hard cases: long labels, wide numbers, many blocks, markup in texts."""

import random
from dataclasses import replace

from labs.chart import Chart, ChartSeries, bars_of, times_of
from labs.protocol import Measurement, Prediction

LONG = (
    "a scenario whose name is far longer than any column of a phone, with a_word_that_has_no_space_to_break_it_at_anywhere_in_it"
)


def every_chart():
    """One chart of each kind and form."""
    rng = random.Random(0)
    rates = [("shared system prompt", 81.8), ("fresh salt per request", 0.0), (LONG, 44.4), ("repeat", 99.2)]
    measured = [("shared system prompt", 81.8), ("fresh salt per request", 12.5), (LONG, 44.4), ("repeat", 99.2)]
    samples = {
        "first request (cold)": [0.08 + 0.01 * rng.random() for _ in range(20)],
        "later requests (warm)": [0.008 + 0.002 * rng.random() for _ in range(90)],
        "unrelated prompt (control)": [0.081],
    }
    apart = {"a lookup": [2.1e-6, 2.4e-6, 2.2e-6], LONG: [1.9, 2.2, 2.0, 8.5]}
    lengths = [(float(length), float(16 * ((length - 1) // 16))) for length in range(1, 2049)]
    sizes = [(2.0**power, 100 * (1 - 0.8**power)) for power in range(3, 12)]
    pool = tuple("A" * (2 * step) + "a" * 2 + "c" * (20 - 2 * step) + "x." for step in range(9))
    large = tuple("A" * (20 * step) + "x" * 3 + "c" * (150 - 15 * step) + "." * (47 - 5 * step) for step in range(8))
    return (
        bars_of("Hit rate by scenario: one token in front costs every block", {"predicted": rates, "measured": measured}, "%"),
        bars_of("Tokens lost", {"hash, 16": [("aligned", 16), (LONG, 123_456_789)], "radix": [("aligned", 1), ("only here", 7)]}),
        bars_of("What a change saves", {"saved": [("longer blocks", -250), ("one salt", 18_000), ("nothing", 0)]}),
        times_of("Time to first token: hits are told from misses", samples),
        times_of("Rows a million times apart", apart),
        Chart("lines", "Hits grow a block at a time", (
            ChartSeries("predicted", points=tuple(lengths)), ChartSeries("hash cache, block 16", points=tuple(lengths[::128])),
        ), "tokens", "prompt length, tokens", "hits, tokens"),
        Chart("lines", "Six series that cross", tuple(
            ChartSeries(f"series {number}", points=tuple((x, (y * (number + 2)) % 97) for x, y in sizes)) for number in range(6)
        ), "%", "pool size, blocks", log_x=True),
        Chart("block_map", "Two conversations take turns in a pool of 24 blocks", (
            ChartSeries("pool", tuple(f"step {step}" for step in range(9)), cells=pool),
        ), "", "step"),
        Chart("block_map", "A pool of 200 blocks", (
            ChartSeries("hash cache", tuple(f"{LONG[:60]} {step}" for step in range(8)), cells=large),
            ChartSeries("radix cache", tuple(map(str, range(8))), cells=large[::-1]),
        ), "", "a step each"),
    )  # fmt: skip


def hostile_text():
    """What must come out of a page as text."""
    return '</style><script>alert("x")</script><img src=https://example.com/x.png> & \x1b[31m \ud800 ⌊L/B⌋ 漢字'


def record_with_charts(record):
    """Every chart, with hostile texts where a record has texts, and a prediction that was missed."""
    hostile = hostile_text()
    measurements = tuple(
        Measurement(
            "hits", "tokens", (value,), f"group {hostile}", f"row {number} {hostile}", Prediction(16, f"law {hostile}"), key=True
        )
        for number, value in enumerate((16, 32))
    )
    return replace(
        record,
        lab={"number": 4, "name": "prefix-cache-hit-rate", "question": f"Does it hold? {hostile}"},
        status="disagrees",
        measurements=measurements,
        findings=(hostile, *(f"finding {number}" for number in range(9))),
        conclusion=hostile,
        charts=(*every_chart(), bars_of(hostile, {hostile: [(hostile, 1.0)]}, unit=hostile)),
    )
