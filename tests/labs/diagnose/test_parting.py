"""Where two prompts part and meet again, checked against a search of every pair of places."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs.diagnose.parting import MIN_RUN, Parting, part

BODY = list(range(50, 90))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (BODY, BODY, Parting(40, None, (0, 0), 0)),
        (BODY[:10], BODY, Parting(10, None, (0, 0), 0)),
        ([1, *BODY], [2, *BODY], Parting(0, 0, (1, 1), 40)),
        (BODY, [1, 2, 3, *BODY], Parting(0, 0, (0, 3), 40)),
        ([1, 2, 3, *BODY], BODY, Parting(0, 0, (3, 0), 40)),
        ([*BODY, 1, 2, *BODY, 5], [*BODY, 3, *BODY, 6], Parting(40, 40, (2, 1), 40)),
        ([1, 2, 3], [4, 5, 6, 7], Parting(0, 0, (3, 4), 0)),
        ([1, *BODY[: MIN_RUN - 1], 2], [3, *BODY[: MIN_RUN - 1], 4], Parting(0, 0, (9, 9), 0)),
    ],
)
def test_what_stands_between_is_measured_on_both_sides(first, second, expected):
    assert part(first, second) == expected


ids = st.lists(st.integers(0, 2), max_size=30)


@settings(max_examples=200, deadline=None)
@given(first=ids, second=ids)
def test_they_meet_at_the_place_that_skips_the_fewest_ids(first, second):
    found = part(first, second)
    start = found.common
    assert first[:start] == second[:start]
    if found.first_difference is None:
        assert start == min(len(first), len(second))
        return
    assert first[start] != second[start]
    skipped = [
        mine + theirs
        for mine in range(len(first) - start)
        for theirs in range(len(second) - start)
        if len(run := first[start + mine :][:MIN_RUN]) == MIN_RUN and run == second[start + theirs :][:MIN_RUN]
    ]
    assert bool(skipped) == bool(found.equal_after)
    if skipped:
        assert sum(found.replaced) == min(skipped)
        mine, theirs = (start + number for number in found.replaced)
        assert first[mine : mine + found.equal_after] == second[theirs : theirs + found.equal_after]
