"""Each verdict from what was seen alone: a healthy sight, changed in one place."""

import re
from dataclasses import replace

import pytest

from labs.probe import observation as kinds
from labs.probe.clock import Clock
from labs.probe.explanation import Explanation
from labs.probe.judgement import judge
from labs.probe.observation import Observations, Rung, Streamed
from labs.probe.verdict import CONFIDENCES, FAULT, STATES, worst_first
from labs.servers.prefix_counters import CounterReading
from labs.servers.server_reply import ABSENT, Usage
from tests.labs.probe.fake_sight import (
    LAW,
    OTHER,
    SGLANG,
    VLLM,
    asked_once_more,
    changed,
    sent,
    sight,
    unreported,
    usage,
    with_times,
)  # fmt: skip


def verdict(seen, name):
    found = [one for one in judge(seen) if one.name == name]
    return (found[0].state, found[0].confidence) if found else None


def faults(seen):
    return [one.name for one in judge(seen) if one.is_fault]


def text_of(seen, name):
    (found,) = [one for one in judge(seen) if one.name == name]
    return " | ".join((found.finding, *found.evidence, found.next_step))


# Healthy


@pytest.mark.parametrize("facts, law", [(VLLM, LAW), (SGLANG, Explanation(1)), (replace(SGLANG, unit_size=64), Explanation(64))])
def test_a_server_that_follows_the_law_has_no_fault(facts, law):
    seen = sight(facts, law)
    assert faults(seen) == []
    for name in (
        "caching",
        "usage",
        "metrics",
        "replicas",
        "front",
        "chat",
        "unit",
        "witnesses",
        "salts",
        "shared",
        "counters",
        "stream",
    ):
        assert verdict(seen, name)[0] == "fine", name


def test_verdicts_come_worst_first_and_of_equals_the_surest_first():
    found = judge(sight(replace(VLLM, is_caching=False, has_counters=False)))
    assert [(STATES.index(one.state), CONFIDENCES.index(one.confidence)) for one in found] == sorted(
        (STATES.index(one.state), CONFIDENCES.index(one.confidence)) for one in found
    )
    assert worst_first(reversed(found))[0].is_fault


def test_a_probe_that_saw_nothing_is_judged_too():
    assert verdict(Observations(VLLM, "ids"), "caching") == ("cannot tell", "weak")


# Caching, identity, salts


def test_caching_that_the_configuration_names_off_is_certain():
    seen = sight(replace(VLLM, is_caching=False))
    assert verdict(seen, "caching") == ("fault", "certain")
    assert "--no-enable-prefix-caching" in text_of(seen, "caching")
    assert "identity" not in faults(seen)


@pytest.mark.parametrize(
    "version, words", [("0.7.3", "--enable-prefix-caching: before"), ("0.8.0", "remove --no-"), (None, "remove --no-")]
)
def test_the_flag_follows_the_version(version, words):
    assert words in text_of(sight(replace(VLLM, is_caching=False, version=version)), "caching")


def test_a_lookup_counter_that_stands_still_shows_caching_off():
    seen = changed(sight(replace(VLLM, is_caching=None)), lambda one: replace(one, counted=CounterReading(0, 0)))
    assert verdict(seen, "caching") == ("fault", "strong")
    assert "identity" not in faults(seen)


def test_misses_of_an_unknown_server_are_weak_evidence():
    seen = changed(sight(OTHER), lambda one: replace(one, counted=kinds.UNKNOWN))
    assert verdict(seen, "caching") == ("fault", "weak")
    assert "salt" in text_of(seen, "caching") and verdict(seen, "identity") is None


def test_lookups_that_never_find_equal_prompts_show_a_salt_for_each_request():
    seen = sight()
    assert (verdict(seen, "identity"), verdict(seen, "caching")) == (("fault", "strong"), ("fine", "certain"))
    assert "one prompt 6 times in a row: 0, 0, 0, 0, 0, 0 cached" in text_of(seen, "identity")


