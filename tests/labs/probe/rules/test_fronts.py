"""What stands in front of a prompt: constant, a counter, a clock, the opening token twice."""

from __future__ import annotations

from dataclasses import replace

from labs.probe import sent as kinds
from labs.probe.clock import Clock
from tests.labs.probe.fake_sight import LAW, VLLM, asked_once_more, behind, changed, crowded, sight, usage
from tests.labs.probe.verdicts import faults, text_of, verdict


def test_ids_that_differ_between_equal_prompts_show_what_changes_in_front():
    seen = changed(sight(), lambda one: replace(one, prompt_ids=(9, one.turn, 3)), kinds.LADDER)
    assert verdict(seen, "front") == ("fault", "certain") and "part at token 1" in text_of(seen, "front")
    assert verdict(seen, "identity") is None


def test_equal_prompts_of_differing_counts_show_it_too():
    seen = changed(sight(), lambda one: replace(one, usage=usage(one.num_ids + 3 + one.turn, 0)), kinds.LADDER)
    assert verdict(seen, "front") == ("fault", "certain") and "68 or 69 tokens" in text_of(seen, "front")


def test_a_count_without_what_was_found_is_no_front_that_changes():
    def counted(one, told):
        number = one.usage.prompt_tokens - one.cached
        return replace(one, usage=usage(number, one.cached if told else None), counted=kinds.UNKNOWN, prompt_ids=None)

    for told in (True, False):
        seen = changed(sight(law=LAW), lambda one: counted(one, told))
        assert "cut" not in faults(seen)
        assert [verdict(seen, name) for name in ("front", "chat")] == [("cannot tell", "weak")] * 2, "no ids are shown"
    changed(seen, lambda one: replace(one, usage=usage(one.num_ids - 3 * one.turn, None)), kinds.LADDER)
    assert verdict(seen, "front") == ("fault", "certain"), "no repeat finds so little"
    changed(seen, lambda one: replace(one, prompt_ids=(9, 3)), kinds.LADDER)
    assert "front" not in faults(seen), "the server shows equal prompts"


def test_more_tokens_than_were_sent_and_no_hit_show_a_front_that_changes():
    seen = changed(sight(), lambda one: replace(one, usage=usage(one.num_ids + 4, 0)), *kinds.OF_REPEATS)
    assert verdict(seen, "front") == ("fault", "strong") and "4 tokens in front" in text_of(seen, "front")
    assert verdict(seen, "identity") is None
    assert verdict(crowded(seen), "front") == ("cannot tell", "weak"), "others push out what it left"


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


def lost_behind_a_front(**facts):
    seen = changed(
        sight(replace(VLLM, **facts), LAW),
        lambda one: replace(one, usage=usage(one.num_ids + 16, one.cached + 16 * bool(one.turn))),
        *kinds.OF_REPEATS,
    )
    changed(seen, lambda one: replace(one, usage=usage(616, 0)), kinds.KEPT)
    total = sum(one.length for one in seen.sent)
    seen.last_reading = replace(seen.last_reading, queries=total)
    return seen


def test_a_clock_shows_where_later_repeats_miss_behind_a_front():
    seen = lost_behind_a_front()
    assert verdict(seen, "front") == ("fault", "strong") and "a clock stands there" in text_of(seen, "front")
    assert verdict(seen, "replicas") is None


def test_a_front_of_a_full_pool_is_no_clock():
    for seen in (lost_behind_a_front(pool_tokens=9_000), crowded(lost_behind_a_front()), crowded(lost_behind_a_front(pool_tokens=None))):
        assert verdict(seen, "front") == ("cannot tell", "weak") and "a pool that forgets" in text_of(seen, "front")
    assert verdict(lost_behind_a_front(pool_tokens=None), "front") == ("fault", "weak"), "how much is kept is unknown"


def test_texts_that_miss_where_ids_hit_are_changed_on_their_way():
    seen = changed(sight(law=LAW), lambda one: replace(one, usage=usage(600, 0)), kinds.TEXT)
    assert verdict(seen, "front") == ("cannot tell", "weak"), "one miss may be anything's"
    asked_once_more(seen, kinds.TEXT)
    assert verdict(seen, "front") == ("fault", "strong")
    changed(seen, lambda one: replace(one, usage=usage(600, 0)), kinds.KEPT)
    assert verdict(seen, "front") == ("cannot tell", "weak"), "what is so old may just be forgotten"


def forgotten(num_later, **facts):
    """Nothing that is some seconds old is found; asked for so many times."""
    seen = sight(replace(VLLM, **facts), LAW)
    for _ in range(num_later - 1):
        asked_once_more(seen, kinds.TEXT, kinds.CHAT, kinds.KEPT)
    return changed(seen, lambda one: replace(one, usage=usage(600, 0)), kinds.TEXT, kinds.CHAT, kinds.KEPT)


def test_what_is_forgotten_without_a_front_or_a_full_pool_changes_its_identity_with_time():
    seen = forgotten(2)
    assert verdict(seen, "front") == ("fault", "strong") and "identity changes with time" in text_of(seen, "front")
    assert "a pool that forgets" not in text_of(seen, "chat")
    assert verdict(forgotten(1), "front") == ("cannot tell", "weak"), "one miss may be anything's"
    assert "clock" not in text_of(forgotten(1), "front") and "salt that changes with time" in text_of(forgotten(1), "front")
    assert verdict(forgotten(2, pool_tokens=9_000), "front") == ("cannot tell", "weak"), "the probe's own fill the pool"
    assert "a pool that forgets so soon" in text_of(forgotten(2, pool_tokens=9_000), "front")
    seen.last_reading = replace(seen.last_reading, queries=seen.last_reading.queries + 50_000)
    assert verdict(seen, "front") == ("cannot tell", "weak"), "others may"


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


def test_a_front_that_every_text_finds_is_no_stranger():
    seen = behind(720)
    assert verdict(seen, "strangers") is None and faults(seen) == []
    assert verdict(seen, "front")[0] == "expected" and "About 720 tokens stand in front" in text_of(seen, "front")
    seen = changed(behind(0), lambda one: replace(one, usage=usage(one.length, one.length - 1)))
    assert verdict(seen, "strangers") == ("fault", "strong"), "what is found grows with the length"


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
