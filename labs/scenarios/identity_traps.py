"""Traps: requests that a wrong key confuses, each with what the right and the wrong engine must find.

The last request of a trap finds, under the wrong key, K/V of those before it that are not its own. How many tokens of them
follows from the rule that was broken, so it is predicted as exactly as a rightful hit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator

from labs import theory
from labs.caches import Cache
from labs.output_check import FLOAT32_NEAR_TIE
from labs.protocol import Measurement, Prediction
from labs.scenarios.identity_series import IdentityRequest, may_reuse
from labs.targets.base import Completion


@dataclass(frozen=True)
class Trap:
    """Requests that a wrong key confuses: the last one finds K/V of those before it that are not its own."""

    row: str
    engine_fields: dict[str, Any]  # what makes the key wrong
    before: tuple[IdentityRequest, ...]
    last: IdentityRequest
    ignored: str | None = None  # the part of the identity that the wrong key lacks
    changes_answer: bool = True

    def wrong_hits(self, unit: int) -> Prediction:
        """Tokens that the last request finds under the wrong key."""
        if self.ignored is not None:
            return may_reuse(self.last, self.before, unit, self.ignored)
        # Blocks by their own tokens, wherever they stand, the last and incomplete one apart: no past tells them apart.
        known = {block for request in self.before for block in _blocks(request, unit)}
        own = list(_blocks(self.last, unit))
        num_found = next((number for number, block in enumerate(own) if block not in known), len(own))
        return Prediction(*theory.predict(theory.reuse, num_found * unit, len(self.last.token_ids), unit))


@dataclass(frozen=True)
class ShiftedImage(Trap):
    """One image at two places of the same blocks; nothing else differs."""

    def wrong_hits(self, unit: int) -> Prediction:
        """As above: up to the first block that holds other tokens or images, wherever in it they stand."""
        mine, others = _pictured_blocks(self.last, unit), _pictured_blocks(self.before[0], unit)
        num_tokens = theory.common_prefix(mine, others) * unit
        return Prediction(*theory.predict(theory.reuse, num_tokens, len(self.last.token_ids), unit))


@dataclass(frozen=True)
class Collision(Trap):
    """Two prompts whose first blocks have one name by accident; behind them they are equal."""

    num_tried: int = 0

    def wrong_hits(self, unit: int) -> Prediction:
        # The first names are equal, and so all later ones: each is made of the one before and of equal tokens.
        return Prediction(*theory.predict(theory.repeat, len(self.last.token_ids), unit))


@dataclass(frozen=True)
class TrapResult:
    """What the right and the wrong engine made of a trap's last request."""

    trap: Trap
    right_law: Prediction  # tokens that it may find under the right key
    wrong_law: Prediction  # and must find under the wrong one
    right: Completion
    wrong: Completion
    answer: Completion | None  # without a cache; None where no K/V are kept, and answers show nothing

    @property
    def undue(self) -> int:
        """Tokens of K/V that were not its own."""
        return (self.wrong.num_cached_tokens or 0) - (self.right.num_cached_tokens or 0)

    def measurements(self, cache: Cache) -> list[Measurement]:
        """Hits under both keys, and how many tokens of the answer each changes."""
        trap, right_law, wrong_law, answer = self.trap, self.right_law, self.wrong_law, self.answer
        undue_law = Prediction(wrong_law.value - right_law.value, f"{wrong_law.value:,} − {right_law.value:,}")
        counts = [
            ("right", self.right.num_cached_tokens, right_law),
            ("wrong", self.wrong.num_cached_tokens, wrong_law),
            ("undue", self.undue, undue_law),
        ]
        if answer is not None:
            same = Prediction(*theory.predict(theory.differing_outputs, "the cache"))
            counts.append(("changed", num_changed(answer, self.right), same))
            counts.append(("changed, wrong", num_changed(answer, self.wrong), self._changed_law(len(answer.output_token_ids))))
        group = f"{cache.title}: the wrong key beside the right one"
        return [
            Measurement(name, "tokens", (value,), group, trap.row, law, key=name == "wrong")
            for name, value, law in counts
        ]  # fmt: skip

    def _changed_law(self, num_tokens: int) -> Prediction:
        """Tokens of the answer that differ under the wrong key: none where K/V are equal (a salt), else at least one."""
        num_wrong = int(self.wrong_law.value - self.right_law.value) if self.trap.changes_answer else 0
        least, text = theory.predict(theory.fewest_wrong_outputs, num_wrong, num_tokens)
        return Prediction(least, text, least, num_tokens) if least else Prediction(least, text)


def num_changed(answer: Completion, other: Completion) -> int:
    """Output tokens that differ, unless the first that does is a near tie."""
    differing = [at for at, pair in enumerate(zip(answer.output_token_ids, other.output_token_ids)) if pair[0] != pair[1]]
    if differing and answer.top_logprob_gaps[differing[0]] < FLOAT32_NEAR_TIE:
        return 0
    return len(differing)


def _blocks(request: IdentityRequest, unit: int) -> Iterator[tuple[int, ...]]:
    for first in range(0, len(request.token_ids) - unit + 1, unit):
        yield request.token_ids[first : first + unit]


def _pictured_blocks(request: IdentityRequest, unit: int) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Each whole block's tokens, and the images that overlap it."""
    items = request.identity.mm_items
    return [
        (block, tuple(item.identifier for item in items if item.offset < first + unit and first < item.offset + item.length))
        for first, block in zip(range(0, len(request.token_ids), unit), _blocks(request, unit))
    ]
