"""A request whose own report and the cache's counters disagree is not believed."""

from __future__ import annotations

import pytest

from engine.metrics import PrefixCacheStats
from labs.counted_request import send_counted
from labs.targets.base import TargetError
from tests.labs.fake_server_target import FakeServer
from tests.labs.fake_session import FakeSession


@pytest.fixture
def target():
    session = FakeSession()
    opened = session.open_target()
    yield session, opened
    opened.close()


def test_what_was_found_before_does_not_enter_the_count(target):
    session, opened = target
    opened.complete(range(100))
    opened.complete(range(100))  # found 96, and nobody asked
    completion = send_counted(session, opened, range(100), "repeat", max_tokens=3)
    assert completion.num_cached_tokens == 96 and len(completion.output_token_ids) == 3 and session.done == 1


def test_on_a_server_a_disagreement_is_kept_as_evidence_and_stops_nothing():
    session = FakeSession(FakeServer(is_counting=False))
    opened = session.open_target()
    opened.complete(range(100))
    completion = send_counted(session, opened, range(100), "repeat")
    assert completion.evidence.disagrees and completion.num_cached_tokens == 96 and session.done == 1


@pytest.mark.parametrize(("hits", "queries"), [(80, 100), (96, 96)])
def test_a_disagreement_is_an_error_that_names_both(target, monkeypatch, hits, queries):
    session, opened = target
    opened.complete(range(100))
    monkeypatch.setattr(opened.engine, "take_stats", lambda: PrefixCacheStats(requests=1, queries=queries, hits=hits))
    with pytest.raises(TargetError, match=f"repeat: .*100 tokens reports 96 cached, the counters say {hits} of {queries}"):
        send_counted(session, opened, range(100), "repeat")
    assert session.done == 0
