"""Parting: where two prompts part, and where they meet again.

    A   0 ─────────── p ── a ids ── ├── equal again ──┤ …
    B   0 ─────────── p ── b ids ── ├── equal again ──┤ …

`a` and `b` are what stands between: (1, 1) is one id replaced, (0, k) is k ids of B's own in front of what A has too,
(k, 0) the other way round. Equal runs are told from chance by their length. What agrees again cannot be reused where
it stands, since a match starts at position 0; it could be, if what stands between came behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from labs import theory

MIN_RUN = 8  # ids in a row: fewer agree by chance (punctuation, a template's role line)
_SEARCHED = 2**17  # ids behind the first difference in which the place is looked for


@dataclass(frozen=True)
class Parting:
    """Positions and counts, in tokens."""

    common: int  # ids equal from the front
    first_difference: int | None  # position; None when one prompt is a prefix of the other
    replaced: tuple[int, int]  # ids of A and of B from there to where they agree again, or to their ends
    equal_after: int  # ids in a row that agree again; 0 when nothing does


def part(first: Sequence[int], second: Sequence[int]) -> Parting:
    """Compare two prompts by their token ids; the place that skips the fewest ids is where they meet again."""
    common = theory.common_prefix(first, second)
    if common == min(len(first), len(second)):
        return Parting(common, None, (0, 0), 0)
    mine, theirs = first[common : common + _SEARCHED], second[common : common + _SEARCHED]
    found = _meeting(mine, theirs)
    if found is None:
        return Parting(common, common, (len(first) - common, len(second) - common), 0)
    again = theory.common_prefix(first[common + found[0] :], second[common + found[1] :])
    return Parting(common, common, found, again)


def _meeting(mine: Sequence[int], theirs: Sequence[int]) -> tuple[int, int] | None:
    """Offsets in both from which MIN_RUN ids are equal, with the smallest sum."""
    earliest: dict[tuple[int, ...], int] = {}
    for offset in range(len(mine) - MIN_RUN, -1, -1):
        earliest[tuple(mine[offset : offset + MIN_RUN])] = offset
    best: tuple[int, int] | None = None
    for offset in range(len(theirs) - MIN_RUN + 1):
        if best is not None and offset >= sum(best):
            break
        known = earliest.get(tuple(theirs[offset : offset + MIN_RUN]))
        if known is not None and (best is None or known + offset < sum(best)):
            best = (known, offset)
    return best
