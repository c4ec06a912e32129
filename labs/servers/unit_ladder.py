"""The unit of a cache that does not tell it: measured by repeats of growing length, and confirmed by the law.

    tokens   2  3  5  9  17   33 …        each sent twice, the second time to be found
    found    0  0  0  0  16   …           the first length that is found gives the unit: 16
    confirmed at 2·16 + 1 (32 found) and 4·16 (48 found: the last token is computed again)

Beside a speculative drafter each hit is one unit shorter, at every length: the other law then fits.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Callable, Sequence

from labs import theory
from labs.servers.prompt_form import PromptForm
from labs.targets.base import Completion

LONGEST = 4_097  # tokens of a repeat: units up to 4,096 are found
LONGEST_UNREPORTED = 1_025  # as long as no reply has said anything of cached tokens


@dataclass(frozen=True)
class MeasuredUnit:
    """What the ladder found; unit None: nothing, and why is told by the rest."""

    unit: int | None
    has_drafter: bool
    observed: tuple[tuple[int, int, int], ...]  # (tokens that match, tokens of the prompt, tokens found) of each repeat
    is_reported: bool  # whether any reply or counter told cached tokens


def measure_unit(
    complete: Callable[[Sequence[int]], Completion], form: PromptForm, max_model_len: int | None, may_draft: bool = True
) -> MeasuredUnit:
    """Send the ladder.

    complete   sends a prompt of the form's ids, one token to generate
    may_draft  False: the server tells that it has no drafter, so that hits one unit short are a fault and no law's
    """
    rng, front = random.Random(), form.num_front
    longest = min(LONGEST, (max_model_len or LONGEST + 1) - 1)
    observed: list[tuple[int, int, int]] = []
    is_reported = False

    def repeat(total: int) -> int:
        """Tokens found by the repeat of a prompt that the server counts as so many."""
        nonlocal is_reported
        prompt = form.own_prompt(max(2, total - front), rng)
        found = [complete(prompt).num_cached_tokens for _ in range(2)]
        is_reported = is_reported or any(one is not None for one in found)
        observed.append((len(prompt) + front, len(prompt) + front, found[1] or 0))
        return found[1] or 0

    total, hits = 2, 0
    while not hits and total <= (longest if is_reported else min(longest, LONGEST_UNREPORTED)):
        if total > front:
            hits = repeat(total)
        total = 2 * (total - 1) + 1
    if not hits:
        return MeasuredUnit(None, False, tuple(observed), is_reported)
    for total in (2 * hits + 1, 4 * hits):
        if front < total <= longest:
            repeat(total)
    for law, has_drafter in ((theory.reuse, False), (theory.drafter_reuse, True))[: 1 + may_draft]:
        fitting = theory.fitting_units(observed, observed[-1][0], law)
        if len(fitting) == 1:
            return MeasuredUnit(fitting[0], has_drafter, tuple(observed), is_reported)
    return MeasuredUnit(None, False, tuple(observed), is_reported)
