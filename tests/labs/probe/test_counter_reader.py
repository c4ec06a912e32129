"""Counters are read once between two requests, waited for as long as that helps, and their falls are noted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from labs.probe import counter_reader
from labs.probe.counter_reader import MAX_UNSETTLED, CounterReader
from labs.probe.observation import Observations
from labs.probe.sent import UNKNOWN
from labs.targets.base import TargetError
from tests.labs.probe.fake_sight import OTHER, SGLANG, VLLM


class FakeClient:
    """Answers /metrics with the numbers of tokens looked up that are given, and the last of them for ever."""

    def __init__(self, *queries):
        self.queries, self.num_read, self.is_closed = list(queries), 0, False

    def get(self, path, *, timeout_s):
        assert path == "/metrics"
        queries = self.queries[min(self.num_read, len(self.queries) - 1)]
        self.num_read += 1
        if queries is None:
            raise TargetError("gone")
        text = f"vllm:prefix_cache_queries_total {queries}\nvllm:prefix_cache_hits_total 0\nsglang:cache_hit_rate 0.25\n"
        return SimpleNamespace(status_code=200, text=text)

    def close(self):
        self.is_closed = True


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(counter_reader, "SETTLE_S", 0.05)
    monkeypatch.setattr(counter_reader, "PAUSE_S", 0.0)


def reader_of(*queries, facts=VLLM):
    client, seen = FakeClient(*queries), Observations(facts, "ids")
    return CounterReader(client, seen), client, seen


def test_one_request_s_reading_after_is_the_next_one_s_before():
    reader, client, _ = reader_of(100, 165, 230)
    before = reader.before(is_counted=True)
    assert reader.growth(before, 65).queries == 65
    before = reader.before(is_counted=True)
    assert (before.queries, client.num_read) == (165, 2)
    assert reader.growth(before, 65).queries == 65


def test_a_request_that_is_not_counted_reads_nothing_and_leaves_no_old_reading_behind():
    reader, client, _ = reader_of(100, 165, 230)
    reader.growth(reader.before(is_counted=True), 65)
    before = reader.before(is_counted=False)
    assert before == UNKNOWN and reader.growth(before, 65) == UNKNOWN and client.num_read == 2
    assert reader.before(is_counted=True).queries == 230


def test_a_request_is_waited_for_until_all_of_it_is_counted():
    reader, client, _ = reader_of(100, 100, 120, 165)
    assert reader.growth(reader.before(is_counted=True), 65).queries == 65 and client.num_read == 4


def test_when_several_requests_were_never_counted_nobody_waits_any_more():
    reader, client, _ = reader_of(100)
    before = reader.before(is_counted=True)
    for _ in range(MAX_UNSETTLED):
        num_read = client.num_read
        assert reader.growth(before, 65).queries == 0 and client.num_read > num_read + 1
    num_read = client.num_read
    assert reader.growth(before, 65).queries == 0 and client.num_read == num_read + 1


def test_falls_are_counted_on_the_probe_s_own_connection_alone_and_the_gauge_is_kept():
    reader, _, seen = reader_of(100, 40, 50)
    others = [FakeClient(900), FakeClient(7)]
    for _ in range(3):
        reader.read()
    reader.reread(iter(others).__next__, 2)
    assert (seen.num_falls, seen.gauge) == (1, 0.25)
    assert [one.queries for one in seen.rereadings] == [900, 7] and all(one.is_closed for one in others)


def test_counters_that_are_not_there_or_fail_are_unknown():
    reader, client, seen = reader_of(100, facts=OTHER)
    reader.reread(lambda: pytest.fail("nothing to read"), 4)
    assert reader.read() == UNKNOWN and client.num_read == 0 and not seen.rereadings
    reader, _, seen = reader_of(None, facts=SGLANG)
    assert reader.read() == UNKNOWN and seen.gauge is None


def test_hits_that_a_reply_tells_are_waited_for_but_not_for_ever(monkeypatch):
    reader, client, _ = reader_of(100)
    before, hits = reader.before(is_counted=True), [0, 0, 64]

    def get(path, *, timeout_s):
        found = hits.pop(0) if len(hits) > 1 else hits[0]
        client.num_read += 1
        text = f"vllm:prefix_cache_queries_total 165\nvllm:prefix_cache_hits_total {found}\n"
        return SimpleNamespace(status_code=200, text=text)

    monkeypatch.setattr(client, "get", get)
    assert reader.growth(before, 65, found=64).hits == 64
    for _ in range(MAX_UNSETTLED):
        num_read = client.num_read
        assert reader.growth(before, 65, found=65).hits == 64 and client.num_read > num_read + 1
    num_read = client.num_read
    assert reader.growth(before, 65, found=65).hits == 64 and client.num_read == num_read + 1


def test_a_request_on_another_connection_is_counted_there_and_what_lay_between_two_connections_is_kept():
    reader, client, seen = reader_of(100, 165, 165)
    reader.growth(reader.before(is_counted=True), 65)
    other = FakeClient(7_000, 7_065)
    before = reader.before(is_counted=True, client=other)
    assert reader.growth(before, 65, other).queries == 65 and other.num_read == 2
    assert reader.before(is_counted=True).queries == 165 and seen.num_falls == 0
    assert [(earlier.queries, later.queries) for earlier, later in seen.neighbors] == [(165, 7_000), (7_065, 165)]
    assert seen.is_jumping, "nothing was sent between these readings"
