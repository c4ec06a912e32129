"""The laws of one cache: plain as in theory.py, a unit less beside a drafter, and from the front on where a server adds one."""

from __future__ import annotations

import pytest

from labs import theory
from labs.cache_laws import CacheLaws
from labs.caches import caches
from labs.targets.base import ServedCache


def value(laws: CacheLaws, law, *args) -> float | int:
    return laws.predict(law, *args).value


def test_a_plain_cache_predicts_what_the_laws_say_in_their_own_words():
    laws = CacheLaws(16)
    assert tuple(vars(laws.predict(theory.repeat, 2000)).values())[:2] == tuple(theory.predict(theory.repeat, 2000, 16))
    assert value(laws, theory.shared_prefix_hits, 10, 2000, 2200) == 18_000
    assert value(laws, theory.queries, 10, 2200) == 22_000
    assert laws.predict_new(2200).value == laws.front_hits(2200) == 0 and laws.is_plain


@pytest.mark.parametrize(
    ("law", "args", "hits"),
    [
        (theory.repeat, (2000,), 1968), (theory.reuse, (2000, 2200), 1984), (theory.reuse, (16, 2200), 0),
        (theory.shared_prefix_hits, (10, 2000, 2200), 9 * 1984), (theory.fresh_salt_hits, (3, 2200), 0),
    ],
)  # fmt: skip
def test_beside_a_drafter_each_match_is_a_unit_shorter(law, args, hits):
    assert value(CacheLaws(16, has_drafter=True), law, *args) == hits


@pytest.mark.parametrize(
    ("num_front", "repeat", "miss"), [(1, 2000, 0), (16, 2000, 16), (20, 2016, 16), (0, 1984, 0)]
)
def test_what_stands_in_front_lengthens_every_prompt_and_is_common_to_all(num_front, repeat, miss):
    laws = CacheLaws(16, num_front=num_front)
    assert value(laws, theory.repeat, 2000) == repeat and laws.front_hits(2000) == miss
    assert value(laws, theory.queries, 3, 2000) == 3 * (2000 + num_front)
    assert laws.predict_new(2000).value == 0, "a salt's name space is new: not even the front is there"


def test_where_a_series_law_does_not_reach_the_requests_are_summed():
    each = [CacheLaws(16, num_front=20).predict(theory.reuse, match, 2200) for match in (0, 2000, 2000)]
    total = CacheLaws(16, num_front=20).total(each, theory.shared_prefix_hits, 3, 2000, 2200)
    assert total.value == 16 + 2016 + 2016 and "sum" in total.law
    assert CacheLaws(16, num_front=3).total(each, theory.shared_prefix_hits, 3, 2000, 2200).value == 2 * 2000


def test_a_server_has_one_cache_and_a_lab_in_process_its_own():
    served = ServedCache("vLLM 0.32.0, block 32", "hash", 32, True, True, 1)
    (cache,) = caches(16, (1, 16), served)
    assert (cache.title, cache.unit, cache.engine_fields, cache.is_hash) == ("vLLM 0.32.0, block 32", 32, {}, True)
    assert cache.laws == CacheLaws(32, True, 1) == CacheLaws.of(served)
    assert [one.is_hash for one in caches(16, (1, 16))] == [True, False, False] and CacheLaws.of(None) is None
    assert [one.publishes_at_allocation for one in caches(16, (1,))] == [True, False]
