"""Real servers for probes, and probes that take no time."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from labs.probe import counter_reader, probe_run, repeat_series, side_series
from tests.engine.server.served import served


@pytest.fixture
def quick(monkeypatch):
    """No times, which say nothing on a simulated server; short pauses, and no prompts of thousands of tokens."""
    monkeypatch.setattr(side_series, "NUM_TIMED", 0)
    monkeypatch.setattr(side_series, "MIN_PAUSE_S", 0.0)
    monkeypatch.setattr(repeat_series, "LADDER_LENGTHS", (65, 257))
    monkeypatch.setattr(repeat_series, "LATE_PAUSE_S", 0.0)
    monkeypatch.setattr(repeat_series, "NUM_BURSTS", 1)
    monkeypatch.setattr(repeat_series, "NUM_FRONTS", 2)
    monkeypatch.setattr(probe_run, "LATE_S", 0.3)
    monkeypatch.setattr(counter_reader, "SETTLE_S", 0.05)


@pytest.fixture(scope="module")
def servers():
    """Servers by what they were started with; they are shared, since no probe asks what another one did."""
    with ExitStack() as stack:
        running = {}

        def server(number, fields):
            key = (number, *sorted(fields.items()))
            if key not in running:
                running[key] = stack.enter_context(served(**fields))
            return running[key]

        yield server