def test_a_salt_of_our_own_that_finds_shows_who_is_given_one():
    seen = changed(sight(), lambda one: replace(one, usage=usage(257, 256)) if one.turn == 2 else one, kinds.SALTED)
    assert verdict(seen, "identity") == ("fault", "strong") and "bring their own" in text_of(seen, "identity")


def test_prompts_shorter_than_a_unit_show_no_salt():
    assert verdict(sight(replace(VLLM, unit_size=4_096)), "identity") is None


def test_without_a_known_unit_long_prompts_must_have_missed():
    assert verdict(sight(replace(VLLM, unit_size=None)), "identity") == ("fault", "strong")
    short = sight(replace(VLLM, unit_size=None))
    short.sent = [one for one in short.sent if one.length < 1_000]
    assert verdict(short, "identity") == ("fault", "weak")


def test_a_salt_that_finds_what_was_sent_without_one_separates_nothing():
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(257, 256)) if one.turn else one, kinds.SALTED)
    assert verdict(seen, "salts") == ("fault", "strong")


def test_a_salt_whose_own_repeat_misses_is_replaced_on_the_way():
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(257, 0)), kinds.SALTED)
    assert verdict(seen, "salts") == ("cannot tell", "weak"), "one miss may be anything's"
    seen.sent.append(sent(kinds.SALTED, seen.of(kinds.SALTED)[0].prompt, 4, 257, 0, salt=kinds.OWN_SALT))
    assert verdict(seen, "salts") == ("fault", "strong") and "do not find each other" in text_of(seen, "salts")
    seen.sent.append(sent(kinds.SALTED, seen.of(kinds.SALTED)[0].prompt, 5, 257, 256, salt=kinds.OWN_SALT))
    assert verdict(seen, "salts") == ("fine", "strong")


# Replicas


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


# Fronts


def test_ids_that_differ_between_equal_prompts_show_what_changes_in_front():
    seen = changed(sight(), lambda one: replace(one, prompt_ids=(9, one.turn, 3)), kinds.LADDER)
    assert verdict(seen, "front") == ("fault", "certain") and "part at token 1" in text_of(seen, "front")
    assert verdict(seen, "identity") is None


def test_equal_prompts_of_differing_counts_show_it_too():
    seen = changed(sight(), lambda one: replace(one, usage=usage(one.num_ids + 3 + one.turn, 0)), kinds.LADDER)
    assert verdict(seen, "front") == ("fault", "certain") and "68 or 69 tokens" in text_of(seen, "front")


def test_more_tokens_than_were_sent_and_no_hit_show_a_front_that_changes():
    seen = changed(sight(), lambda one: replace(one, usage=usage(one.num_ids + 4, 0)), *kinds.OF_REPEATS)
    assert verdict(seen, "front") == ("fault", "strong") and "4 tokens in front" in text_of(seen, "front")
    assert verdict(seen, "identity") is None


def test_a_constant_front_is_expected():
    seen = changed(
        sight(law=LAW),
        lambda one: replace(one, usage=usage(one.num_ids + 16, one.cached + 16 * bool(one.turn))),
        *kinds.OF_REPEATS,
    )
    assert verdict(seen, "front") == ("expected", "weak") and "front" not in faults(seen)
    assert "a clock of minutes or days would not show" in text_of(seen, "front")
    seen.clocks[kinds.TEXT] = Clock()
    assert verdict(seen, "front") == ("expected", "strong")


def test_a_clock_shows_where_later_repeats_miss_behind_a_front():
    seen = changed(
        sight(law=LAW),
        lambda one: replace(one, usage=usage(one.num_ids + 16, one.cached + 16 * bool(one.turn))),
        *kinds.OF_REPEATS,
    )
    changed(seen, lambda one: replace(one, usage=usage(616, 0)), kinds.KEPT)
    assert verdict(seen, "front") == ("fault", "strong") and "a clock stands there" in text_of(seen, "front")
    assert verdict(seen, "replicas") is None


