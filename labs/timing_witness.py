"""Timing witness: whether times to the first token say the same as the counts, on a server whose counts are not ours.

    hits reported, sooner than the control        agrees
    hits reported, no sooner                      cannot tell: at this length little depends on prefill, or nothing was reused
    no hits reported, sooner by half or more      disagrees: the counter may not be wired on this path
    no hits reported, no sooner                   agrees

The control is an unrelated prompt of the same length, sent when all is warmed up: without one, a first call's start-up looks
like a cache. A clock is a third witness beside replies and counters and proves nothing alone, so nothing here is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from labs.measure import ratio_of_medians

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
        is_faster, fell = ratio.low > 1, ratio.low >= FALL
        if hits is None:
            return cls(CANNOT_TELL, f"timing has no counts to stand beside: {times}")
        if hits > 0:
            if is_faster:
                return cls(AGREES, f"timing agrees with the counts: hits reported, {times}")
            return cls(
                CANNOT_TELL,
                f"hits reported, but no faster than the control ({times}): prompts of this length cost little to compute here, "
                "or what is reported is not reused",
            )
        if fell:
            return cls(
                DISAGREES,
                f"timing contradicts the counts: 0 hits reported, yet {times}. The counter may not be wired on this path: "
                "ask the other witness, and labcli probe",
            )
        return cls(AGREES, f"timing agrees with the counts: 0 hits reported, {times}")
