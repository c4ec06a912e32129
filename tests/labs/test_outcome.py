"""The outcome line stays short however many predictions were missed."""

from __future__ import annotations

import pytest

from labs.outcome import counts_hits, hits_outcome, outcome_line
from labs.protocol import Measurement, Prediction


def counted(number: int, value: int) -> Measurement:
    return Measurement("hits", "tokens", (value,), "hash cache", f"row {number}", Prediction(16, "16"))


def test_met_predictions_are_said_in_the_lab_s_own_words():
    found = [counted(1, 16), Measurement("ttft", "s", (0.1,))]
    assert outcome_line(found) == "Every count equals its prediction."
    assert outcome_line(found, "All met.") == "All met."


@pytest.mark.parametrize(("num_missed", "more"), [(1, ""), (3, ""), (4, ", and 1 more"), (100, ", and 97 more")])
def test_the_first_three_missed_are_named_and_the_others_counted(num_missed, more):
    line = outcome_line([counted(0, 16), *(counted(number, 0) for number in range(1, num_missed + 1))])
    named = "; ".join(f"hash cache, row {number}, hits" for number in range(1, min(num_missed, 3) + 1))
    assert line.startswith(f"NOT as predicted: {named}{more}.") and "did not confirm" in line and "row 0" not in line


def test_a_quantity_without_a_table_is_named_by_what_it_has():
    alone = Measurement("names", "blocks", (1,), predicted=Prediction(0, "0"))
    assert outcome_line([alone]).startswith("NOT as predicted: names.")


def test_nothing_is_said_to_be_met_where_no_hit_was_judged():
    unjudged = Measurement("hits", "tokens", (16,))
    queries = Measurement("queries", "tokens", (9,), predicted=Prediction(9, "9"))
    others = [queries, Measurement("total", "outputs", (0,), predicted=Prediction(0, "0"))]
    for found in ([], [unjudged], others, [*others, unjudged]):
        assert not counts_hits(found) and hits_outcome(found, "All met.").startswith("Nothing could be counted here: ")
    assert hits_outcome([*others, counted(1, 16)], "All met.") == "All met."
    assert hits_outcome([counted(1, 0)]).startswith("NOT as predicted")
    assert counts_hits([Measurement("turn 2", "tokens", (16,), predicted=Prediction(16, "16"))])
