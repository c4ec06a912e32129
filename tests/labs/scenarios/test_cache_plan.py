"""A plan wants the room that its finds need, and each phase starts cold and from its prime."""

from __future__ import annotations

import pytest

from labs.caches import Cache, hash_cache
from labs.protocol import Prediction
from labs.scenarios.cache_plan import CachePlan, Phase
from labs.series import Series, SeriesRequest
from tests.labs.fake_server_target import FakeServer
from tests.labs.fake_session import FakeSession

SERVED = Cache("a server", 10)  # no engine fields: its pool is as it is
CANARY = tuple(range(500, 548))


def series(row: str, *requests: tuple[int, int], front_hits: int = 0) -> Series:
    """Requests of (tokens, hits), each beginning with its row's own token."""
    made = tuple(SeriesRequest((ord(row),) * length, Prediction(hits, "")) for length, hits in requests)
    return Series(row, made, Prediction(0, ""), Prediction(0, ""), front_hits=front_hits)


OWN = series("a", (100, 0), (100, 90))  # finds what it stored itself: 110 tokens and 2 · 20
EARLIER = series("b", (100, 90), (100, 90))  # finds what was there before it: 20 tokens and 2 · 20
NOTHING = series("c", (100, 0), (150, 0))  # 250 tokens and 2 · 20


def test_a_series_reaches_back_to_the_earliest_request_that_it_finds():
    phase = Phase((OWN, EARLIER, NOTHING), CANARY, prime=(7,) * 30)
    assert phase.all_tokens(10) == 30 + 150 + 60 + 290
    assert phase.reaches(10) == [150, 30 + 150 + 60, 150 + 20]


def test_what_a_server_puts_in_front_of_every_prompt_is_no_find():
    assert Phase((series("d", (100, 20), (100, 20), front_hits=20),), CANARY).reaches(10) == [100 + 20]


def test_a_pool_of_one_s_own_keeps_all_and_a_server_s_only_what_is_found():
    phases = (Phase((OWN,), CANARY), Phase((series("e", (60_000, 0)), NOTHING), CANARY))
    own_pool = CachePlan(hash_cache(10), phases).num_pool_blocks
    assert own_pool == (60_000 + 20 + 290 + 1024 + 40 + 9) // 10 + 1
    assert CachePlan(SERVED, (Phase((EARLIER, OWN), CANARY),)).num_pool_blocks == (150 + 1024 + 40 + 9) // 10 + 1
    assert CachePlan(hash_cache(10), (Phase((OWN,), CANARY),)).num_pool_blocks > 3_000, "never less than an engine's default"


@pytest.mark.parametrize(("num_blocks", "judged"), [(12, ["a", "b"]), (11, ["a"]), (8, [])])
def test_finds_that_reach_further_than_a_server_s_pool_are_not_judged(num_blocks, judged):
    # 64 tokens stored, then the 16 of the last block once more; 2 · 16 of room for each of three requests.
    prompt = tuple(range(64))

    def sent(row: str, *hits: int) -> Series:
        requests = tuple(SeriesRequest(prompt, Prediction(one, "")) for one in hits)
        return Series(row, requests, Prediction(sum(hits), ""), Prediction(64 * len(hits), ""))

    plan = CachePlan(Cache("a server", 16), (Phase((sent("a", 0, 48), sent("b", 48)), CANARY),))
    assert plan.phases[0].reaches(16) == [64 + 16 + 64, 64 + 16 + 64 + 16 + 32] == [9 * 16, 12 * 16]
    server = FakeServer()
    target = server()
    object.__setattr__(target.info, "num_blocks", num_blocks)
    results, cold = plan.run(FakeSession(server), target)
    assert cold and [row for row, result in results.items() if result.measurements[0].predicted is not None] == judged
