"""Outcome: the sentence that says whether a lab's predictions were met, short however many were not."""

from __future__ import annotations

from typing import Iterable

from labs.protocol import Measurement

NUM_NAMED = 3  # missed predictions that are named; the tables mark all of them


def outcome_line(measurements: Iterable[Measurement], met: str = "Every count equals its prediction.") -> str:
    """`met` if every prediction was; else the first that were not, how many more, and a warning for what stands behind."""
    missed = [", ".join(part for part in (one.group, one.row, one.name) if part) for one in measurements if one.agrees is False]
    if not missed:
        return met
    more = f", and {len(missed) - NUM_NAMED} more" if len(missed) > NUM_NAMED else ""
    return f"NOT as predicted: {'; '.join(missed[:NUM_NAMED])}{more}. What follows are the laws, which this run did not confirm."