def test_texts_that_miss_where_ids_hit_are_changed_on_their_way():
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(600, 0)), kinds.TEXT)
    assert verdict(seen, "front") == ("cannot tell", "weak"), "one miss may be anything's"
    asked_once_more(seen, kinds.TEXT)
    assert verdict(seen, "front") == ("fault", "strong")
    changed(seen, lambda one: replace(one, usage=usage(600, 0)), kinds.KEPT)
    assert verdict(seen, "front") == ("cannot tell", "weak"), "what is so old may just be forgotten"


def test_a_chat_template_that_writes_the_time_is_told_by_ids_counts_or_hits():
    seen = changed(sight(law=LAW), lambda one: replace(one, prompt_ids=(1, 2, 3, one.turn)), kinds.CHAT)
    assert verdict(seen, "chat") == ("fault", "certain") and "part at token 3" in text_of(seen, "chat")
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(600 + one.turn, 0)), kinds.CHAT)
    assert verdict(seen, "chat") == ("fault", "certain")
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(600, 32 * one.turn), prompt_ids=None), kinds.CHAT)
    assert verdict(seen, "chat") == ("cannot tell", "weak"), "one miss may be anything's"
    asked_once_more(seen, kinds.CHAT)
    assert verdict(seen, "chat") == ("fault", "strong") and "between tokens 32 and 48" in text_of(seen, "chat")


def test_a_chat_that_falls_short_once_and_then_finds_all_is_fine():
    seen = asked_once_more(sight(law=LAW), kinds.CHAT)
    changed(seen, lambda one: replace(one, usage=usage(600, 32)) if one.turn == 1 else one, kinds.CHAT)
    assert verdict(seen, "chat")[0] == "fine"


def test_a_slow_clock_is_told_where_the_server_shows_what_stands_in_front():
    seen = sight(law=LAW)
    assert verdict(seen, "chat") == ("fine", "weak") and "clock of minutes or days would not show" in text_of(seen, "chat")
    seen.clocks[kinds.CHAT] = Clock(has_date=True, has_time=True)
    assert verdict(seen, "chat") == ("fault", "strong") and "today's date and the time of day" in text_of(seen, "chat")
    seen.clocks[kinds.CHAT] = Clock(has_time=True)
    assert verdict(seen, "chat") == ("fault", "weak"), "a time alone may stand there for good"
    seen.clocks[kinds.CHAT] = Clock(has_date=True)
    assert verdict(seen, "chat") == ("expected", "strong") and "each midnight" in text_of(seen, "chat")
    seen.clocks = {kinds.CHAT: Clock(), kinds.TEXT: Clock(has_date=True, has_time=True)}
    assert verdict(seen, "chat") == ("fine", "strong") and verdict(seen, "front") == ("fault", "strong")


def test_a_long_pause_shows_that_no_clock_of_minutes_stands_in_front():
    seen = changed(sight(law=LAW), lambda one: replace(one, at_s=61.0 * one.turn), kinds.CHAT)
    assert verdict(seen, "chat") == ("fine", "strong")


def behind(front, of_text=True):
    """A server behind a front of so many tokens that every prompt shares; the server alone counts."""
    seen = sight(replace(OTHER, unit_size=16), LAW)
    seen.sent = [one for one in seen.sent if one.purpose != kinds.SALTED]  # not asked of a server of unknown kind

    def fronted(one):
        length = one.length + front
        found = LAW.hits(front + (one.match or 0), length)
        return replace(one, num_ids=None, usage=usage(length, found), counted=kinds.UNKNOWN)

    seen = changed(seen, fronted)
    seen.form, seen.tokenized = "text", None
    seen.sent[0] = replace(seen.sent[0], usage=usage(seen.sent[0].length, 0))
    return seen


def test_a_front_that_every_text_finds_is_no_stranger():
    seen = behind(720)
    assert verdict(seen, "strangers") is None and faults(seen) == []
    assert verdict(seen, "front")[0] == "expected" and "About 720 tokens stand in front" in text_of(seen, "front")
    seen = changed(behind(0), lambda one: replace(one, usage=usage(one.length, one.length - 1)))
    assert verdict(seen, "strangers") == ("fault", "strong"), "what is found grows with the length"


