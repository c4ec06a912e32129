"""A cache of whole replies in front: told by names, by counters, by fronts; and no identity is blamed for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.probe import sent as kinds
from labs.servers.prefix_counters import CounterReading
from tests.labs.probe.fake_sight import LAW, OTHER, SGLANG, VLLM, changed, sent, sight, usage, with_times
from tests.labs.probe.verdicts import faults, text_of, verdict


def kept(facts=VLLM, *, has_names=True, has_counters=True):
    """Every repeat is answered in front, and only other tails reach the engine."""
    seen = sight(facts)
    seen.sent = [one for one in seen.sent if one.purpose != kinds.SHARED]
    for pair in range(2):
        seen.sent += [
            sent(kinds.SHARED, 500 + 2 * pair, 0, 514, 0), sent(kinds.SHARED, 501 + 2 * pair, 0, 514, 384, matched=386)
        ]  # fmt: skip

    def answered(one):
        counted = CounterReading(*((0, 0) if one.turn else (one.length, one.cached))) if has_counters else kinds.UNKNOWN
        return replace(one, counted=counted, reply_id=f"reply {one.prompt}" if has_names else None)

    changed(seen, answered)
    total = sum(one.counted.queries or 0 for one in seen.sent)
    seen.last_reading = CounterReading(total, 0, "lookups") if has_counters else kinds.UNKNOWN
    return seen


@pytest.mark.parametrize(
    "has_names, has_counters, sure", [(True, True, "certain"), (True, False, "strong"), (False, True, "strong"), (False, False, "weak")]
)
@pytest.mark.parametrize("facts", [VLLM, SGLANG, OTHER, replace(VLLM, unit_size=None, is_caching=None)])
def test_replies_that_come_from_a_front_are_told_and_nothing_else_is(facts, has_names, has_counters, sure):
    seen = kept(facts, has_names=has_names, has_counters=has_counters)
    assert verdict(seen, "kept") == ("expected", sure)
    assert not {"identity", "caching", "unit", "replicas", "counters", "repeats"} & set(faults(seen))
    assert verdict(seen, "replicas") is None and verdict(seen, "counters") is None and verdict(seen, "repeats") is None
    assert verdict(seen, "unit") is None, "repeats that nobody looked up tell of no unit"
    assert "under another tail, which the engine must answer: 384, 384" in text_of(seen, "kept")


def test_a_healthy_server_keeps_no_replies():
    for one_name in (False, True):
        seen = changed(sight(law=LAW), lambda one: replace(one, reply_id="same" if one_name else f"{one.prompt} {one.turn}"))
        assert verdict(seen, "kept") is None


def test_repeats_that_are_looked_up_and_never_found_are_no_kept_replies():
    seen = sight()
    assert verdict(seen, "kept") is None and verdict(seen, "identity") == ("fault", "strong")
    changed(seen, lambda one: replace(one, reply_id=f"made of prompt {one.prompt}"))
    assert verdict(seen, "kept") is None, "names that are made of the prompt: each repeat was looked up"


def test_a_server_that_names_every_reply_alike_keeps_none():
    seen = changed(sight(OTHER), lambda one: replace(one, counted=kinds.UNKNOWN, reply_id="reply"))
    assert verdict(seen, "kept") is None


def test_kept_replies_explain_why_repeats_are_sooner():
    def timed(seen):
        with_times(seen, 0.002, 0.02)
        answer = {"counted": kinds.UNKNOWN, "usage": usage(1_025, 0)}
        return changed(seen, lambda one: replace(one, **answer, reply_id=f"reply {one.prompt}"), kinds.TIMING)

    assert verdict(timed(sight()), "witnesses") == ("fault", "weak")
    assert verdict(timed(kept()), "witnesses") == ("fine", "strong")


def test_counters_that_never_move_show_no_kept_replies():
    seen = changed(sight(), lambda one: replace(one, counted=CounterReading(0, 0)))
    assert verdict(seen, "kept") is None


def test_repeats_that_are_kept_at_times_are_told_beside_what_was_found():
    seen = changed(sight(law=LAW), lambda one: replace(one, reply_id=f"{one.prompt} {one.turn}"))
    assert verdict(seen, "kept") is None
    late = [one for one in seen.of(kinds.KEPT, kinds.TEXT, kinds.CHAT) if one.turn]
    assert len(late) == 3

    def answered(one):
        if one not in late:
            return one
        return replace(one, usage=usage(one.length, 0), counted=CounterReading(0, 0), reply_id=f"{one.prompt} 0")

    changed(seen, answered)
    assert verdict(seen, "kept") == ("expected", "strong") and "Some repeats" in text_of(seen, "kept")
