"""What the counters say of a request is told apart from what others send; the rest is unknown."""

from __future__ import annotations

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
