"""A unit and a drafter are told from few repeats."""

import pytest

from labs.probe.explanation import Explanation, explain, telling_length

LADDER = (65, 257, 1_025, 4_097)


@pytest.mark.parametrize("unit", [1, 2, 16, 32, 64, 128, 256, 528, 784, 1_056, 2_048])
@pytest.mark.parametrize("has_drafter", [False, True])
def test_the_staircase_leaves_the_one_that_is_true(unit, has_drafter):
    truth, repeats = Explanation(unit, has_drafter), []
    for length in LADDER:
        repeats.append((length, truth.hits(length, length)))
        if repeats[-1][1]:
            break
    for _ in range(6):
        length = telling_length(explain(tuple(repeats)), LADDER[-1])
        if length is None:
            break
        repeats.append((length, truth.hits(length, length)))
    assert explain(tuple(repeats)) == ((truth,) if repeats[-1][1] or any(found for _, found in repeats) else ())


def test_one_hit_leaves_several_and_a_miss_none():
    assert {(one.unit, one.has_drafter) for one in explain(((4_097, 3_168),))} >= {(1_056, False), (1_584, False), (528, True)}
    assert explain(((65, 0), (257, 0))) == () == explain(())


def test_what_no_unit_gives_is_explained_by_none():
    assert explain(((65, 64), (129, 5))) == ()


def test_a_length_that_cannot_be_sent_is_not_asked():
    assert telling_length([Explanation(1_056), Explanation(1_584)], 1_000) is None
    assert telling_length([Explanation(16)], 1_000) is None


@pytest.mark.parametrize("law, length", [(Explanation(16), 17), (Explanation(16, True), 33), (Explanation(1), 2)])
def test_the_shortest_prompt_that_hits(law, length):
    assert law.hits(length, length) > 0 == law.hits(length - 1, length - 1)
