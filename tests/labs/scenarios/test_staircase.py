"""A staircase has every length over two blocks, and tells the last-token rule from a drafter's tax by what is computed again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.caches import hash_cache, radix_cache
from labs.scenarios.staircase import Staircase, StaircaseResult, run_staircase
from tests.labs.fake_session import FakeSession

BLOCK = hash_cache(4)


@pytest.mark.parametrize(("block_size", "lengths"), [(1, [2, 3]), (2, [2, 3, 4, 5]), (4, [2, 3, 4, 5, 6, 7, 8, 9])])
def test_small_blocks_have_every_length_over_two_of_them(block_size, lengths):
    staircase = Staircase(block_size)
    assert staircase.lengths == lengths and staircase.num_tokens == staircase.prompt_tokens + sum(lengths)


@pytest.mark.parametrize("block_size", [64, 784, 1000])
def test_large_blocks_have_some_lengths_with_both_steps_among_them(block_size):
    lengths = Staircase(block_size).lengths
    assert len(lengths) < 2.2 * 32 and lengths == sorted(set(lengths)) and lengths[0] == 2
    assert {block_size, block_size + 1, 2 * block_size, 2 * block_size + 1} <= set(lengths)


def result_of(cache, hits) -> StaircaseResult:
    return StaircaseResult(cache, {length: hits(length) for length in Staircase(4).lengths}, ())


def last_token_rule(length: int) -> int:
    return (length - 1) // 4 * 4


def drafter_tax(length: int) -> int:
    return max(0, last_token_rule(length) - 4)


DRAFTER = replace(BLOCK, has_drafter=True)


@pytest.mark.parametrize(
    ("cache", "hits", "told"),
    [
        (BLOCK, last_token_rule, "a block compute 1 to 4 of their tokens again: the last-token rule and nothing else"),
        (DRAFTER, drafter_tax, "5 to 8 of their tokens again: the last-token rule, and a drafter's block more at every such length"),
        (BLOCK, drafter_tax, "a drafter's block more at every such length, NOT what this cache should do"),
        (DRAFTER, last_token_rule, "the last-token rule and nothing else, NOT what this cache should do"),
        (BLOCK, lambda length: 0, "compute 5 to 9 of their tokens again: NOT what the last-token rule or a drafter would do"),
        (radix_cache(1), lambda length: length - 1, "a page compute 1 of their tokens again: the last-token rule and nothing else"),
    ],
)
def test_the_rule_is_read_off_what_is_computed_again(cache, hits, told):
    assert result_of(cache, hits).rule.endswith(told)


def test_what_no_server_tells_is_neither_measured_nor_read():
    silent = StaircaseResult(BLOCK, {}, ())
    assert silent.measurements("checks") == [] and silent.rule == ""


def test_tokens_that_a_server_puts_in_front_belong_to_the_prompt():
    fronted = replace(BLOCK, num_front=3)
    found = {length: last_token_rule(length + 3) for length in Staircase(4).lengths}
    assert StaircaseResult(fronted, found, ()).rule.endswith("the last-token rule and nothing else")


def test_every_length_finds_what_its_own_repeat_would_find():
    session = FakeSession()
    target = session.open_target(**BLOCK.engine_fields)
    result = run_staircase(session, target, BLOCK, Staircase(4), range(100, 200))
    assert result.hits == {length: last_token_rule(length) for length in range(2, 10)} and session.done == 8
    assert all(one.agrees for one in result.measurements("checks"))
    wrong = replace(result, hits={**result.hits, 9: 4})
    assert [(one.name, one.value, one.agrees) for one in wrong.measurements("checks")] == [
        ("lengths", 7, False), ("hits", 4 * 4 + 4, False)
    ]  # fmt: skip
