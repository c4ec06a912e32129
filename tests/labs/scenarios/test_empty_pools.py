"""A pool has as many usable blocks as were asked for, holds nothing, and shares no first token with the prompts."""

from __future__ import annotations

import pytest

from labs.scenarios.empty_pools import EmptyPools
from labs.targets.in_process import InProcessTarget
from labs.watch.block_map import cached_content
from tests.labs.fake_session import FakeSession

FIELDS = [{"prefix_cache": "hash", "block_size": 4}, {"prefix_cache": "radix", "page_size": 1}]


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: fields["prefix_cache"])
def test_a_pool_is_open_with_all_its_blocks_free_and_nothing_to_find(fields):
    pools = EmptyPools(FakeSession())
    target = pools.open(fields, 8)
    assert target.engine.manager.pool.num_free == 8 and not cached_content(target.engine) and pools.cold


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: fields["prefix_cache"])
def test_a_used_pool_is_emptied_and_proven_to_be(fields):
    session = FakeSession()
    pools = EmptyPools(session)
    target = pools.open(fields, 8)
    target.complete([1, 2, 3, 4, 5])
    assert cached_content(target.engine)
    pools.empty(target)
    assert not cached_content(target.engine) and pools.cold and session.states == ["cold", "cold"]


def test_one_pool_that_was_not_proven_is_remembered(monkeypatch):
    pools = EmptyPools(FakeSession())
    with monkeypatch.context() as patch:
        patch.setattr(InProcessTarget, "reset", lambda self: False)
        pools.open(FIELDS[0], 8)
    pools.open(FIELDS[0], 8)
    assert not pools.cold


def test_prompts_share_nothing_with_each_other_nor_with_the_canary():
    pools = EmptyPools(FakeSession())
    canary_id = pools.info.vocab_size - 1
    most = pools.prompts(canary_id, 1, seed=3)  # one more than these would be the canary's
    assert {ids[0] for ids in most} == set(range(canary_id))
    assert {len(ids) for ids in pools.prompts(26, 5, seed=3)} == {5}
