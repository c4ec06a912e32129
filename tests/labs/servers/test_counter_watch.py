"""What the counters say of a request is told apart from what others send; the rest is unknown."""

from __future__ import annotations

import httpx

from labs.servers import counter_watch
from labs.servers.counter_watch import CounterWatch
from tests.labs.servers.fake_server import FakeServer


def send(fake: FakeServer, client, num_tokens: int) -> None:
    fake._serve(list(range(num_tokens)), 1, None, False)


def test_a_requests_own_growth_is_read_when_it_has_landed():
    fake = FakeServer(lag=3)
    watch = CounterWatch(fake.client())
    send(fake, None, 40), send(fake, None, 40)
    assert (watch.after(80).reading.queries, watch.is_known) == (80, True)
    send(fake, None, 40)
    growth = watch.after(40)
    assert (growth.reading.queries, growth.reading.hits, growth.is_shared) == (40, 32, False)
    mark = watch.since_mark()
    assert (mark.reading.queries, mark.reading.hits) == (120, 64)
    assert watch.since_mark().reading.queries == 0


def test_other_traffic_makes_growth_unknown_and_says_so():
    fake = FakeServer(num_foreign_tokens=5)
    watch = CounterWatch(fake.client())
    send(fake, None, 40)
    growth = watch.after(40)
    assert growth.is_shared and not growth.reading.is_known
    assert watch.since_mark().is_shared


def test_health_checks_explain_no_more_than_their_own_number_of_tokens():
    fake = FakeServer(kind="sglang", num_checks=2, num_foreign_tokens=1)
    watch = CounterWatch(fake.client())
    send(fake, None, 40)
    growth = watch.after(40)
    assert growth.is_shared and not growth.reading.is_known, "2 checks and somebody's token are 3 tokens more than was sent"


def test_what_lands_late_is_never_taken_for_the_next_prompts_account(monkeypatch):
    monkeypatch.setattr(counter_watch, "WAIT_S", 0.0)
    fake = FakeServer(lag=3)
    watch = CounterWatch(fake.client())
    send(fake, None, 40)
    assert not watch.after(40).reading.is_known
    send(fake, None, 40)  # finds 32, but the 40 tokens that land first found none
    late = [watch.after(num_tokens) for num_tokens in (40, 0, 0, 0)]
    assert not any(one.reading.is_known and one.reading.queries for one in late) and not any(one.is_shared for one in late)
    fake.lag = 0
    send(fake, None, 40)
    assert watch.after(40).reading.hits == 32, "once all has landed, a prompt's own account is known again"


def test_growth_that_never_comes_is_unknown_and_no_longer_waited_for(monkeypatch):
    monkeypatch.setattr(counter_watch, "WAIT_S", 0.05)
    fake = FakeServer(is_caching=False)
    watch = CounterWatch(fake.client())
    for _ in range(counter_watch.MAX_SILENT):
        send(fake, None, 40)
        assert not watch.after(40).reading.is_known
    before = len(fake.paths)
    assert not watch.after(40).reading.is_known and len(fake.paths) == before + 1


def test_readings_without_a_prompt_do_not_start_the_waiting_again(monkeypatch):
    monkeypatch.setattr(counter_watch, "WAIT_S", 0.05)
    fake = FakeServer(is_caching=False)
    watch = CounterWatch(fake.client())
    for _ in range(counter_watch.MAX_SILENT):
        watch.since_mark(), send(fake, None, 40), watch.after(40)
    watch.since_mark(), watch.since_mark()
    send(fake, None, 40)
    before = len(fake.paths)
    growth = watch.after(40)
    assert len(fake.paths) == before + 1 and growth.is_silent


def test_a_restarted_server_and_a_failing_page_are_unknown_for_once(monkeypatch):
    monkeypatch.setattr(counter_watch, "WAIT_S", 0.05)
    fake = FakeServer()
    watch = CounterWatch(fake.client())
    send(fake, None, 40), watch.after(40)
    fake.queries = fake.hits = 0
    send(fake, None, 20)
    assert not watch.after(20).reading.is_known
    fake.has_metrics = False
    assert not watch.after(20).reading.is_known and not watch.is_known


class LateHits:
    """/metrics with these readings, one after the other: (queries, hits); then the last."""

    def __init__(self, *readings):
        self.readings, self.num_read = readings, 0

    def get(self, path, *, timeout_s):
        queries, hits = self.readings[min(self.num_read, len(self.readings) - 1)]
        self.num_read += 1
        return httpx.Response(200, text=f"vllm:prefix_cache_queries_total {queries}\nvllm:prefix_cache_hits_total {hits}\n")


def test_hits_that_a_reply_tells_are_waited_for_when_the_lookups_have_landed():
    watch = CounterWatch(LateHits((0, 0), (40, 0), (40, 0), (40, 32)))
    assert watch.after(40, 32).reading.hits == 32
    watch = CounterWatch(LateHits((0, 0), (40, 0), (40, 32)))
    assert (watch.after(40).reading.hits, watch._client.num_read) == (0, 2), "a miss is not waited for"


def test_hits_that_never_come_are_waited_for_a_few_times_only(monkeypatch):
    monkeypatch.setattr(counter_watch, "HITS_WAIT_S", 0.02)
    client = LateHits((0, 0))
    watch = CounterWatch(client)
    for number in range(1, counter_watch.MAX_SHORT + 2):
        client.readings, client.num_read = ((40 * number, 0),), 0
        assert watch.after(40, 32).reading.hits == 0
        assert (client.num_read > 1) == (number <= counter_watch.MAX_SHORT)


def test_a_counter_that_fell_is_told_and_what_spans_the_fall_is_unknown_even_when_it_has_grown_past_the_mark():
    watch = CounterWatch(LateHits((100, 0), (40, 0), (400, 0), (440, 0)))
    fallen = watch.after(40)
    assert fallen.is_fallen and not fallen.reading.is_known and not fallen.num_late
    assert watch.after(360).reading.queries == 360, "what is sent afterwards is known again"
    series = watch.since_mark()
    assert not series.grown.is_known and not series.is_fallen and not series.num_late, "440 is not 340 more than 100"


def test_a_fall_between_two_marks_is_told_once():
    watch = CounterWatch(LateHits((100, 0), (40, 0)))
    assert [watch.since_mark().is_fallen for _ in range(2)] == [True, False]
