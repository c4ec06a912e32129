"""Do replies tell what was found, and do the witnesses agree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.probe import sent as kinds
from labs.probe.explanation import Explanation
from labs.probe.observation import Observations, Streamed
from labs.servers.prefix_counters import CounterReading
from labs.servers.server_reply import ABSENT, Usage
from tests.labs.probe.fake_sight import LAW, OTHER, SGLANG, VLLM, behind, changed, sight, unreported, usage, with_times
from tests.labs.probe.verdicts import faults, text_of, verdict


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


def test_misses_that_are_null_blame_no_setting_where_no_counter_tells():
    seen = changed(sight(law=LAW), lambda one: replace(one if one.cached else unreported(one), counted=kinds.UNKNOWN))
    assert verdict(seen, "usage") == ("expected", "strong"), "another salt rightly finds nothing"
    changed(seen, lambda one: unreported(one) if one.turn == 2 else one, kinds.BURST)
    assert verdict(seen, "usage") == ("cannot tell", "weak"), "missed by another replica, or dropped"
    seen = changed(behind(32), lambda one: one if one.turn == 1 else unreported(one), kinds.BURST)
    assert verdict(seen, "usage") == ("fault", "strong"), "new prompts find the front: none is a miss"


def test_one_reply_alone_that_does_not_report_may_be_anythings():
    seen = sight(law=LAW)
    seen.sent[20] = unreported(seen.sent[20], ABSENT)
    assert verdict(seen, "usage") == ("cannot tell", "weak")
    seen.sent[22] = unreported(seen.sent[22], ABSENT)
    assert verdict(seen, "usage") == ("fault", "strong")


def test_chat_alone_that_does_not_report_blames_no_server_of_other_settings():
    seen = changed(sight(law=LAW), unreported, kinds.CHAT)
    assert verdict(seen, "usage") == ("fault", "strong") and "chat replies do not" in text_of(seen, "usage")
    changed(seen, lambda one: unreported(one) if one.turn else one, kinds.BURST)
    assert "servers of different settings" in text_of(seen, "usage"), "some completions do not either"


def test_a_stream_is_judged_by_what_was_asked_alone():
    seen = sight(law=LAW)
    assert verdict(seen, "stream") == ("fine", "certain") and "without that" not in text_of(seen, "stream")
    seen = changed(sight(OTHER, LAW), lambda one: unreported(one, ABSENT))
    seen.streamed = Streamed(Usage())
    assert verdict(seen, "stream") == ("cannot tell", "certain"), "neither reports anything"


def test_a_stream_of_a_new_prompt_tells_nothing_where_no_miss_is_told():
    seen = changed(sight(law=LAW), lambda one: one if one.cached else unreported(one))
    seen.streamed = Streamed(usage(33, None))
    assert verdict(seen, "stream") == ("cannot tell", "weak")
    seen.streamed = Streamed(Usage())
    assert verdict(seen, "stream") == ("fault", "strong")
    seen = sight(law=LAW)
    seen.streamed = Streamed(usage(33, None))
    assert verdict(seen, "stream") == ("fault", "strong"), "here a miss is told as 0"


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


def test_metrics_that_could_not_be_read_are_not_said_to_be_missing():
    closed = replace(VLLM, has_counters=False, has_metrics=False, metrics_trouble="http://a answered /metrics with 401")
    seen = sight(closed, LAW)
    assert verdict(seen, "metrics") == ("cannot tell", "certain") and "answered /metrics with 401" in text_of(seen, "metrics")
    assert "no /metrics" not in text_of(seen, "metrics") and "--disable-log-stats" not in text_of(seen, "metrics")
    assert verdict(sight(replace(closed, is_metrics_broken=True), LAW), "metrics") == ("fault", "strong")
    assert verdict(sight(replace(OTHER, metrics_trouble="timed out", is_metrics_broken=True), LAW), "metrics")[0] == "cannot tell"


def test_a_release_without_counters_is_told_to_be_too_old():
    seen = sight(replace(VLLM, has_counters=False, version="0.6.3"), LAW)
    assert "before 0.8" in text_of(seen, "metrics") and "--disable-log-stats" not in text_of(seen, "metrics")


def test_a_probe_that_asked_nothing_says_so_beside_what_the_server_says_of_itself():
    seen = Observations(VLLM, "unknown", stopped="60 s passed", left_out=["all questions"])
    assert verdict(seen, "replies") == ("cannot tell", "certain") and "60 s passed" in text_of(seen, "replies")
    assert verdict(seen, "caching") == ("fine", "certain") and "no prompt could be sent twice" in text_of(seen, "caching")
    assert faults(seen) == []