def test_replicas_behind_a_front_are_counted_all_the_same():
    seen = behind(720)
    changed(seen, lambda one: replace(one, usage=usage(one.length, 720)) if one.turn == 1 else one, kinds.BURST)
    assert verdict(seen, "replicas") == ("fault", "strong") and "About 2 caches" in text_of(seen, "replicas")


def test_without_chat_nothing_is_said_of_its_template():
    seen = sight(law=LAW)
    seen.sent = [one for one in seen.sent if one.purpose != kinds.CHAT]
    seen.refuses_chat = "no chat template"
    assert verdict(seen, "chat") == ("cannot tell", "weak") and faults(seen) == []


def test_the_opening_token_twice_is_told_from_once():
    seen = sight(law=LAW)
    seen.opening_id = 1
    changed(seen, lambda one: replace(one, prompt_ids=(1, 5, 6)), kinds.TEXT, kinds.CHAT)
    assert verdict(seen, "bos") == ("fine", "certain")
    changed(seen, lambda one: replace(one, prompt_ids=(1, 1, 5, 6)), kinds.CHAT)
    assert verdict(seen, "bos") == ("fault", "certain")
    assert not any(character.isdigit() and character == "5" for character in text_of(seen, "bos")), "no token id is shown"


# Reports


@pytest.mark.parametrize("facts, flag", [(VLLM, "--enable-prompt-tokens-details"), (SGLANG, "--enable-cache-report")])
def test_unreported_is_unknown_and_the_counters_still_tell(facts, flag):
    seen = changed(sight(facts, Explanation(facts.unit_size)), unreported)
    assert verdict(seen, "usage") == ("fault", "certain") and flag in text_of(seen, "usage")
    assert "the counters found" in text_of(seen, "usage") and verdict(seen, "caching")[0] == "fine"


def test_no_usage_at_all_is_dropped_on_the_way():
    seen = changed(sight(law=LAW), lambda one: unreported(one, ABSENT))
    assert verdict(seen, "usage") == ("fault", "strong") and "gateway" in text_of(seen, "usage")


def test_details_that_the_server_was_told_to_send_are_dropped_on_the_way():
    seen = changed(sight(replace(SGLANG, info={"enable_cache_report": "True"}), Explanation(1)), unreported)
    assert verdict(seen, "usage") == ("fault", "strong")


def test_a_plain_server_that_reports_nothing_has_no_fault_in_that():
    seen = changed(sight(OTHER, LAW), lambda one: replace(unreported(one), counted=kinds.UNKNOWN))
    assert verdict(seen, "usage")[0] == "cannot tell" and verdict(seen, "caching")[0] == "cannot tell"
    assert faults(seen) == []


def test_a_null_for_each_miss_means_zero():
    seen = changed(sight(law=LAW), lambda one: one if one.cached else unreported(one))
    assert verdict(seen, "usage") == ("expected", "strong")
    seen = changed(sight(law=LAW), lambda one: unreported(one) if one.prompt % 2 else one)
    assert verdict(seen, "usage") == ("fault", "strong"), "some hits are silent too"


def test_missing_metrics_name_the_flag():
    seen = sight(replace(SGLANG, has_counters=False, has_metrics=False), Explanation(1))
    assert verdict(seen, "metrics") == ("fault", "certain") and "--enable-metrics" in text_of(seen, "metrics")
    assert verdict(sight(OTHER, LAW), "metrics")[0] == "cannot tell"


def test_a_stream_without_the_usage_it_was_asked_for_is_a_fault():
    seen = sight(law=LAW)
    seen.streamed = Streamed(Usage())
    assert verdict(seen, "stream") == ("fault", "strong")
    seen.streamed = Streamed(Usage(), "streaming is off")
    assert verdict(seen, "stream")[0] == "cannot tell"


@pytest.mark.parametrize("cached", [600, 601])
def test_a_whole_prompt_found_is_impossible(cached):
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(600, cached)), kinds.TEXT)
    assert verdict(seen, "impossible") == ("fault", "certain")
    assert verdict(sight(law=LAW), "impossible") is None


