"""Of how many tokens a hit is a multiple, and what follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.probe import sent as kinds
from labs.probe.explanation import Explanation
from tests.labs.probe.fake_sight import LAW, SGLANG, VLLM, changed, sent, sight, usage
from tests.labs.probe.verdicts import faults, text_of, verdict


def test_new_prompts_that_are_found_cannot_be():
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(one.length, one.length - 1)))
    assert verdict(seen, "strangers") == ("fault", "strong")
    assert {verdict(seen, name) for name in ("unit", "salts", "shared", "drafter", "aligned")} == {None}


def test_a_token_that_new_prompts_share_by_chance_is_no_stranger():
    assert (
        verdict(
            changed(sight(SGLANG, Explanation(1)), lambda one: one if one.turn else replace(one, usage=usage(one.length, 1))),
            "strangers",
        )
        is None
    )


@pytest.mark.parametrize("unit", [784, 1_056])
def test_prompts_shorter_than_a_unit_are_told_with_the_next_length(unit):
    facts = replace(VLLM, unit_size=unit)
    seen = sight(facts, Explanation(unit), prompt_tokens=700)
    assert verdict(seen, "unit") == ("fault", "certain")
    assert f"700-token prompts share less than one unit of {unit:,}" in text_of(
        seen, "unit"
    ) and f"From {unit + 1:,} tokens" in text_of(seen, "unit")
    assert verdict(sight(facts, Explanation(unit)), "unit") == ("expected", "strong")
    assert verdict(sight(facts, Explanation(unit), prompt_tokens=unit + 1), "unit") == ("fine", "strong")


def test_own_prompts_are_judged_by_the_announced_unit_where_nothing_was_found():
    seen = sight(replace(VLLM, unit_size=2_096), prompt_tokens=900)
    seen.sent = [one for one in seen.sent if one.length < 1_000]
    assert verdict(seen, "unit") == ("fault", "certain")


def test_a_unit_that_no_request_can_fill_is_certain():
    assert verdict(sight(replace(VLLM, unit_size=8_320, max_model_len=4_096)), "unit") == ("fault", "certain")


def test_a_unit_larger_than_announced_is_expected_and_counts():
    assert "announces 16" in text_of(sight(VLLM, Explanation(528)), "unit")
    assert verdict(sight(VLLM, Explanation(528)), "unit") == ("expected", "strong")


def test_no_hit_and_no_announcement_leave_the_unit_open():
    assert verdict(sight(replace(VLLM, unit_size=None)), "unit") == ("cannot tell", "weak")
    short = sight(replace(VLLM, unit_size=6_000))
    assert verdict(short, "unit") == ("cannot tell", "certain")


def test_hits_that_fit_no_unit_are_open():
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(one.length, 5 * bool(one.turn))), kinds.STAIRCASE)
    assert verdict(seen, "unit") == ("cannot tell", "weak")


def test_an_aligned_prompt_finds_one_unit_less_and_that_is_expected():
    seen = sight(law=LAW)
    assert verdict(seen, "aligned") == ("expected", "strong")
    assert "repeat of 32 tokens: 16 cached; of 33: 32" in text_of(seen, "aligned")
    assert verdict(sight(SGLANG, Explanation(1)), "aligned") is None


def test_a_drafter_takes_one_unit_at_every_length():
    seen = sight(VLLM, Explanation(16, has_drafter=True))
    assert verdict(seen, "drafter") == ("expected", "strong") and faults(seen) == []
    assert verdict(sight(replace(VLLM, has_drafter=True), Explanation(16, has_drafter=True)), "drafter") == (
        "expected",
        "certain",
    )
    assert verdict(sight(law=LAW), "drafter") is None, "the last token's block is no drafter"


def test_own_prompts_that_were_not_sent_are_judged_by_the_law_alone():
    seen = sight(law=LAW, prompt_tokens=900)
    assert verdict(seen, "unit") == ("fine", "weak") and "can find 896. None so long was sent" in text_of(seen, "unit")
    own = [sent(kinds.OWN, 500, turn, 900, 896 * bool(turn)) for turn in range(4)]
    seen.sent += own[:2]
    assert verdict(seen, "unit") == ("fine", "strong") and "finds 896" in text_of(seen, "unit")
    seen.sent[-2:] = [replace(one, usage=usage(900, 0)) for one in own]
    assert "900" not in text_of(seen, "unit") and verdict(seen, "long") == ("fault", "strong")
    seen.sent[-4:] = [replace(one, usage=usage(512, 496 * bool(one.turn))) for one in own]
    assert "900" not in text_of(seen, "unit") and verdict(seen, "cut") == ("fault", "certain")


@pytest.mark.parametrize(
    "finds, expected, words",
    [
        ("111111", ("fine", "strong"), "is found"),
        ("11", ("fine", "weak"), "is found"),  # two caches by whole prompts: one time of four
        ("110101", ("fault", "strong"), "at times alone (4 of 6)"),
        ("000000", ("fault", "strong"), "a router that sends each whole prompt"),
        ("111110", ("cannot tell", "weak"), "a miss may be anything's"),
    ],
)
def test_shared_fronts_that_are_found_at_times_alone_show_a_router_by_whole_prompts(finds, expected, words):
    seen = sight(law=LAW)
    seen.sent = [one for one in seen.sent if one.purpose != kinds.SHARED]
    seen.sent += [sent(kinds.SHARED, 600 + at, 0, 66, 48 * int(found), matched=50) for at, found in enumerate(finds)]
    assert verdict(seen, "shared") == expected and words in text_of(seen, "shared")


def test_shared_fronts_that_miss_where_whole_prompts_hit_are_a_fault():
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(one.length, 0)), kinds.SHARED)
    assert verdict(seen, "shared") == ("fault", "strong")


@pytest.mark.parametrize(
    "facts, bound", [({"pool_tokens": 32}, "the pool holds 32 tokens"), ({"max_model_len": 24}, "a request may have 24 tokens")]
)
def test_what_kept_prompts_short_is_named(facts, bound):
    seen = sight(replace(VLLM, **facts))
    seen.sent = [replace(one, num_ids=16, usage=usage(16, 0)) for one in seen.sent]
    assert bound in text_of(seen, "unit") and "more tokens, or time" not in text_of(seen, "unit")
