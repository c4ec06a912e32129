"""How many caches answer: bursts, and counters that jump."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.probe import sent as kinds
from labs.servers.prefix_counters import CounterReading
from tests.labs.probe.fake_sight import LAW, OTHER, VLLM, behind, changed, sent, sight, together, usage
from tests.labs.probe.verdicts import faults, text_of, verdict


@pytest.mark.parametrize(
    "found, number",
    [([0, 0, 256, 256, 256, 256], 2), ([0, 0, 0, 256, 256, 256, 256, 256], 3), ([0, 256, 0, 256, 0, 256, 256], 3)],
)
def test_a_prompt_that_is_missed_once_by_each_counts_the_replicas(found, number):
    seen = sight(law=LAW, burst_hits=found)
    assert verdict(seen, "replicas") == ("fault", "strong")
    assert f"About {number} caches" in text_of(seen, "replicas")


def busy(seen, num_foreign=50_000):
    seen.last_reading = replace(seen.last_reading, queries=seen.last_reading.queries + num_foreign)
    return seen


LOST = [0, 256, 0, 0, 256, 0, 0, 0, 256, 0, 0, 0, 0, 0, 0, 256]


def test_prompts_that_others_push_out_are_not_taken_for_replicas():
    seen = busy(sight(replace(VLLM, pool_tokens=4_160), LAW, burst_hits=LOST))
    assert verdict(seen, "replicas") == ("cannot tell", "weak") and "replicas" not in faults(seen)
    assert "others push them out" in text_of(seen, "replicas") and "pool: 4,160 tokens" in text_of(seen, "replicas")
    assert "missed again after it had been found: 33 times" in text_of(seen, "replicas")
    assert verdict(sight(replace(VLLM, pool_tokens=4_160), LAW, burst_hits=LOST), "replicas") == ("fault", "strong"), (
        "nobody else"
    )
    seen.facts = replace(seen.facts, num_engines=2)
    assert verdict(seen, "replicas") == ("fault", "strong")


@pytest.mark.parametrize("found, state", [(LOST, "cannot tell"), ([0, 0, 256, 256, 256, 256, 256], "fault")])
def test_without_counters_replicas_are_named_where_every_burst_ends_with_hits(found, state):
    seen = sight(replace(OTHER, unit_size=16), LAW, burst_hits=found)
    seen.first_reading = seen.last_reading = kinds.UNKNOWN
    assert verdict(seen, "replicas")[0] == state


def test_counters_that_jump_back_show_replicas_behind_one_address():
    seen = sight(law=LAW)
    seen.rereadings = [CounterReading(900, 90), CounterReading(100, 10), CounterReading(900, 90)]
    assert verdict(seen, "replicas") == ("expected", "strong") and faults(seen) == []


def test_engines_that_share_an_address_and_lose_nothing_are_fine():
    assert verdict(sight(replace(VLLM, num_engines=2), LAW), "replicas") == ("fine", "certain")


def test_a_prompt_that_is_found_after_a_pause_alone_is_published_late():
    seen = sight(law=LAW, burst_hits=[0, 0, 256, 256, 256, 256])
    for number in (70, 71, 72):
        seen.sent += [sent(kinds.LATE, number, 0, 257, 0), sent(kinds.LATE, number, 1, 257, 256)]
    assert verdict(seen, "replicas") == ("expected", "weak")


def test_replicas_behind_a_front_are_counted_all_the_same():
    seen = behind(720)
    changed(seen, lambda one: replace(one, usage=usage(one.length, 720)) if one.turn == 1 else one, kinds.BURST)
    assert verdict(seen, "replicas") == ("fault", "strong") and "About 2 caches" in text_of(seen, "replicas")


def at_once(*groups, law=LAW, **fields):
    """A steady sight with other groups at once: (prompt, tokens found by each)."""
    seen = sight(law=law, **fields)
    seen.sent, seen.at_once = [one for one in seen.sent if one.purpose != kinds.TOGETHER], []
    number = seen.turns_of(kinds.BURST)[-1][0].prompt
    for prompt, found in groups:
        together(seen, number + prompt, 6, *found)
    return seen


MISSED, FOUND = (256, 0, 0, 256), (256,) * 4


def test_known_prompts_that_are_missed_at_once_show_replicas_and_each_learns_what_it_answered():
    seen = at_once((-1, MISSED), (-1, FOUND), (0, MISSED))
    assert verdict(seen, "replicas") == ("fault", "strong") and "at least 3 answer" in text_of(seen, "replicas")
    for groups in ([(-1, MISSED)], [(-1, MISSED), (-1, MISSED), (0, MISSED)], [(-1, MISSED), (-1, FOUND), (0, FOUND)]):
        assert verdict(at_once(*groups), "replicas") == ("cannot tell", "weak"), "once may be anything, and so may each time"
    busy_seen = busy(seen)
    assert verdict(busy_seen, "replicas") == ("cannot tell", "weak")


def test_one_cache_is_a_weak_claim_where_nothing_was_seen_of_requests_at_once():
    for groups in ([], [(0, (256, None, 256, 256))]):
        assert verdict(at_once(*groups), "replicas") == ("fine", "weak")
    seen = at_once((0, FOUND))
    assert verdict(seen, "replicas") == ("fine", "strong") and "4 times at once: found each time" in text_of(seen, "replicas")
    seen.at_once = [replace(one, sent=tuple(replace(sent, seconds=0.0) for sent in one.sent)) for one in seen.at_once]
    assert verdict(seen, "replicas") == ("fine", "weak"), "they came one after the other after all"
    seen.facts = replace(seen.facts, num_engines=2)
    assert verdict(seen, "replicas") == ("fine", "weak")


def test_counters_fall_between_any_two_readings_with_nothing_sent_in_between():
    high, low = CounterReading(10**6, 90), CounterReading(100, 10)
    for fields in ({"neighbors": [(low, high), (high, low)]}, {"rereadings": [low, low]}):
        seen = sight(law=LAW)
        seen.last_reading = high
        vars(seen).update(fields)
        assert seen.is_jumping and verdict(seen, "replicas") == ("expected", "strong"), fields


def test_jumping_counters_alone_say_nothing_of_where_repeats_go():
    seen = sight(law=LAW)
    seen.rereadings = [CounterReading(10**6, 90), CounterReading(100, 10)]
    seen.at_once = []
    assert verdict(seen, "replicas") == ("expected", "weak") and "one after the other" in text_of(seen, "replicas")
    seen.sent = [one for one in seen.sent if one.purpose != kinds.BURST]
    assert verdict(seen, "replicas") == ("cannot tell", "weak")


def test_prompts_found_in_no_one_unit_are_not_called_one_cache_s():
    seen = sight(law=LAW)
    odd = iter((48, 80, 96, 64, 32, 16))
    changed(seen, lambda one: replace(one, usage=usage(one.length, next(odd))) if one.turn else one, kinds.STAIRCASE)
    assert not seen.explanations
    assert verdict(seen, "replicas") == ("cannot tell", "weak") and "several units" in text_of(seen, "replicas")


def test_fronts_that_are_missed_are_not_called_one_cache_s():
    seen = sight(replace(VLLM, num_engines=2), LAW)
    number = [one for one in seen.sent if one.purpose == kinds.SHARED][-1].prompt
    changed(seen, lambda one: replace(one, usage=usage(one.length, 0)) if one.prompt == number else one, kinds.SHARED)
    assert verdict(seen, "replicas") == ("cannot tell", "weak")


def test_one_miss_of_a_known_prompt_names_no_replicas():
    seen = sight(law=LAW)
    number = seen.of(kinds.BURST)[-1].prompt
    changed(seen, lambda one: replace(one, usage=usage(257, 0)) if (one.prompt, one.turn) == (number, 2) else one, kinds.BURST)
    assert verdict(seen, "replicas") == ("cannot tell", "weak") and "was missed once" in text_of(seen, "replicas")
    assert faults(seen) == [] and verdict(seen, "repeats") is None
    changed(seen, lambda one: replace(one, usage=usage(257, 0)) if one.turn == 3 and one.prompt == number else one, kinds.BURST)
    assert verdict(seen, "replicas") == ("fault", "strong")
    jumping = sight(law=LAW, burst_hits=[0, 256, 0, 256, 256, 256, 256])
    jumping.sent = [one for one in jumping.sent if one.purpose != kinds.BURST or one.prompt == number]
    jumping.facts = replace(jumping.facts, num_engines=2)
    assert verdict(jumping, "replicas") == ("fault", "strong"), "the server itself names two"
