"""Each request reaches the engine several times: counters are a whole multiple, and new prompts look found."""

from __future__ import annotations

from dataclasses import replace

from labs.probe import sent as kinds
from labs.servers.prefix_counters import CounterReading
from tests.labs.probe.fake_sight import LAW, changed, sight, unreported, usage
from tests.labs.probe.verdicts import faults, text_of, verdict


def copied(times=2, *, finds=True, law=LAW):
    """A sight whose every request is counted so often; `finds`: the later copy finds what the first computed."""

    def again(one):
        found = law.hits(one.length, one.length) if finds else one.cached
        return replace(one, usage=usage(one.length, found), counted=CounterReading(times * one.length, one.cached + (times - 1) * found))

    seen = changed(sight(law=law), again)
    total = seen.last_reading.queries
    seen.last_reading = CounterReading(times * total, total, "lookups")
    return seen


def test_copies_are_told_and_neither_others_nor_false_hits_are_blamed():
    for times in (2, 3):
        seen = copied(times)
        assert verdict(seen, "copies") == ("fault", "strong") and faults(seen) == ["copies"]
        assert f"reaches the engine {times} times" in text_of(seen, "copies") and verdict(seen, "counters") is None
        assert verdict(seen, "replicas") is None, "with each prompt found at once, bursts show nothing"


def test_copies_are_told_by_the_counters_where_replies_tell_nothing():
    seen = changed(copied(), unreported)
    assert verdict(seen, "copies") == ("fault", "strong")


def test_lookups_that_are_counted_twice_are_only_counted_twice():
    seen = copied(finds=False)
    assert verdict(seen, "copies") == ("expected", "weak") and faults(seen) == []


def test_other_traffic_is_no_copy():
    assert verdict(sight(law=LAW), "copies") is None
    seen = copied()
    extra = iter(range(7, 10_000, 13))
    changed(seen, lambda one: replace(one, counted=CounterReading(one.counted.queries + next(extra), one.counted.hits)))
    assert verdict(seen, "copies") is None and verdict(seen, "strangers") == ("fault", "strong")
    assert "a copy of each request" in text_of(seen, "strangers")


def test_where_a_third_of_the_requests_is_counted_once_no_copies_are_told():
    seen = copied()
    once = seen.sent[1::3]
    changed(seen, lambda one: replace(one, counted=CounterReading(one.length, 0)) if one in once else one)
    assert verdict(seen, "copies") is None


def test_a_few_requests_show_no_copies():
    seen = copied()
    seen.sent = seen.of(kinds.LADDER)
    assert verdict(seen, "copies") is None
