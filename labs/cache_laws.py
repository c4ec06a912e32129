"""CacheLaws: the laws of one cache, as its unit, a drafter beside it, and what its server puts in front of prompts make them.

A lab names a law of labs/theory.py and counts its own tokens; what is the cache's doing is added here:

    unit        every law's last argument
    drafter     a match gives up its last unit: each law of a match has a counterpart beside a drafter
    front       F tokens (a BOS, say) that a server puts before every prompt. They are common to all, so that a match of m
                tokens is one of F + m, and a prompt of L tokens one of F + L
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from labs import theory
from labs.protocol import Prediction
from labs.targets.base import ServedCache

_BESIDE_DRAFTER = {
    theory.reuse: theory.drafter_reuse,
    theory.repeat: theory.drafter_hits,
    theory.shared_prefix_hits: theory.drafter_shared_prefix_hits,
}
_FROM_THE_FRONT = ("match_tokens", "shared_tokens", "prompt_tokens")  # parameters that count from a prompt's first token


@dataclass(frozen=True)
class CacheLaws:
    """Predictions for one cache."""

    unit: int
    has_drafter: bool = False
    num_front: int = 0

    @classmethod
    def of(cls, served: ServedCache | None) -> CacheLaws | None:
        """Of the one cache behind a server; None where a lab chooses its caches."""
        return None if served is None else cls(served.unit_size, served.has_drafter, served.num_front)

    @property
    def is_plain(self) -> bool:
        """Whether the laws of whole series hold: no drafter, and a front that fills no unit."""
        return not self.has_drafter and self.num_front < self.unit

    @property
    def num_dropped(self) -> int:
        """Units of a match that are computed again all the same."""
        return int(self.has_drafter)

    def predict(self, law: Callable[..., Any], *args: Any) -> Prediction:
        """A law's value for this cache; `args` are all but its unit, in tokens of the lab's own prompts."""
        named = dict(zip((name for name in inspect.signature(law).parameters if name != "unit"), args, strict=True))
        for name in _FROM_THE_FRONT:
            if name in named:
                named[name] += self.num_front
        if "unit" in inspect.signature(law).parameters:
            named["unit"] = self.unit
        if self.has_drafter:
            law = _BESIDE_DRAFTER.get(law, law)
        return Prediction(*theory.predict(law, **named))

    def predict_new(self, prompt_tokens: int) -> Prediction:
        """Of a prompt whose name space is new, as a salt makes it: not even the front is there."""
        return Prediction(*theory.predict(theory.reuse, 0, prompt_tokens + self.num_front, self.unit))

    def total(self, each: Sequence[Prediction], law: Callable[..., Any], *args: Any) -> Prediction:
        """What requests find together: a series' own law, and the sum of `each` where that law does not reach."""
        if self.is_plain:
            return self.predict(law, *args)
        return Prediction(sum(one.value for one in each), "the sum over the requests")

    def front_hits(self, prompt_tokens: int) -> int:
        """Tokens that every prompt finds in a cache that served any: the front's whole units."""
        return int(self.predict(theory.reuse, 0, prompt_tokens).value)
