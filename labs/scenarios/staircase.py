"""Staircase: every length over two blocks, as beginnings of one cached prompt, and the rule that their hits follow.

    the prompt       ├──── block ────┼──── block ────┼─┤    sent once: it leaves both blocks in the cache
    its beginnings   ├─┤ ├──┤ ├───┤ …                       then from 2 tokens to all of them, each sent once

A beginning finds what its own repeat would find, because everything it consists of is there. What it computes again tells two
rules apart (B = block or page size): of beginnings longer than a block the last-token rule computes between 1 and B tokens
again, a drafter's tax between B + 1 and 2B, at every such length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from labs import theory
from labs.caches import Cache
from labs.counted_request import send_counted
from labs.protocol import LabSession, Measurement, Prediction
from labs.targets.base import Target
from labs.witnesses import Doubt, disagreements

NUM_THINNED = 32  # lengths a block, when it is larger


@dataclass(frozen=True)
class Staircase:
    """How long the prompt and its beginnings are."""

    block_size: int  # that the staircase spans twice; of no matter to the cache that it is sent to

    @property
    def prompt_tokens(self) -> int:
        return 2 * self.block_size + 1

    @property
    def lengths(self) -> list[int]:
        """Every length from 2 to the prompt's; of large blocks some, with both steps among them."""
        most, step = self.prompt_tokens, max(1, self.block_size // NUM_THINNED)
        around_steps = {self.block_size, self.block_size + 1, most - 1, most} - {1}
        return sorted({*range(2, most + 1, step), *around_steps})

    @property
    def num_tokens(self) -> int:
        """Of all that is sent."""
        return self.prompt_tokens + sum(self.lengths)


@dataclass(frozen=True)
class StaircaseResult:
    """Tokens that each beginning found."""

    cache: Cache
    hits: dict[int, int]  # by length; no entry where a server does not tell
    doubts: tuple[Doubt, ...]  # of a server whose witnesses disagree

    def measurements(self, group: str) -> list[Measurement]:
        """How many lengths found what their law says, and the sum of what was found."""
        if not self.hits:
            return []
        laws = {length: self.cache.laws.predict(theory.repeat, length) for length in self.hits}
        as_predicted = sum(hits == laws[length].value for length, hits in self.hits.items())
        lengths = Prediction(len(laws), f"each of {len(laws)} lengths finds what its law says")
        total = Prediction(sum(law.value for law in laws.values()), f"the sum over L = {min(laws)}…{max(laws)}")
        return [
            Measurement("lengths", "prompts", (as_predicted,), group, self.cache.title, lengths),
            Measurement("hits", "tokens", (sum(self.hits.values()),), group, self.cache.title, total),
        ]

    @property
    def rule(self) -> str:
        """Which rule explains what was computed again, and whether it is this cache's; empty where no block was exceeded."""
        unit, front, what = self.cache.unit, self.cache.num_front, "block" if self.cache.is_hash else "page"
        again = [length + front - hits for length, hits in self.hits.items() if length + front > unit]
        if not again:
            return ""
        span, last_token, drafter = (min(again), max(again)), (1, unit), (unit + 1, 2 * unit)
        reading = {
            last_token: "the last-token rule and nothing else",
            drafter: f"the last-token rule, and a drafter's {what} more at every such length",
        }.get(span, "NOT what the last-token rule or a drafter would do")
        if span == (last_token if self.cache.has_drafter else drafter):
            reading += ", NOT what this cache should do"
        told = f"{span[0]}" if span[0] == span[1] else f"{span[0]} to {span[1]}"
        return f"prompts longer than a {what} compute {told} of their tokens again: {reading}"


def run_staircase(
    session: LabSession, target: Target, cache: Cache, staircase: Staircase, token_ids: Sequence[int]
) -> StaircaseResult:
    """Send the first `prompt_tokens` of these ids, then their beginnings."""
    target.complete(token_ids[: staircase.prompt_tokens])
    label = f"{cache.title}: staircase"
    steps = [send_counted(session, target, token_ids[:length], label) for length in staircase.lengths]
    found = {length: step.num_cached_tokens for length, step in zip(staircase.lengths, steps)}
    hits = {length: tokens for length, tokens in found.items() if tokens is not None}
    return StaircaseResult(cache, hits, tuple(disagreements(label, steps)))
