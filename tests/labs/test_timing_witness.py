"""The clock as a third witness: agrees, contradicts, or cannot tell; never from a first call's start-up."""

from __future__ import annotations

import random

import pytest

from labs.timing_witness import AGREES, CANNOT_TELL, DISAGREES, TimingWitness

FAST, SLOW = [0.010, 0.011, 0.010, 0.012, 0.011], [0.100, 0.102, 0.099, 0.101, 0.100]


@pytest.mark.parametrize(
    ("hits", "warm_s", "control_s", "state", "words"),
    [
        (18_000, FAST, SLOW, AGREES, "hits reported, 9"),
        (18_000, SLOW, SLOW, CANNOT_TELL, "no faster than the control"),
        (0, FAST, SLOW, DISAGREES, "may not be wired"),
        (0, SLOW, SLOW, AGREES, "0 hits reported"),
        (0, [0.9 * one for one in SLOW], SLOW, CANNOT_TELL, "too little for reuse"),
        (18_000, FAST, SLOW[:2], AGREES, "hits reported, 9"),  # once in 21 by chance
        (18_000, FAST[:4], SLOW[:2], CANNOT_TELL, "4 times beside 2 of the control are too few"),  # once in 15
        (18_000, [*FAST, SLOW[0]], SLOW[:2], CANNOT_TELL, "no faster than the control"),  # medians far apart, but not all
        (0, FAST, SLOW[:2], DISAGREES, "may not be wired"),
        (0, FAST[:3], SLOW[:1], CANNOT_TELL, "3 times beside 1 of the control are too few"),
        (None, FAST, SLOW, CANNOT_TELL, "no counts"),
        (5, FAST, [], CANNOT_TELL, "no times"),
    ],
)
def test_the_clock_is_heard_beside_the_counts(hits, warm_s, control_s, state, words):
    witness = TimingWitness.of(hits, warm_s, control_s)
    assert witness.state == state and words in witness.text


@pytest.mark.parametrize(("num_warm", "num_controls"), [(3, 1), (9, 2)])
def test_equal_times_seldom_look_sooner(num_warm, num_controls):
    rng = random.Random(0)
    seen = [
        TimingWitness.of(
            64, [rng.lognormvariate(0, 0.2) for _ in range(num_warm)], [rng.lognormvariate(0, 0.2) for _ in range(num_controls)]
        ).state
        for _ in range(100)
    ]
    assert seen.count(AGREES) <= 5
