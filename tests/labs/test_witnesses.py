"""Two witnesses on a server: each judged, the unknown left out, disagreements told and not averaged."""

from __future__ import annotations

import pytest

from labs.protocol import Prediction
from labs.targets.base import CacheCounters, Completion, Evidence
from labs.witnesses import NO_COUNTERS, NO_USAGE, NOT_JUDGED, Doubt, counted_beside, disagreements, judge_sums, tell_doubts

HITS, QUERIES = Prediction(64, "64"), Prediction(200, "200")


def completions(*evidence: tuple[int | None, int | None]) -> list[Completion]:
    return [
        Completion((1,), 100, usage if usage is not None else counted, 0.1, 0.1, "length", (), Evidence(usage, counted, 100))
        for usage, counted in evidence
    ]


def judged(found):
    return {one.name: (one.samples, one.agrees, one.note) for one in found}


def test_both_witnesses_are_judged_against_one_prediction():
    found, doubts = judge_sums("g", "r", completions((0, 0), (64, 64)), CacheCounters(200, 64), HITS, QUERIES)
    assert judged(found) == {name: ((number,), True, "") for name, number in (("total", 64), ("counted", 64), ("queries", 200))}
    assert doubts == []


def test_an_unknown_witness_is_left_out_by_name_and_never_zero():
    found, _ = judge_sums("g", "r", completions((0, None), (64, None)), CacheCounters(None, None), HITS, QUERIES)
    assert judged(found) == {"total": ((64,), True, NO_COUNTERS)}
    found, _ = judge_sums("g", "r", completions((None, 0), (None, 64)), CacheCounters(200, 64), HITS, QUERIES)
    assert judged(found) == {"counted": ((64,), True, NO_USAGE), "queries": ((200,), True, "")}
    assert judge_sums("g", "r", completions((None, None)), CacheCounters(None, None), HITS, QUERIES) == ([], [])


def test_a_disagreement_fails_the_wrong_witness_alone_and_is_told_with_both_numbers():
    found, doubts = judge_sums("g", "r", completions((0, 0), (64, 0)), CacheCounters(200, 0), HITS, QUERIES)
    assert [one.name for one in found if one.agrees is False] == ["counted"]
    assert [doubt.text for doubt in doubts] == [
        "g: r: replies report 64 cached tokens, the counters 0: one of the two is wrong, or they are not of the same requests "
        "(another replica's counters, a cache of whole replies in front)"
    ]


@pytest.mark.parametrize("counters", [CacheCounters(400, 500), CacheCounters(None, None, grown_queries=400, grown_hits=100)])
def test_counters_that_saw_more_than_was_sent_are_told_with_their_ratio_and_not_judged(counters):
    found, doubts = judge_sums("g", "r", completions((0, 0), (64, 64)), counters, HITS, QUERIES)
    assert judged(found) == {"total": ((64,), True, ""), "queries": ((400,), None, NOT_JUDGED)}
    (doubt,) = doubts
    assert "others use this server" in doubt.text and "400 tokens where 200 are due (×2.00)" in doubt.text


@pytest.mark.parametrize(("num_queries", "num_hits"), [(0, 0), (100, 32), (200, 250)])
def test_lookups_that_are_missing_and_finds_beyond_lookups_are_nobody_else_s_doing(num_queries, num_hits):
    counters = CacheCounters(None, None, grown_queries=num_queries, grown_hits=num_hits)
    found, doubts = judge_sums("g", "r", completions((0, 0), (64, 64)), counters, HITS, QUERIES)
    assert [one.name for one in found if one.agrees is False] == (["counted"] if num_queries == 200 else ["counted", "queries"])
    assert [doubt.kind for doubt in doubts] == ["apart"]


def test_counters_that_saw_less_than_was_sent_miss_their_prediction():
    found, _ = judge_sums("g", "r", completions((0, 0), (64, 64)), CacheCounters(100, 64), HITS, QUERIES)
    assert judged(found)["queries"][1] is False


def test_one_by_one_requests_are_counted_beside_their_replies():
    assert judged(counted_beside("g", "r", completions((0, 0), (64, 64)), HITS)) == {"counted": ((64,), True, "")}
    assert counted_beside("g", "r", completions((0, None), (64, 64)), HITS) == []
    assert counted_beside("g", "r", completions((None, 64)), HITS) == [], "the counters are the only account there is"


def test_only_requests_of_which_both_speak_can_disagree():
    assert disagreements("x", completions((64, 64), (None, 7), (9, None))) == []
    (doubt,) = disagreements("x", completions((64, 32), (16, 16), (None, 5)))
    assert "80" in doubt.text and "48" in doubt.text


def test_many_doubts_of_one_kind_are_told_by_their_number():
    lines = tell_doubts([Doubt("apart", f"a{number}") for number in range(5)] + [Doubt("traffic", "t")])
    assert lines == ["a0", "a1 (and 3 more like it)", "t"]
