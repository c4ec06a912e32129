"""Laws of what a neighbour can learn."""

from __future__ import annotations

import math

from labs.laws.law import check, law


@law("1 if {right_work:.4g} < {control_work:.4g} else 1/2")
def guess_auc(right_work: float, control_work: float) -> float:
    """How well times tell a right guess from a control: 1 surely, 1/2 not at all, where time grows with work alone.

    The chance that the right guess is answered sooner, ties counted half. Work is in one unit for both: tokens to
    compute, or the cost model's seconds, which do not fall further once reading the weights takes longest.
    """
    return 1.0 if right_work < control_work else 0.5


@law("3·√(({num_guesses} + {num_controls} + 1)/(12·{num_guesses}·{num_controls}))")
def chance_auc_spread(num_guesses: int, num_controls: int) -> float:
    """How far from 1/2 an AUC of so many times each may lie by chance: three standard deviations.

    The variance of the rank-sum statistic when both sides come from one distribution (Mann and Whitney 1947).
    """
    check(num_guesses >= 1, "num_guesses", num_guesses, "a whole number from 1")
    check(num_controls >= 1, "num_controls", num_controls, "a whole number from 1")
    return 3 * math.sqrt((num_guesses + num_controls + 1) / (12 * num_guesses * num_controls))


@law("{shares_cache}·{num_secret}·⌊1/{unit}⌋")
def tokens_guessed_singly(num_secret: int, unit: int, shares_cache: int = 1) -> int:
    """Secret tokens behind a known prefix of whole units that are found by guessing one token after the other.

    All with pages of one token, since each right token is one more hit; none with larger ones, which answer only to a
    whole block that is right; none without a shared cache (0).
    """
    check(unit >= 1, "unit", unit, "a whole number from 1")
    return shares_cache * num_secret * (1 // unit)


@law("{num_candidates}·min({num_found} + 1, {num_secret})")
def single_token_guesses(num_candidates: int, num_found: int, num_secret: int) -> int:
    """Requests for that: all A candidates at each token found, and at the one where nothing answers."""
    return num_candidates * min(num_found + 1, num_secret)


@law("⌈{num_tokens}/{unit}⌉·{num_candidates}^{unit}")
def guesses_to_extend(num_candidates: int, num_tokens: int, unit: int) -> int:
    """Guesses that surely extend a known prefix by n tokens, of A candidates each: ⌈n/unit⌉·A^unit."""
    return -(-num_tokens // unit) * num_candidates**unit
