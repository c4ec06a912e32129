"""Explanation: a match unit, and whether a drafter runs along; which of them explain what repeats found.

    repeat of L tokens, unit U:        U·⌊(L − 1)/U⌋
    the same beside a drafter:         max(0, ⌊(L − 1)/U⌋ − 1)·U

One hit leaves several: 3,168 of 4,097 tokens are 3 units of 1,056, 2 of 1,584, or 528s beside a drafter. So the probe asks
the length about which those that are left disagree most, until one is left.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Callable, Sequence

from labs.theory import drafter_reuse, fitting_units, reuse


@dataclass(frozen=True)
class Explanation:
    """A unit in tokens, and whether a drafter takes one unit of each hit."""

    unit: int
    has_drafter: bool = False

    @property
    def law(self) -> Callable[[int, int, int], int]:
        return drafter_reuse if self.has_drafter else reuse

    @property
    def shortest_hit(self) -> int:
        """Tokens of the shortest prompt whose repeat finds anything."""
        return (2 if self.has_drafter else 1) * self.unit + 1

    def hits(self, match: int, length: int) -> int:
        """Tokens that a prompt of this length finds when its first `match` tokens are there."""
        return self.law(match, length, self.unit)


@lru_cache(maxsize=8)  # every rule asks about the same repeats
def explain(repeats: tuple[tuple[int, int], ...]) -> tuple[Explanation, ...]:
    """What gives, for each (length, tokens found) of an exact repeat, the tokens found; empty when nothing fits.

    A repeat that found nothing fits every unit from its length on, so without a hit there is nothing to explain.
    """
    # The largest hits first: they rule out nearly all units at once.
    observed = sorted({(length, length, found) for length, found in repeats}, key=lambda one: -one[2])
    if not observed or not observed[0][2]:
        return ()
    most = max(length for length, _, _ in observed)
    return tuple(
        Explanation(unit, has_drafter)
        for has_drafter in (False, True)
        for unit in fitting_units(observed, most, Explanation(1, has_drafter).law)
    )


def telling_length(left: Sequence[Explanation], most: int) -> int | None:
    """The length whose repeat tells most of these apart, up to `most` tokens; of equals the shortest. None: no length does."""
    lengths = sorted({blocks * one.unit + more for one in left for blocks in (1, 2, 3) for more in (0, 1)} - {0, 1})
    best, fewest_left = None, len(left)
    for length in lengths:
        if length > most:
            break
        largest_group = max(Counter(one.hits(length, length) for one in left).values())
        if largest_group < fewest_left:
            best, fewest_left = length, largest_group
    return best
