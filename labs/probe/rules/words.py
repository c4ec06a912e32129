"""Words: evidence as numbers, the same way in every rule."""

from __future__ import annotations

from typing import Iterable, Sequence

from labs.probe.observation import Observations
from labs.probe.sent import Sent

MAX_LISTED = 8


def count(number: int, noun: str) -> str:
    """ "1 repeat", "12 repeats"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def numbers(values: Iterable[int | None]) -> str:
    """ "0, 16, unknown"; long lists are cut."""
    shown = ["unknown" if value is None else f"{value:,}" for value in values]
    return ", ".join(shown[:MAX_LISTED]) + (f", … ({len(shown)})" if len(shown) > MAX_LISTED else "")


def cached_by_length(sent: Sequence[Sent]) -> tuple[str, ...]:
    """One line a length: "repeats of 129 tokens: 0, 0, 0 cached"."""
    groups: dict[int | None, list[Sent]] = {}
    for one in sent:
        groups.setdefault(one.length, []).append(one)
    lines = []
    for length, group in sorted(groups.items(), key=lambda pair: pair[0] or 0):
        what = "tokens" if length is not None else "unknown length"
        shown = f"{length:,} {what}" if length is not None else what
        lines.append(f"{'repeat' if len(group) == 1 else 'repeats'} of {shown}: {numbers(one.cached for one in group)} cached")
    return tuple(lines)


def crowd(seen: Observations) -> tuple[str, ...]:
    """What others looked up, and the pool that they may fill, as far as either is known."""
    others, pool = seen.foreign_queries, seen.facts.pool_tokens
    lines = (f"looked up by others meanwhile: {others:,} tokens",) if others else ()
    return (*lines, f"announced pool: {pool:,} tokens") if pool else lines


def control(sent: Sequence[Sent]) -> str:
    """ "never sent before: 0, 0 cached"."""
    return f"prompts never sent before: {numbers(one.cached for one in sent)} cached"
