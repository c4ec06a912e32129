"""Outcome: the sentence that says whether a lab's predictions were met, short however many were not.

A server may tell nothing of what was found. Then no count of hits is judged, and predictions that were met (an output that is
the same cold and warm, say) show nothing of the cache: it is told so, never "met".
"""

from __future__ import annotations

from typing import Iterable, Sequence

from labs.protocol import Measurement

NUM_NAMED = 3  # missed predictions that are named; the tables mark all of them
HIT_COUNTS = ("hits", "total", "counted", "first", "later", "turn")  # first words of the quantities that count tokens found
UNCOUNTED = (
    "nothing could be counted here: the replies do not tell what they found, and the server's counters do not tell it of these "
    "requests alone"
)


def counts_hits(measurements: Iterable[Measurement]) -> bool:
    """Whether any count of tokens found was judged."""
    return any(one.predicted is not None and one.unit == "tokens" and one.name.split()[0] in HIT_COUNTS for one in measurements)


def hits_outcome(measurements: Sequence[Measurement], met: str = "Every count equals its prediction.") -> str:
    """`outcome_line` of a lab about hits: where none was judged, nothing is said to be met."""
    return outcome_line(measurements, met if counts_hits(measurements) else f"{UNCOUNTED[0].upper()}{UNCOUNTED[1:]}.")


def outcome_line(measurements: Iterable[Measurement], met: str = "Every count equals its prediction.") -> str:
    """`met` if every prediction was; else the first that were not, how many more, and a warning for what stands behind."""
    missed = [", ".join(part for part in (one.group, one.row, one.name) if part) for one in measurements if one.agrees is False]
    if not missed:
        return met
    more = f", and {len(missed) - NUM_NAMED} more" if len(missed) > NUM_NAMED else ""
    return f"NOT as predicted: {'; '.join(missed[:NUM_NAMED])}{more}. What follows are the laws, which this run did not confirm."