def test_witnesses_that_disagree_are_named_and_no_salt_is_blamed():
    seen = changed(sight(), lambda one: replace(one, counted=CounterReading(one.length, 48 * bool(one.turn))))
    assert verdict(seen, "witnesses") == ("fault", "strong") and "Usage says less" in text_of(seen, "witnesses")
    assert verdict(seen, "identity") is None


def test_times_that_fall_where_nothing_reports_a_hit_are_a_weak_fault():
    seen = changed(
        with_times(sight(), 0.1, 0.8), lambda one: replace(one, usage=usage(1_025, 0), counted=kinds.UNKNOWN), kinds.TIMING
    )
    assert verdict(seen, "witnesses") == ("fault", "weak")


def test_a_busy_server_that_turned_some_away_is_no_fault():
    seen = sight(law=LAW)
    seen.num_turned_away = 1
    assert verdict(seen, "replies") == ("expected", "weak") and "1 time, and sent again" in text_of(seen, "replies")
    seen.failures, seen.num_busy_failures = ["answered with 503"] * 2, 2
    assert verdict(seen, "replies") == ("expected", "weak")
    seen.failures, seen.num_busy_failures = ["answered with 503"] * 9, 9
    assert verdict(seen, "replies") == ("fault", "strong")
    seen.failures, seen.num_busy_failures = ["answered with 500"], 0
    assert verdict(seen, "replies") == ("fault", "strong")
    seen.failures, seen.num_busy_failures, seen.is_given_up = ["answered with 503"] * 3, 3, True
    assert verdict(seen, "replies") == ("fault", "strong")


def test_failed_requests_are_told_with_the_commonest_line():
    seen = sight(law=LAW)
    seen.failures = ["a", "b", "b"]
    assert verdict(seen, "replies") == ("fault", "strong") and "2 times: b" in text_of(seen, "replies")


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


# Counters


def test_other_peoples_traffic_is_told():
    seen = sight(law=LAW)
    own = seen.last_reading
    seen.last_reading = CounterReading(own.queries + 900, own.hits, "lookups", num_checks=900)
    assert verdict(seen, "counters") == ("fine", "strong"), "a balancer's health checks, one token each"
    seen.last_reading = CounterReading(own.queries + 50_000, own.hits, "lookups")
    assert verdict(seen, "counters") == ("expected", "strong") and "Others send" in text_of(seen, "counters")


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
    last = seen.sent[-1]
    seen.gauge = round(last.cached / last.length, 3)
    assert verdict(seen, "gauge") == ("fine", "strong"), "the latest batch's rate is what it is meant to tell"


# Units


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


def test_shared_fronts_that_miss_where_whole_prompts_hit_are_a_fault():
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(one.length, 0)), kinds.SHARED)
    assert verdict(seen, "shared") == ("fault", "strong")


# Pool, times


def test_a_pool_that_keeps_too_little_is_a_fault():
    seen = sight(replace(VLLM, pool_tokens=1_040, max_model_len=1_024), LAW)
    assert verdict(seen, "pool") is None, "only --stress looks"
    seen.rungs = [Rung(1_024, 257, 0)]
    assert verdict(seen, "pool") == ("fault", "strong")
    assert verdict(sight(replace(VLLM, pool_tokens=10_000), LAW, prompt_tokens=4_000), "pool") == ("fault", "certain")


def test_a_pool_smaller_than_a_request_is_a_fault_without_stress():
    seen = sight(replace(VLLM, pool_tokens=320), LAW)
    assert verdict(seen, "pool") == ("fault", "certain") and "320 tokens, less than one request may have (8,192)" in text_of(
        seen, "pool"
    )
    assert verdict(sight(replace(VLLM, pool_tokens=6_000), LAW), "pool") is None, "usual prompts fit several times"
    seen = sight(replace(VLLM, pool_tokens=2_000, max_model_len=1_024), LAW)
    changed(seen, lambda one: replace(one, usage=usage(600, 0)), kinds.KEPT)
    assert verdict(seen, "pool") == ("fault", "certain") and "others push it out" in text_of(seen, "pool")


