"""In what units hits come, and what that costs: prompts shorter than a unit, aligned prompts, drafters, shared fronts."""

from __future__ import annotations

from labs.probe.explanation import Explanation
from labs.probe.flags import flag
from labs.probe.observation import Observations
from labs.probe.rules.copies import num_copies
from labs.probe.rules.kept_replies import are_kept
from labs.probe.rules.words import cached_by_length, control, count, numbers
from labs.probe.sent import LADDER, SHARED, STAIRCASE
from labs.probe.verdict import CANNOT_TELL, CERTAIN, EXPECTED, FAULT, FINE, STRONG, WEAK, Verdict
from labs.theory import drafter_loss

LARGE_UNIT = 256  # tokens: shorter prompts are common
MANY_SHARES = 6  # fronts: of two caches that whole prompts are sent to by chance, one alone would have to meet all
RESERVE = 8  # tokens under the server's limit that the probe's longest prompts leave


def unit(seen: Observations) -> Verdict | None:
    """The unit of a hit, and whether the person's prompts reach it."""
    facts, found = seen.facts, seen.explanation
    if seen.new_prompts.are_found:
        return None
    announced = facts.unit_size
    evidence = cached_by_length([one for one in seen.known_repeats if one.purpose in (LADDER, STAIRCASE)])
    evidence += (f"unit announced: {announced:,} tokens",) if announced else ()
    if announced and facts.max_model_len and announced >= facts.max_model_len:
        finding = f"A unit has {announced:,} tokens and a request at most {facts.max_model_len:,}: nothing can ever be found."
        return Verdict("unit", FAULT, CERTAIN, finding, evidence, f"{flag('unit', facts)}; or a larger --max-model-len.")
    if found is None and seen.hitting_repeats:
        left = [one.unit for one in seen.explanations]
        finding = f"What repeats found fits several units ({numbers(left)})." if left else "What repeats found fits no unit."
        return (
            Verdict("unit", CANNOT_TELL, WEAK, finding, evidence, "Ask again with more requests, or on a quiet server.")
            if seen.is_steady
            else None
        )
    if found is None:
        return _without_hits(seen, evidence)
    return _own_prompts(seen, found, evidence) or _measured(seen, found, evidence)


def _without_hits(seen: Observations, evidence: tuple[str, ...]) -> Verdict | None:
    """Nothing was found: is any prompt long enough, and are the person's?"""
    announced, facts, longest = seen.facts.unit_size, seen.facts, seen.longest_repeat
    if not seen.known_repeats or not seen.is_looked_up or are_kept(seen):
        return None
    if announced is not None:
        own = _own_prompts(seen, Explanation(announced, bool(facts.has_drafter)), evidence)
        if own is not None and own.is_fault:
            return own
        if longest > announced:
            return None  # long enough: something else is wrong
        finding = f"No prompt of more than a unit ({count(announced, 'token')}) could be sent; the longest had {longest:,}."
        why, next_step = _bound(seen, announced)
        return Verdict("unit", CANNOT_TELL, CERTAIN, finding, (*evidence, *why), next_step)
    finding = f"No unit can be told: nothing was found up to {longest:,} tokens. A larger unit would explain that."
    return Verdict(
        "unit", CANNOT_TELL, WEAK, finding, evidence, f"Read the server's own announcement; then {flag('unit', facts)}."
    )


def _bound(seen: Observations, unit: int) -> tuple[tuple[str, ...], str]:
    """What kept prompts from being longer than a unit, as evidence, and what to do about it."""
    facts, refused = seen.facts, seen.longest_refused
    if facts.pool_tokens and facts.pool_tokens // 2 <= unit:
        return (f"the pool holds {count(facts.pool_tokens, 'token')}",), f"{flag('pool', facts)}; or {flag('unit', facts)}."
    if facts.max_model_len and facts.max_model_len - RESERVE <= unit:
        return (
            f"a request may have {count(facts.max_model_len, 'token')}",
        ), f"A larger --max-model-len; or {flag('unit', facts)}."
    if refused and refused - 1 <= unit:
        return (f"refused: a prompt of {count(refused, 'token')}",), f"Let longer prompts through; or {flag('unit', facts)}."
    return (), "Give the probe more time or requests."


def _own_prompts(seen: Observations, found: Explanation, evidence: tuple[str, ...]) -> Verdict | None:
    """Whether prompts of the person's own length can find anything."""
    length = seen.own_prompt_tokens
    if length is None:
        return None
    possible = found.hits(length, length)
    beside = ", beside a drafter" if found.has_drafter else ""
    if possible == 0:
        units = "two units" if found.has_drafter else "one unit"
        finding = f"Your {length:,}-token prompts share less than {units} of {found.unit:,}{beside}: they never find anything."
        next_step = (
            f"From {found.shortest_hit:,} tokens on a repeat finds {found.unit:,}. Make the stable front longer, or "
            f"{flag('unit', seen.facts)}."
        )
        sure = CERTAIN if found.unit == seen.facts.unit_size else STRONG
        return Verdict("unit", FAULT, sure, finding, evidence, next_step)
    own = seen.own_repeats
    if not own:
        finding = f"Hits are multiples of {found.unit:,}{beside}: a repeat of your {length:,} tokens can find {possible:,}."
        return Verdict("unit", FINE, WEAK, f"{finding} None so long was sent.", evidence)
    if all(seen.falls_short(one) for one in own) or any(one.num_ids and one.length < one.num_ids for one in own):
        return None  # less than that, or cut: other rules tell it
    most = max(one.cached for one in own)
    finding = f"Hits are multiples of {found.unit:,}{beside}: a repeat of your {length:,} tokens finds {most:,}."
    return Verdict("unit", FINE, STRONG, finding, (*evidence, *cached_by_length(own)))


