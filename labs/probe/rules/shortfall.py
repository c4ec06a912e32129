"""The last question: did repeats find clearly less than they can, and did no rule say why? Then the report must not end as if
nothing were wrong."""

from __future__ import annotations

from typing import Iterable

from labs.probe.explanation import Explanation
from labs.probe.observation import Observations
from labs.probe.rules.words import count, crowd, numbers
from labs.probe.sent import BURST, LATE, Sent
from labs.probe.verdict import CANNOT_TELL, EXPECTED, WEAK, Verdict

SHORTFALL = "repeats"  # the verdict's name
CLEARLY = 0.8  # of what the law gives: less is no matter of one miss
MIN_SHORT, MANY_SHORT = 2, 0.2  # repeats that fell short, and their share: long prompts that are found outweigh many short ones
MAX_SHOWN = 4  # lengths quoted as evidence
# Rules that say why repeats miss, as a fault, or where they name what it may be.
FAULTS = frozenset(("caching", "identity", "replicas", "front", "long", "strangers", "impossible", "witnesses", "copies"))
OPEN = frozenset(("caching", "identity", "replicas", "long"))


def repeats(seen: Observations, verdicts: Iterable[Verdict]) -> Verdict | None:
    """Told where nothing among `verdicts` explains it."""
    if any(_says_why(seen, one) for one in verdicts):
        return None
    laws = _laws(seen)
    known = [(one, min(law.hits(one.length, one.length) for law in laws)) for one in seen.prompt_repeats if one.length and laws]
    found, possible = sum(min(one.cached, most) for one, most in known), sum(most for _, most in known)
    short = [(one, most) for one, most in known if one.cached < most]
    if len(short) < MIN_SHORT or (found >= CLEARLY * possible and len(short) < MANY_SHORT * len(known)):
        return None
    why = ": others may have pushed prompts out" if seen.is_crowded else ", and nothing that was seen says why"
    finding = (
        f"Repeats find less than they can, {found:,} of {possible:,} tokens ({count(len(short), 'repeat')} of {len(known)} fell "
        f"short){why}."
    )
    next_step = "Ask again at a quiet moment, then the server itself without a gateway in front: what differs between them is why."
    return Verdict(SHORTFALL, CANNOT_TELL, WEAK, finding, (*_lines(short), *(crowd(seen) if seen.is_crowded else ())), next_step)


def _says_why(seen: Observations, verdict: Verdict) -> bool:
    is_late = verdict.name == "replicas" and verdict.state == EXPECTED and bool(seen.of(LATE))
    is_answered_in_front = verdict.name == "kept"
    is_open = verdict.name in OPEN and verdict.state == CANNOT_TELL
    return is_late or is_answered_in_front or is_open or (verdict.name in FAULTS and verdict.is_fault)


def _laws(seen: Observations) -> tuple[Explanation, ...]:
    """What repeats are compared with: as measured; where that is open all that fit, of which the least counts; else as
    announced."""
    facts = seen.facts
    if seen.explanation is not None:
        return (seen.explanation,)
    announced = () if facts.unit_size is None else (Explanation(facts.unit_size, bool(facts.has_drafter)),)
    return seen.explanations or announced


def _lines(short: list[tuple[Sent, int]]) -> tuple[str, ...]:
    """Which fell short, by purpose and length."""
    groups: dict[tuple[bool, int | None, int], list[Sent]] = {}
    for one, most in short:
        groups.setdefault((one.purpose == BURST, one.length, most), []).append(one)
    shown = [
        f"{count(len(group), 'repeat')} of {length or 0:,} tokens{', each on a new connection' if is_burst else ''}: "
        f"{numbers(one.cached for one in group)} cached, {most:,} possible"
        for (is_burst, length, most), group in groups.items()
    ]
    return tuple(shown[:MAX_SHOWN])
