"""Long prompts: cut on their way, or treated otherwise than short ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.probe import sent as kinds
from tests.labs.probe.fake_sight import LAW, VLLM, changed, sent, sight, usage, with_times
from tests.labs.probe.verdicts import faults, text_of, verdict


def timed(found, **facts):
    """A server on which timed repeats of 1,025 tokens find `found`, and shorter ones all they can."""
    seen = with_times(sight(replace(VLLM, **facts), LAW), 0.1, 0.1)
    return changed(seen, lambda one: replace(one, usage=usage(1_025, found * bool(one.turn)), counted=kinds.UNKNOWN), kinds.TIMING)


@pytest.mark.parametrize("found, words", [(0, "find nothing, though shorter ones"), (96, "between tokens 96 and 112")])
def test_long_repeats_that_fall_short_are_a_fault(found, words):
    seen = timed(found)
    assert verdict(seen, "long") == ("fault", "strong") and faults(seen) == ["long"]
    assert words in text_of(seen, "long") and "1,024 possible; up to 600 tokens" in text_of(seen, "long")
    assert verdict(timed(1_024), "long") is None


def test_long_repeats_that_the_probes_own_requests_pushed_out_blame_nothing():
    seen = timed(0, pool_tokens=3_000)
    first = next(one for one in seen.sent if one.purpose == kinds.TIMING and one.turn == 1)
    assert verdict(seen, "long") is None, "one came at once, and it may be anything's"
    seen.sent.append(replace(first, turn=9))
    assert verdict(seen, "long") is None
    seen.sent.append(replace(first, turn=10))
    assert verdict(seen, "long") == ("fault", "strong"), "these came at once"


def test_long_repeats_beside_much_other_traffic_cannot_tell():
    seen = timed(0)
    seen.last_reading = replace(seen.last_reading, queries=10_000_000)
    assert verdict(seen, "long") == ("cannot tell", "weak") and "repeats" not in faults(seen)


def test_long_repeats_are_not_judged_where_short_ones_miss_too():
    seen = timed(0)
    assert verdict(changed(seen, lambda one: replace(one, usage=usage(257, 0)), kinds.BURST), "long") is None


def counted(*pairs):
    seen = sight(law=LAW)
    seen.sent += [replace(sent(kinds.TIMING, 900 + at, 0, ids, 0), usage=usage(count, 0)) for at, (ids, count) in enumerate(pairs)]
    return seen


def test_fewer_tokens_than_were_sent_show_that_prompts_are_cut():
    seen = counted((900, 512), (1_025, 512))
    assert verdict(seen, "cut") == ("fault", "certain") and "of 1,025 tokens sent the model sees 512" in text_of(seen, "cut")
    assert "1,028 → 1,028, 900 → 512" in text_of(seen, "cut")
    seen.prompt_tokens = 900
    assert "of 900 tokens sent the model sees 512" in text_of(seen, "cut")
    assert verdict(sight(law=LAW), "cut") is None


def test_as_many_tokens_less_at_every_length_are_no_cut():
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(one.length - 1, one.cached)))
    assert verdict(seen, "cut") == ("cannot tell", "strong")


def test_a_count_that_leaves_out_what_was_found_is_no_cut():
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(one.length - one.cached, one.cached)))
    assert verdict(seen, "cut") is None
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(one.length - one.cached, None), counted=kinds.UNKNOWN))
    assert verdict(seen, "cut") is None, "nor is a shared front"
