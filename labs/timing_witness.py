"""Timing witness: whether times to the first token say the same as the counts, on a server whose counts are not ours.

    hits reported, sooner than the control        agrees
    hits reported, no sooner                      cannot tell: at this length little depends on prefill, or nothing was reused
    no hits reported, sooner by half or more      disagrees: the counter may not be wired on this path
    no hits reported, a little sooner             cannot tell: too little for reuse, and not nothing
    no hits reported, no sooner                   agrees
    too few times                                 cannot tell: of equal ones a few often look sooner

Sooner: the ratio of medians lies above 1 with 95 % of its resamples. Fewer than five times on a side say little of their own
spread, and resampling two of them says nothing; there each of the others must be below each of them. Of n and m equal times
that happens by chance once in C(n+m, n): with nine and two once in 55; where it is more than once in 20 the clock cannot tell.

The control is an unrelated prompt of the same length, sent when all is warmed up: without one, a first call's start-up looks
like a cache. A clock is a third witness beside replies and counters and proves nothing alone, so nothing here is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Sequence

from labs.measure import FEW_SAMPLES, ratio_of_medians

MOST_CHANCE = 0.05  # of equal times looking sooner
FALL = 2.0  # times sooner than the control, at least, before a clock contradicts a count of 0

AGREES, DISAGREES, CANNOT_TELL = "agrees", "disagrees", "cannot tell"


@dataclass(frozen=True)
class TimingWitness:
    """What the clock says of the counts."""

    state: str  # AGREES, DISAGREES or CANNOT_TELL
    text: str  # one line

    @classmethod
    def of(cls, hits: int | None, warm_s: Sequence[float], control_s: Sequence[float]) -> TimingWitness:
        """From times to the first token of requests that were due to reuse, and of unrelated ones.

        hits  tokens that those found by the counts; None: unknown
        """
        if not warm_s or not control_s or min(warm_s) <= 0:
            return cls(CANNOT_TELL, "timing cannot tell: there are no times to compare")
        ratio = ratio_of_medians(control_s, warm_s)
        times = f"{ratio.value:.1f} times as fast as the control [{ratio.low:.1f}–{ratio.high:.1f}]"
        if hits is None:
            return cls(CANNOT_TELL, f"timing has no counts to stand beside: {times}")
        is_faster = ratio.low > 1
        if min(len(warm_s), len(control_s)) < FEW_SAMPLES:
            if 1 / comb(len(warm_s) + len(control_s), len(control_s)) > MOST_CHANCE:
                return cls(
                    CANNOT_TELL,
                    f"timing cannot tell: {len(warm_s)} times beside {len(control_s)} of the control are too few (--set "
                    f"num_requests, num_controls); {times}",
                )
            is_faster = max(warm_s) < min(control_s)
        if hits > 0:
            if is_faster:
                return cls(AGREES, f"timing agrees with the counts: hits reported, {times}")
            return cls(
                CANNOT_TELL,
                f"hits reported, but no faster than the control ({times}): prompts of this length cost little to compute here, "
                "or what is reported is not reused",
            )
        if is_faster and ratio.low >= FALL:
            return cls(
                DISAGREES,
                f"timing contradicts the counts: 0 hits reported, yet {times}. The counter may not be wired on this path: "
                "ask the other witness, and labcli probe",
            )
        if is_faster:
            return cls(CANNOT_TELL, f"0 hits reported, and a little sooner: {times}; too little for reuse, timing cannot tell")
        return cls(AGREES, f"timing agrees with the counts: 0 hits reported, {times}")