def _measured(seen: Observations, found: Explanation, evidence: tuple[str, ...]) -> Verdict:
    announced = seen.facts.unit_size
    finding = f"Hits are multiples of {count(found.unit, 'token')}: repeats find something from {found.shortest_hit:,} tokens on."
    if announced is not None and announced != found.unit:
        finding += f" The server announces {announced:,}: the measured one counts."
        return Verdict(
            "unit",
            EXPECTED,
            STRONG,
            finding,
            evidence,
            "Groups of layers that must agree make it larger; plan with the measured one.",
        )
    if found.unit >= LARGE_UNIT:
        next_step = f"Shorter prompts never hit. Ask with --prompt-tokens what yours can find; {flag('unit', seen.facts)}."
        return Verdict("unit", EXPECTED, STRONG, finding, evidence, next_step)
    return Verdict("unit", FINE, STRONG, finding, evidence)


def aligned(seen: Observations) -> Verdict | None:
    """The last token is always computed, so a prompt of n whole units finds n − 1: looks wrong, is not."""
    found = seen.explanation
    if found is None or found.unit == 1 or seen.new_prompts.are_found:
        return None
    by_length = {one.length: one.cached for one in seen.known_repeats if one.purpose == STAIRCASE}
    for length, cached in sorted(by_length.items()):
        if length % found.unit == 0 and by_length.get(length + 1) == cached + found.unit:
            finding = (
                f"A prompt of exactly {length // found.unit} units finds one unit less than one token more would: "
                "its last token is computed again."
            )
            evidence = (f"repeat of {length:,} tokens: {cached:,} cached; of {length + 1:,}: {by_length[length + 1]:,}",)
            return Verdict(
                "aligned", EXPECTED, STRONG, finding, evidence, "Nothing to repair; do not benchmark with prompts of whole units."
            )
    return None


def drafter(seen: Observations) -> Verdict | None:
    """A speculative drafter takes one unit of every hit: looks like a regression, is the price."""
    found = seen.explanation
    if found is None or not found.has_drafter or seen.new_prompts.are_found:
        return None
    longest = max((one for one in seen.hitting_repeats), key=lambda one: one.length or 0)
    lost = drafter_loss(longest.length, longest.length, found.unit)
    says = "the server's metrics name a drafter" if seen.facts.has_drafter else "nothing announces a drafter"
    finding = f"Every hit is one unit ({found.unit:,} tokens) short, at every length: the price of a speculative drafter."
    evidence = (*cached_by_length([one for one in seen.known_repeats if one.purpose in (LADDER, STAIRCASE)]), says)
    next_step = f"{flag('drafter', seen.facts)}: here {lost:,} of {longest.cached + lost:,} tokens."
    return Verdict("drafter", EXPECTED, CERTAIN if seen.facts.has_drafter else STRONG, finding, evidence, next_step)


def shared(seen: Observations) -> Verdict | None:
    """Whether the front of a known prompt is found under another tail, and not whole prompts alone."""
    shares = seen.shares
    if len(shares) < 2 or not seen.is_steady or seen.new_prompts.are_found:
        return None
    matched, num_short = next(one.matched for one in seen.of(SHARED) if one.matched), sum(one < most for one, most in shares)
    evidence = (
        f"{count(matched, 'token')} shared, then another tail: {numbers(found for found, _ in shares)} cached, "
        f"{shares[0][1]:,} possible",
    )
    alone = "ask the server itself, and each replica by itself."
    if num_short == len(shares):
        finding = "Whole prompts are found, shared fronts are not: what agents and system prompts live on is missing."
        next_step = (
            "A salt per prompt, a router that sends each whole prompt to a replica of its own, a cache of whole replies, or a "
            f"model whose state is kept at the end alone does this: {alone}"
        )
        return Verdict("shared", FAULT, STRONG, finding, evidence, next_step)
    if num_short > 1:
        finding = (
            f"Shared fronts are found at times alone ({len(shares) - num_short} of {len(shares)}), whole prompts always: requests "
            "are sent by their whole prompt to one of several caches."
        )
        return Verdict("shared", FAULT, STRONG, finding, evidence, f"Route by the front, the user or the session; {alone}")
    if num_short:
        finding = f"One shared front of {len(shares)} was not found: a miss may be anything's."
        return Verdict("shared", CANNOT_TELL, WEAK, finding, evidence, f"Ask again; if that happens again, {alone}")
    sure = STRONG if len(shares) >= MANY_SHARES else WEAK
    return Verdict("shared", FINE, sure, "A shared front is found under another tail.", evidence)


def strangers(seen: Observations) -> Verdict | None:
    """Whether prompts that nobody sent before are found: then the rate is too good to be true."""
    if not seen.new_prompts.are_found or num_copies(seen):
        return None  # a copy of each request came before it, and was found: the hits are real
    known = [one for one in seen.new_prompts.sent if one.cached is not None]
    finding = (
        f"Prompts that nobody sent before are found ({len(seen.new_prompts.strangers)} of {len(known)}): hits are reported "
        "that cannot be, or a copy of each request is sent before it."
    )
    next_step = "Who reports them? Compare usage with the counters, and ask the server without a gateway in front."
    return Verdict("strangers", FAULT, STRONG, finding, (control(known),), next_step)