def test_own_prompts_that_no_request_may_have_are_told_first_and_blame_nothing_else():
    seen = sight(law=LAW, prompt_tokens=20_000)
    assert (judge(seen)[0].name, verdict(seen, "length")) == ("length", ("fault", "certain"))
    assert faults(seen) == ["length"] and "what a request may have here, 8,192 tokens" in text_of(seen, "length")
    seen = sight(OTHER, LAW, prompt_tokens=3_000)
    seen.longest_refused = 2_999
    assert verdict(seen, "length") == ("fault", "strong")


@pytest.mark.parametrize(
    "facts, bound", [({"pool_tokens": 32}, "the pool holds 32 tokens"), ({"max_model_len": 24}, "a request may have 24 tokens")]
)
def test_what_kept_prompts_short_is_named(facts, bound):
    seen = sight(replace(VLLM, **facts))
    seen.sent = [replace(one, num_ids=16, usage=usage(16, 0)) for one in seen.sent]
    assert bound in text_of(seen, "unit") and "more tokens, or time" not in text_of(seen, "unit")


def test_a_pool_that_forgets_at_its_size_is_expected_and_much_sooner_a_fault():
    seen = sight(replace(VLLM, pool_tokens=16_000), LAW)
    seen.rungs = [Rung(8_192, 257, 256), Rung(16_384, 257, 0)]
    assert verdict(seen, "pool") == ("expected", "strong")
    seen.facts = replace(VLLM, pool_tokens=100_000)
    assert verdict(seen, "pool") == ("fault", "strong")
    seen.rungs = seen.rungs[:1]
    assert verdict(seen, "pool") == ("fine", "strong")


def test_times_are_compared_with_new_prompts_and_never_with_the_first_request():
    assert verdict(with_times(sight(law=LAW), 0.1, 0.8), "timing") == ("fine", "weak")
    # The first request took 15 s, and repeats are as fast as prompts that nobody sent: warm-up, no reuse.
    assert verdict(with_times(sight(law=LAW), 1.28, 1.27), "timing") == ("cannot tell", "weak")


def test_too_few_times_say_how_many_more_are_needed():
    seen = with_times(sight(law=LAW), 0.07, 5.0)
    seen.sent, seen.seconds = [one for one in seen.sent if one.purpose != kinds.TIMING or one.turn + one.prompt - 900 < 4], 48.0
    assert verdict(seen, "timing") == ("cannot tell", "weak")
    assert re.search(
        r"7 repeats and as many new prompts are enough, \d+ requests more: about --max-seconds \d+0\.", text_of(seen, "timing")
    )


def test_times_alone_are_weak_and_few_times_tell_nothing():
    def unknown(one):
        return replace(unreported(one), counted=kinds.UNKNOWN)

    seen = changed(with_times(sight(OTHER, LAW), 0.1, 0.8), unknown)
    assert verdict(seen, "caching") == ("fine", "weak")
    seen.sent = [one for one in seen.sent if one.purpose != kinds.TIMING or one.prompt in (900, 901, 902)][:-4]
    assert verdict(seen, "caching") == ("cannot tell", "weak")


def test_every_fault_says_what_to_do_next_and_on_what_evidence():
    sights = [
        sight(), sight(replace(VLLM, is_caching=False)), sight(law=LAW, burst_hits=[0, 0, 256, 256, 256, 256]),
        changed(sight(law=LAW), unreported), sight(VLLM, Explanation(1_056), prompt_tokens=900),
        changed(sight(), lambda one: replace(one, usage=usage(one.num_ids + 4, 0)), *kinds.OF_REPEATS),
    ]  # fmt: skip
    found = [one for seen in sights for one in judge(seen) if one.state == FAULT]
    assert len(found) >= len(sights)
    assert all(one.next_step and one.evidence for one in found if one.name != "metrics")
