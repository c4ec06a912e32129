"""Is anything cached, do equal prompts carry equal identities, does a salt separate: from what was seen alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.probe import sent as kinds
from labs.servers.prefix_counters import CounterReading
from tests.labs.probe.fake_sight import LAW, OTHER, VLLM, changed, crowded, sent, sight, unreported, usage, with_times
from tests.labs.probe.verdicts import faults, text_of, verdict


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


def by_connection(late=0, **fields):
    """Repeats on the probe's own connection are found; on new ones, and after a pause, so many tokens."""
    seen = sight(law=LAW, burst_hits=[0] * 4, **fields)
    seen.sent += [sent(kinds.LATE, number, turn, 257, late * turn) for number in (70, 71) for turn in (0, 1)]
    return seen


def test_repeats_that_new_connections_never_find_show_an_identity_for_each_connection():
    seen = by_connection()
    assert verdict(seen, "identity") == ("fault", "strong") and faults(seen) == ["identity"]
    assert "on new connections never" in text_of(seen, "identity") and "pause: 0, 0 cached" in text_of(seen, "identity")
    assert verdict(by_connection(late=256), "identity") is None, "published late"
    assert verdict(sight(law=LAW, burst_hits=[0, 0, 0, 256]), "identity") is None, "replicas"
    assert verdict(sight(law=LAW, burst_hits=[0, 0]), "identity") is None, "too few"


def salted_in_chat(*found):
    seen = sight(law=LAW)
    salts = (kinds.NO_SALT, kinds.OWN_SALT, kinds.NO_SALT)
    seen.sent += [
        sent(kinds.SALTED_CHAT, 700, turn, 300, cached, salt=salt, counted=kinds.UNKNOWN) for turn, (cached, salt) in enumerate(zip(found, salts))
    ]
    return seen


@pytest.mark.parametrize(
    "found, expected, words",
    [
        ((0, 0, 288), "fine", "In chat too"),
        ((0, 288, 288), "fault", "In chat a cache_salt separates nothing"),
        ((96, 0, 288), "fine", "In chat too"),
        ((0, 0, 0), "fine", "Whether it does in chat was not seen"),
        ((), "fine", "Whether it does in chat was not seen"),
        ((0, None, 288), "fine", "Whether it does in chat was not seen"),
    ],
)
def test_that_a_salt_separates_in_chat_is_said_where_it_was_seen(found, expected, words):
    seen = salted_in_chat(*found)
    assert verdict(seen, "salts") == (expected, "strong") and words in text_of(seen, "salts")


def test_a_salt_that_is_dropped_from_chat_is_told_where_completions_refuse_one():
    seen = salted_in_chat(0, 288, 288)
    seen.sent = [one for one in seen.sent if one.purpose != kinds.SALTED or one.salt == kinds.NO_SALT]
    assert verdict(seen, "salts") == ("fault", "strong")
    seen.sent = [one for one in seen.sent if one.purpose != kinds.SALTED_CHAT]
    assert verdict(seen, "salts") == ("cannot tell", "weak")


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


def test_times_alone_are_weak_and_few_times_tell_nothing():
    def unknown(one):
        return replace(unreported(one), counted=kinds.UNKNOWN)

    seen = changed(with_times(sight(OTHER, LAW), 0.1, 0.8), unknown)
    assert verdict(seen, "caching") == ("fine", "weak")
    seen.sent = [one for one in seen.sent if one.purpose != kinds.TIMING or one.prompt in (900, 901, 902)][:-4]
    assert verdict(seen, "caching") == ("cannot tell", "weak")


def test_prompts_that_others_may_have_pushed_out_show_no_identity():
    for seen in (crowded(sight()), crowded(sight(replace(VLLM, pool_tokens=None)), 9_000)):
        assert verdict(seen, "identity") == ("cannot tell", "weak") and "pushed them out" in text_of(seen, "identity")
        assert faults(seen) == [] and verdict(seen, "repeats") is None
    assert "looked up by others meanwhile: 200,000 tokens" in text_of(crowded(sight()), "identity")
    assert verdict(crowded(sight(), 20_000), "identity") == ("fault", "strong"), "too few to fill the pool"
    assert verdict(crowded(by_connection()), "identity") is None
