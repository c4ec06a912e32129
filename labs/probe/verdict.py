"""Verdict: what the probe says of one thing, how sure it is, on what evidence, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable

FAULT = "fault"  # something to repair
EXPECTED = "expected"  # looks wrong, is not
CANNOT_TELL = "cannot tell"
FINE = "fine"
STATES = (FAULT, EXPECTED, CANNOT_TELL, FINE)  # worst first

CERTAIN = "certain"  # the server's own configuration or reply says it
STRONG = "strong"  # measured, repeated, and no other explanation among those known
WEAK = "weak"  # one explanation of several; timing alone never gives more
CONFIDENCES = (CERTAIN, STRONG, WEAK)


@dataclass(frozen=True)
class Verdict:
    """One finding. Evidence is numbers; a prompt, salt, key or token id never stands in it."""

    name: str  # the rule's, stable for programs
    state: str
    confidence: str
    finding: str  # one sentence
    evidence: tuple[str, ...]
    next_step: str = ""  # empty where nothing is to be done

    @property
    def is_fault(self) -> bool:
        return self.state == FAULT


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Faults before what only looks like one, and of equals the surest first."""
    return sorted(verdicts, key=lambda one: (STATES.index(one.state), CONFIDENCES.index(one.confidence)))
