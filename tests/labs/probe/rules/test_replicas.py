"""How many caches answer: bursts, and counters that jump."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.probe import sent as kinds
from labs.servers.prefix_counters import CounterReading
from tests.labs.probe.fake_sight import LAW, OTHER, VLLM, behind, changed, sent, sight, usage
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
