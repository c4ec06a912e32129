"""A cache of whole replies in front of the engine: it answers repeats itself, and the engine never hears of them.

Such a repeat tells nothing of the prefix cache. It reports what the first request found (nothing), and nothing is looked up
for it: not a prompt without an identity, but a prompt that nobody asked the engine about. Told by

    names       a repeat carries the very name of an earlier reply; each reply that an engine makes has its own
    counters    new prompts are looked up, their repeats are not
    fronts      repeats find nothing, yet their front under another tail is found
"""

from __future__ import annotations

from labs.probe.observation import Observations
from labs.probe.rules.words import numbers
from labs.probe.sent import BURST, CHAT, KEPT, LADDER, OWN, SHARED, STAIRCASE, TEXT, TIMING, Sent
from labs.probe.verdict import CERTAIN, EXPECTED, STRONG, WEAK, Verdict

EXACT = (LADDER, STAIRCASE, OWN, BURST, KEPT, TIMING, TEXT, CHAT)  # whose repeats are the same request, byte for byte
MIN_KEPT = 2  # repeats: one may be a retry's
MIN_UNFOUND = 6  # repeats, where only fronts tell
MOSTLY = 0.8  # of new prompts, that are counted as they should be


def kept_replies(seen: Observations) -> Verdict | None:
    """Whether replies come from a cache of whole replies."""
    sure, repeats, kept = are_kept(seen), _repeats(seen), _named_again(seen)
    if sure is None:
        return None
    unasked, fronts = _unasked(seen), [one.cached for one in _fronts(seen)]
    evidence = (f"repeats that carry an earlier reply's name: {len(kept)} of {len(repeats)}",) if kept else ()
    evidence += (f"repeats for which nothing was looked up, though new prompts are: {len(unasked)}",) if unasked else ()
    evidence += (f"repeats: {numbers(one.cached for one in repeats)} cached",)
    evidence += (f"a known front under another tail, which the engine must answer: {numbers(fronts)} cached",) if fronts else ()
    some = "Some repeats" if seen.hitting_repeats else "Repeats"
    finding = f"{some} are answered without the engine: a cache of whole replies stands in front, and what it knows is looked up nowhere."
    if sure == WEAK:
        finding = (
            "Repeats find nothing, yet their front under another tail is found: a cache of whole replies seems to answer repeats "
            "in the engine's place."
        )
    next_step = (
        "Judge the prefix cache by prompts that differ at their end, or ask the server itself; hit rates leave out what the front "
        "answers."
    )
    return Verdict("kept", EXPECTED, sure, finding, evidence, next_step)


def are_kept(seen: Observations) -> str | None:
    """How sure it is that replies are kept in front; None where nothing says so."""
    named, unasked = len(_named_again(seen)) >= MIN_KEPT, len(_unasked(seen)) >= MIN_KEPT
    if named or unasked:
        return CERTAIN if named and unasked else STRONG
    unfound = [one for one in _repeats(seen) if one.cached is not None]
    fronts = [one.cached for one in _fronts(seen)]
    if len(unfound) < MIN_UNFOUND or any(one.cached for one in unfound) or len(fronts) < MIN_KEPT:
        return None
    return WEAK if min(fronts) > seen.new_prompts.most_found else None


def _repeats(seen: Observations) -> list[Sent]:
    return [one for one in seen.of(*EXACT) if one.turn]


def _fronts(seen: Observations) -> list[Sent]:
    return [one for one in seen.of(SHARED) if one.matched is not None and one.cached is not None]


def _named_again(seen: Observations) -> list[Sent]:
    """Repeats whose reply is an earlier one by its name and its usage. Empty where new prompts' replies share a name too."""
    first = {one.prompt: one for one in seen.of(*EXACT) if not one.turn}
    names = [one.reply_id for one in first.values()]
    if None in names or len(set(names)) < len(names):
        return []
    return [
        one
        for one in _repeats(seen)
        if one.prompt in first
        and one.reply_id == first[one.prompt].reply_id
        and one.usage == first[one.prompt].usage
        and not (one.is_counted and one.counted.queries)
    ]


def _unasked(seen: Observations) -> list[Sent]:
    """Repeats that were not looked up. Empty where any was, or found something, or where new prompts are not counted either."""
    counted = [one for one in seen.of(*EXACT) if one.counted.is_known and one.length]
    new, repeats = ([one for one in counted if bool(one.turn) is is_repeat] for is_repeat in (False, True))
    if not new or sum(one.is_counted for one in new) < MOSTLY * len(new) or seen.is_jumping:
        return []
    return repeats if not any(one.counted.queries or one.usage.cached_tokens for one in repeats) else []
