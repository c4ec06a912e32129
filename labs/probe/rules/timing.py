"""What times tell: repeats against prompts of the same length that nobody sent before, in random order.

A first request is slow for other reasons (warm-up), so no time is compared with the first one's. Times alone are a weak
witness at most: a busy server has slow and fast moments of its own.
"""

from __future__ import annotations

import itertools
import math
import statistics

from labs.probe.budget import TIMED_SHARE
from labs.probe.observation import Observations
from labs.probe.rules.words import count
from labs.probe.sent import TIMING
from labs.probe.verdict import CANNOT_TELL, FINE, WEAK, Verdict
from labs.theory import chance_auc_spread

CLEARLY_SOONER = 0.75  # of a new prompt's time: less is seen in one run and not in the next


def timing(seen: Observations) -> Verdict | None:
    """Whether repeats are answered sooner."""
    repeats, controls = _sides(seen)
    if not repeats or not controls:
        return None
    evidence = (times_line(seen),)
    if tells_reuse(seen):
        return Verdict("timing", FINE, WEAK, "Repeats are answered sooner than new prompts of the same length.", evidence)
    if not _is_enough(seen):
        finding = "Times tell no repeats from new prompts: too few were taken."
        return Verdict("timing", CANNOT_TELL, WEAK, finding, evidence, _more_time(seen))
    finding = "Times tell no repeats from new prompts: other work takes most of the time, or nothing is reused."
    return Verdict("timing", CANNOT_TELL, WEAK, finding, evidence)


def _more_time(seen: Observations) -> str:
    """How many more are needed, and about how long the probe would take with them."""
    repeats, controls = _sides(seen)
    enough = next(number for number in itertools.count(1) if chance_auc_spread(number, number) < 0.5)
    missing = [max(0, enough - len(side)) for side in (repeats, controls)]
    more_s = sum(number * statistics.median(side) for number, side in zip(missing, (repeats, controls)))
    seconds = math.ceil((seen.seconds + more_s) / TIMED_SHARE / 10) * 10
    return (
        f"{count(enough, 'repeat')} and as many new prompts are enough, {count(sum(missing), 'request')} more: about "
        f"--max-seconds {seconds}."
    )


def tells_reuse(seen: Observations) -> bool:
    """Whether repeats are sooner more often than chance allows, and clearly so."""
    repeats, controls = _sides(seen)
    if not _is_enough(seen) or _auc(repeats, controls) <= 0.5 + chance_auc_spread(len(repeats), len(controls)):
        return False
    return statistics.median(repeats) <= CLEARLY_SOONER * statistics.median(controls)


def times_line(seen: Observations) -> str:
    """Both sides in one line."""
    repeats, controls = _sides(seen)
    if not repeats or not controls:
        return "no times were taken"
    length = max((one.length or 0 for one in seen.of(TIMING)), default=0)
    shown = [f"{len(side)} at {statistics.median(side) * 1e3:,.1f} ms" for side in (repeats, controls)]
    return (
        f"{length:,} tokens: repeats {shown[0]}, never sent before {shown[1]} (medians); sooner in "
        f"{_auc(repeats, controls):.0%} of pairs"
    )


def _sides(seen: Observations) -> tuple[list[float], list[float]]:
    """Seconds of repeats, and of new prompts but for the one that is repeated: it came first."""
    sent = seen.of(TIMING)[1:]
    return [one.seconds for one in sent if one.turn], [one.seconds for one in sent if not one.turn]


def _is_enough(seen: Observations) -> bool:
    """With so few that even a perfect order may be chance, nothing is told."""
    repeats, controls = _sides(seen)
    return bool(repeats and controls) and chance_auc_spread(len(repeats), len(controls)) < 0.5


def _auc(repeats: list[float], controls: list[float]) -> float:
    """The share of pairs in which the repeat is sooner, ties counted half."""
    won = sum((one < other) + (one == other) / 2 for one in repeats for other in controls)
    return won / (len(repeats) * len(controls))
