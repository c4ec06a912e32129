"""Counters and the gauge: true numbers that mislead."""

from __future__ import annotations

from dataclasses import replace

from labs.probe.explanation import Explanation
from labs.probe.sent import UNKNOWN
from labs.servers.prefix_counters import CounterReading
from tests.labs.probe.fake_sight import LAW, SGLANG, VLLM, changed, sight, usage
from tests.labs.probe.verdicts import text_of, verdict


def test_other_peoples_traffic_is_told():
    seen = sight(law=LAW)
    own = seen.last_reading
    seen.last_reading = CounterReading(own.queries + 900, own.hits, "lookups", num_checks=900)
    assert verdict(seen, "counters") == ("fine", "strong"), "a balancer's health checks, one token each"
    seen.last_reading = CounterReading(own.queries + 50_000, own.hits, "lookups")
    assert verdict(seen, "counters") == ("expected", "strong") and "mix their traffic with this probe's" in text_of(seen, "counters")


def test_counters_that_count_others_may_be_of_a_server_that_this_probe_never_met():
    seen = sight(law=LAW)
    own, found = seen.last_reading.queries, seen.last_reading.hits
    changed(seen, lambda one: replace(one, counted=CounterReading(one.length + 640, 624)))
    seen.last_reading = CounterReading(3 * own, found, "lookups")
    assert verdict(seen, "counters") == ("expected", "strong") and "or in their place" in text_of(seen, "counters")
    for hits in (found // 2, 3 * own - (own - found) // 2):  # fewer hits than its own, fewer misses than its own
        seen.last_reading = CounterReading(3 * own, hits, "lookups")
        assert verdict(seen, "counters") == ("expected", "strong") and "lack this probe's" in text_of(seen, "counters")


def test_what_is_unknown_is_not_told_as_zero():
    seen = sight(law=LAW)
    seen.last_reading = CounterReading(seen.last_reading.queries + 50_000, 90_000, "lookups")
    blind = changed(seen, lambda one: replace(one, usage=usage(one.length, None), counted=UNKNOWN))
    assert "own unknown" in text_of(blind, "counters")
    seen.sent[0] = replace(seen.sent[0], usage=usage(seen.sent[0].length, 16))
    assert f"own 16 in the 1 of {len(seen.sent)} requests that tell" in text_of(seen, "counters")


def test_counters_that_caught_up_late_are_told():
    seen = sight(law=LAW)
    seen.late_s = 1.5
    assert verdict(seen, "counters") == ("expected", "strong") and "are late" in text_of(seen, "counters")


def test_counters_that_stand_still_where_caching_is_off_say_nothing():
    seen = changed(sight(replace(VLLM, is_caching=False)), lambda one: replace(one, counted=CounterReading(0, 0)))
    seen.last_reading = seen.first_reading
    assert verdict(seen, "counters") is None
    seen = sight(law=LAW)
    seen.last_reading = seen.first_reading
    assert verdict(seen, "counters") == ("cannot tell", "weak"), "replies tell hits, and the counters nothing"


def test_a_lifetime_rate_is_compared_with_all_requests_of_the_probe_and_not_its_repeats_alone():
    seen, old = sight(law=LAW), CounterReading(9_000, 0, "lookups")
    own = seen.last_reading
    old = replace(old, hits=old.queries * own.hits // own.queries)
    seen.first_reading, seen.last_reading = old, CounterReading(old.queries + own.queries, old.hits + own.hits, "lookups")
    assert verdict(seen, "counters") == ("fine", "strong")


def test_a_lifetime_rate_is_not_this_moments():
    seen = sight(law=LAW)
    old = CounterReading(9_000_000, 270_000, "lookups")
    seen.last_reading = CounterReading(old.queries + seen.last_reading.queries, old.hits + seen.last_reading.hits, "lookups")
    seen.first_reading = old
    assert verdict(seen, "counters") == ("expected", "strong") and "lifetime rate (3" in text_of(seen, "counters")


def test_counters_that_fall_or_see_a_part_are_told():
    seen = sight(law=LAW)
    total = seen.last_reading
    seen.last_reading = CounterReading(total.queries // 2, 5, "lookups")
    assert verdict(seen, "counters") == ("expected", "weak") and "only a part" in text_of(seen, "counters")
    assert "kept for a while somewhere, or another replica" in text_of(seen, "counters")
    seen.first_reading = total
    assert verdict(seen, "counters") == ("fault", "strong") and "fell" in text_of(seen, "counters")


def test_counters_that_fell_and_grew_past_the_first_reading_are_told_but_not_beside_replicas():
    seen = sight(law=LAW)
    seen.num_falls = 1
    assert verdict(seen, "counters") == ("fault", "strong") and "fell" in text_of(seen, "counters")
    seen.rereadings = [CounterReading(queries, 5, "lookups") for queries in (900, 400, 900)]
    assert verdict(seen, "counters") is None


def test_sglangs_gauge_is_the_latest_batch():
    seen = sight(SGLANG, Explanation(1))
    seen.gauge = 0.0
    assert verdict(seen, "gauge") == ("expected", "weak")
    seen.gauge = float("nan")
    assert verdict(seen, "gauge") is None, "no number"
    last = seen.sent[-1]
    seen.gauge = round(last.cached / last.length, 3)
    assert verdict(seen, "gauge") == ("fine", "strong"), "the latest batch's rate is what it is meant to tell"


def test_a_request_that_was_cut_is_nobody_elses():
    seen = sight(law=LAW)
    own = seen.last_reading
    seen.last_reading = CounterReading(own.queries + 4_097, own.hits, "lookups")
    assert "Others send requests too" in text_of(seen, "counters")
    seen.num_cut_tokens = 4_097
    assert verdict(seen, "counters") == ("fine", "strong") and "up to 4,097" in text_of(seen, "counters")
    seen.last_reading = own
    assert verdict(seen, "counters") == ("fine", "strong"), "the server need not have counted it"
    seen.last_reading = CounterReading(own.queries + 50_000, own.hits, "lookups")
    assert "Others send requests too" in text_of(seen, "counters")
