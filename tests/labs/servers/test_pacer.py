"""A rate spaces the starts of requests."""

from __future__ import annotations

import pytest

from labs.servers import pacer
from labs.servers.pacer import Pacer


class Waits:
    """Stands in for an event: notes how long somebody would wait."""

    def __init__(self):
        self.seconds = []

    def wait(self, seconds):
        self.seconds.append(seconds)


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(pacer.time, "monotonic", lambda: now[0])
    return now


def test_each_start_is_a_gap_after_the_one_before(clock):
    paced, waits = Pacer(4.0), Waits()
    for _ in range(3):
        paced.wait(waits)
    assert waits.seconds == [0.0, 0.25, 0.5]


def test_a_pause_is_not_made_up_for(clock):
    paced, waits = Pacer(4.0), Waits()
    paced.wait(waits)
    clock[0] += 10.0
    paced.wait(waits), paced.wait(waits)
    assert waits.seconds == [0.0, 0.0, 0.25]


def test_a_start_that_is_too_far_away_is_not_waited_for(clock):
    paced, waits = Pacer(0.1), Waits()
    assert paced.wait(waits, 5.0) and not paced.wait(waits, 5.0) and waits.seconds == [0.0]
    clock[0] += 6.0
    assert paced.wait(waits, 5.0) and waits.seconds == [0.0, 4.0]


def test_without_a_rate_nobody_waits():
    waits = Waits()
    Pacer(None).wait(waits)
    assert waits.seconds == []
