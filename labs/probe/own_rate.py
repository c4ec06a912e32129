"""OwnRate: what this probe's own exact repeats found, against the law; the one rate that nobody else's traffic is in."""

from __future__ import annotations

from dataclasses import dataclass

from labs.probe.explanation import Explanation
from labs.probe.observation import Observations
from labs.theory import hit_rate


@dataclass(frozen=True)
class OwnRate:
    """Tokens of the repeats whose hits are known."""

    num_repeats: int
    num_tokens: int  # looked up
    num_cached: int
    expected: int | None  # by the law of the unit; None where no unit is known
    unit: int | None
    has_drafter: bool

    @property
    def value(self) -> float | None:
        return hit_rate(self.num_cached, self.num_tokens) if self.num_tokens else None

    @property
    def law(self) -> str:
        """The formula in words; empty without a unit."""
        if self.unit is None:
            return ""
        return (
            f"{self.unit:,}·max(0, ⌊(L − 1)/{self.unit:,}⌋ − 1)" if self.has_drafter else f"{self.unit:,}·⌊(L − 1)/{self.unit:,}⌋"
        )

    @classmethod
    def of(cls, seen: Observations) -> OwnRate:
        """Over all repeats of which both length and hits are known, but those that the probe's own requests may push out."""
        repeats = [(one.length, one.cached) for one in seen.prompt_repeats if one.length is not None]
        explanation = seen.explanation
        if explanation is None and seen.facts.unit_size is not None:
            explanation = Explanation(seen.facts.unit_size, bool(seen.facts.has_drafter))
        expected = None if explanation is None else sum(explanation.hits(length, length) for length, _ in repeats)
        return cls(
            len(repeats),
            sum(length for length, _ in repeats),
            sum(cached for _, cached in repeats),
            expected,
            None if explanation is None else explanation.unit,
            explanation is not None and explanation.has_drafter,
        )
