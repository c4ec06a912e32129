"""What a unit leaves of a shared prefix, in words that follow the prompts' ids and never hide a hit that is not due."""

from __future__ import annotations

import pytest

from labs.cache_laws import CacheLaws
from labs.caches import hash_cache
from labs.scenarios.shared_arm import SharedArm, SharedSeries
from tests.labs.fake_session import FakeSession

CANARY = tuple(range(500, 548))


def shared_series(num_shared: int, num_own: int, laws: CacheLaws, first: int = 0) -> SharedSeries:
    prefix = (first, *range(1, num_shared))
    return SharedSeries(tuple((*prefix, own, *range(num_own - 1)) for own in (901, 902, 903)), laws)


@pytest.mark.parametrize(
    ("num_shared", "laws", "hits", "says"),
    [
        (40, CacheLaws(16), [32, 32], "of 40 shared tokens 32 are reused and 8 lost to blocks of 16"),
        (40, CacheLaws(16, num_front=10), [48, 48], "of 40 shared tokens 48 are reused and 2 lost to blocks of 16"),
        (40, CacheLaws(16, has_drafter=True), [16, 16], "16 are reused and 24 lost to blocks of 16 and to the drafter"),
        (15, CacheLaws(16), [0, 0], "shared prefix (15) is shorter than one block (16): nothing can be reused, although 2 later"),
        (15, CacheLaws(16), [0, 0], "the next prefix length that would hit is 16"),
        (10, CacheLaws(16, num_front=3), [0, 0], "the next prefix length that would hit is 13"),
        (15, CacheLaws(16, num_front=1), [16, 16], "of 15 shared tokens 16 are reused and 0 lost"),
        (31, CacheLaws(16, has_drafter=True), [0, 0], "two blocks of 16, of which the drafter gives up one"),
        (31, CacheLaws(16, has_drafter=True), [0, 0], "the next prefix length that would hit is 32"),
        (40, CacheLaws(16), [32, 16], "NOT as predicted: of 40 shared tokens 16 are reused, 32 are due with a block of 16"),
        (15, CacheLaws(16), [0, 16], "NOT as predicted: of 15 shared tokens 16 are reused, 0 are due with a block of 16"),
        (40, CacheLaws(16), [], "the server does not tell what was reused"),
    ],
)
def test_a_verdict_says_what_is_reused_what_is_lost_and_what_is_wrong(num_shared, laws, hits, says):
    assert says in shared_series(num_shared, 60, laws).verdict("block", hits)


@pytest.mark.parametrize(
    ("unit", "name", "words"),
    [(16, "block", "50 shared tokens find 48"), (32, "match unit", "blocks of 16, yet 50 shared tokens find 32")],
)
def test_an_arm_tells_the_unit_in_force_from_its_hits(unit, name, words):
    cache = hash_cache(16)
    cache.engine_fields["prefix_match_unit"] = unit
    laws = CacheLaws(unit)
    series = (shared_series(50, 60, laws), shared_series(2 * unit - 1, 60, laws, first=700))
    arm = SharedArm("t", cache, series, CANARY, is_fitted=True)
    session = FakeSession()
    measurements, (finding,), cold = arm.run(session)
    assert cold and session.measurements == measurements and session.done == arm.num_requests == 6
    assert all(one.agrees is not False for one in measurements)
    assert [one.samples for one in measurements if one.name == "fitted_unit"] == [(unit,)]
    assert arm.unit_name == name and finding.startswith(f"t: {words}") and f"hits come in units of {unit}" in finding
