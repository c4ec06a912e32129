"""What new prompts find is chance, a front that all share, or cannot be."""

from __future__ import annotations

from dataclasses import replace

from labs.probe.new_prompts import CHANCE_TOKENS, NewPrompts
from labs.probe.sent import LADDER
from tests.labs.probe.fake_sight import sent, usage


def exact(*found, front=0):
    """Prompts of 100 ids each, behind a front, that found so much."""
    return tuple(replace(sent(LADDER, at, 0, 100, cached), usage=usage(100 + front, cached)) for at, cached in enumerate(found))


def texts(*pairs):
    """(length, tokens found) of texts that the server alone counts."""
    return tuple(replace(sent(LADDER, at, 0, length, found), num_ids=None) for at, (length, found) in enumerate(pairs))


def test_one_that_is_found_may_be_chance_and_two_are_strangers():
    one, two = NewPrompts(exact(0, 0, 90), 16), NewPrompts(exact(0, 80, 90), 16)
    assert (len(one.strangers), one.are_found, one.most_found) == (1, False, 0)
    assert (len(two.strangers), two.are_found, two.most_found) == (2, True, 0)


def test_a_few_tokens_are_chance_and_make_room_for_more_of_it_where_units_are_small():
    assert NewPrompts(exact(0, CHANCE_TOKENS), 1).most_found == 2 * CHANCE_TOKENS
    assert NewPrompts(exact(0, CHANCE_TOKENS), 16).most_found == CHANCE_TOKENS
    assert not NewPrompts(exact(CHANCE_TOKENS, CHANCE_TOKENS), 1).strangers
    assert NewPrompts(exact(CHANCE_TOKENS + 1, CHANCE_TOKENS + 1), 1).are_found


def test_exact_prompts_tell_their_front_by_what_the_server_counts_more():
    assert not NewPrompts(exact(32, 32, front=32), 16).strangers
    assert NewPrompts(exact(48, 48, front=32), 16).are_found


def test_a_front_of_texts_is_what_all_lengths_find_and_grows_with_none():
    front = NewPrompts(texts((800, 704), (1_200, 704)), 16)
    assert (front.standing_front, front.are_found) == (704, False)
    growing = NewPrompts(texts((800, 784), (1_200, 1_184)), 16)
    assert (growing.standing_front, growing.are_found) == (0, True)
    assert NewPrompts(texts((800, 704)), 16).standing_front == 0, "one text tells nothing"
    assert NewPrompts(texts((800, 704), (810, 704)), 16).standing_front == 0, "nor do two of nearly one length"
