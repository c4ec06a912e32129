"""An output that differs cold and warm: a near tie where float32 says so, else wrong K/V; unjudged where nobody can know."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs import output_check
from labs.caches import hash_cache, served_cache
from labs.judged_output import judge_output
from labs.output_check import check_outputs
from labs.targets.base import Completion
from tests.labs.fake_server_target import FakeServer
from tests.labs.fake_session import FakeSession

PROMPT, CANARY = tuple(range(100)), tuple(range(500, 548))


def check(warm, gap):
    cold, warm = (Completion(ids, 100, hits, 0.1, 0.2, "length", (2.0, gap)) for ids, hits in (((1, 2), 0), (warm, 96)))
    return check_outputs(cold, cold, warm)


def judge(session, cache):
    target = session.open_target(**cache.engine_fields)
    return judge_output(session, target, cache, PROMPT, CANARY, 2)


class HalfPrecision:
    """The session's targets say they compute in half precision, and the lab may tell a real model from a simulated one."""

    kind, served = "engine", None

    def __init__(self, inside):
        self._inside, self.opened = inside, []

    def __call__(self, dtype="bfloat16", **fields):
        self.opened.append(dtype)
        target = self._inside(**fields)
        target.info = replace(target.info, dtype=dtype)
        return target


@pytest.mark.parametrize(
    ("half", "exact", "num_differing", "says"),
    [
        (check((1, 2), 0.1), None, 0, "all 2 tokens equal"),
        (check((1, 9), 0.1), check((1, 2), 0.1), 0, "in float32: greedy output cold, cold again and warm: all 2 tokens equal"),
        (check((1, 9), 0.1), check((1, 2), 0.1), 0, ". A near tie, decided by rounding"),
        (check((1, 9), 0.1), check((1, 9), 0.1), 1, ". NOT a near tie: wrong K/V"),
    ],
)
def test_float32_decides_over_a_difference_in_half_precision(monkeypatch, half, exact, num_differing, says):
    session = FakeSession()
    session.open_target = HalfPrecision(session.open_target)

    def compare(session, target, title, *asked):
        return (half if target.info.dtype == "bfloat16" else exact), True

    monkeypatch.setattr(output_check, "compare_cold_and_warm", compare)
    monkeypatch.setattr("labs.judged_output.compare_cold_and_warm", compare)
    output = judge(session, hash_cache(16))
    (measurement,) = output.measurements
    assert (measurement.value, measurement.agrees) == (num_differing, not num_differing)
    assert says in output.finding and session.measurements == [measurement]
    assert session.open_target.opened == (["bfloat16"] if exact is None else ["bfloat16", "float32"])


def test_on_the_simulated_target_it_is_shown_and_proves_nothing():
    output = judge(FakeSession(), hash_cache(16))
    (measurement,) = output.measurements
    assert output.is_cold and measurement.agrees is None and "cannot fail" in measurement.note
    assert output.finding.startswith("hash cache, block 16: ") and output.finding.endswith("it shows nothing")


@pytest.mark.parametrize(
    ("manners", "num_measured", "says"),
    [
        ({}, 1, "cold, cold again and warm: all 2 tokens equal (96 of"),
        ({"tells_ids": False}, 0, "not compared: this server does not tell the ids it generated"),
        ({"unit": 784}, 0, "Not judged: the server says that the warm run found nothing"),
    ],
)
def test_a_server_is_judged_where_it_tells_enough(manners, num_measured, says):
    session = FakeSession(FakeServer(**manners))
    output = judge(session, served_cache(session.open_target.served))
    assert says in output.finding and len(output.measurements) == num_measured == len(session.measurements)
    assert all(one.agrees and one.unit == "outputs" for one in output.measurements)
