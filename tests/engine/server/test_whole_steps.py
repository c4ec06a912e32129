"""A page of metrics lies between two steps."""

from __future__ import annotations

import threading

import pytest

from engine.config import EngineConfig
from engine.server.metrics.prometheus import open_metrics
from engine.server.metrics.whole_steps import WholeSteps
from engine.server.open_engine import open_engine
from engine.server.options import ServerOptions


class InTwoHalves:
    """Metrics whose counting can be met half-way."""

    def __init__(self):
        self.queries = self.hits = self.ended = 0
        self.is_half_way = threading.Event()
        self._never = threading.Event()

    def observe_step(self, report):
        self.queries += 1
        self._pause()
        self.hits += 1

    def observe_finished(self, report):
        self.queries += 1
        self._pause()
        self.hits += 1

    def reject(self, reason):
        self.ended = reason

    def render(self):
        return f"{self.queries} {self.hits}".encode(), "text/plain"

    def _pause(self):
        self.is_half_way.set()
        self._never.wait(0.1)


@pytest.mark.parametrize("what", ["observe_step", "observe_finished"])
def test_a_page_asked_for_in_the_middle_of_a_report_shows_all_of_it(what):
    inner = InTwoHalves()
    metrics = WholeSteps(inner)
    engine = threading.Thread(target=getattr(metrics, what), args=(None,))
    engine.start()
    assert inner.is_half_way.wait(5)
    page = metrics.render()
    engine.join()
    assert page == (b"1 1", "text/plain")


def test_a_refusal_is_passed_on():
    inner = InTwoHalves()
    WholeSteps(inner).reject("max_num_queued_tokens")
    assert inner.ended == "max_num_queued_tokens"


@pytest.mark.parametrize(("flavor", "cache"), [("vllm", "hash"), ("sglang", "radix")])
def test_the_metrics_of_both_flavors_are_of_whole_steps(flavor, cache):
    engine = open_engine(EngineConfig(model="llama-3-8b", prefix_cache=cache), "sim", pace=0.0)
    assert isinstance(open_metrics(ServerOptions(flavor=flavor), engine), WholeSteps)
