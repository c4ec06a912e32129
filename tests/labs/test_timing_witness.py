"""The clock as a third witness: agrees, contradicts, or cannot tell; never from a first call's start-up."""

from __future__ import annotations

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
        (0, [0.9 * one for one in SLOW], SLOW, AGREES, "0 hits reported"),
        (None, FAST, SLOW, CANNOT_TELL, "no counts"),
        (5, FAST, [], CANNOT_TELL, "no times"),
    ],
)
def test_the_clock_is_heard_beside_the_counts(hits, warm_s, control_s, state, words):
    witness = TimingWitness.of(hits, warm_s, control_s)
    assert witness.state == state and words in witness.text
