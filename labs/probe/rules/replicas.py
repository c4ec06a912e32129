"""Several servers behind one address, without affinity: each misses a prompt once, and counters jump between readings.

A prompt that r requests in a row send over n replicas in turn is missed n times and found r − n times; over replicas drawn
by chance it is missed up to n times. So the misses of one burst count the replicas that it met.

A small pool that others fill loses a prompt within moments, and then it is missed too, again and again. So replicas are named
only where their counters show them, or where nobody else was served meanwhile; without counters, where each burst ended with
hits alone.
"""

from __future__ import annotations

from labs.probe.flags import flag
from labs.probe.observation import Observations
from labs.probe.rules.fronts import changes_in_front, front_tokens
from labs.probe.rules.words import count, numbers
from labs.probe.sent import LATE
from labs.probe.verdict import CANNOT_TELL, CERTAIN, EXPECTED, FAULT, FINE, STRONG, WEAK, Verdict

AFFINITY = (
    "Route by prefix or by session (a hash of the system prompt, the user, the conversation), or ask each replica by itself."
)


def replicas(seen: Observations) -> Verdict | None:
    """How many caches one address leads to."""
    bursts = seen.bursts
    if changes_in_front(seen) or (front_tokens(seen) and seen.is_kept is False):
        return None  # a clock in front makes a prompt miss now and then as well
    lines = tuple(f"one prompt {len(turns)} times in a row: {numbers(turns)} cached" for turns in bursts)
    if _is_late(seen):
        late = [turns[-1].cached for turns in seen.turns_of(LATE)]
        finding = "A prompt is found only after a moment: what a request computed is published late, not at once."
        evidence = (*lines, f"repeats after a pause: {numbers(late)} cached")
        return Verdict(
            "replicas", EXPECTED, WEAK, finding, evidence, "Requests sent at once share nothing; let the first one finish."
        )
    found = [turns for turns in seen.burst_finds if any(turns)]
    misses = max((turns.count(False) for turns in found), default=0)
    if misses > 1 and not seen.new_prompts.are_found:
        first = sum(turns[1] for turns in seen.burst_finds)
        evidence = (*lines, f"first repeats found: {first} of {len(bursts)}", *_after_hits(found), *_readings(seen))
        if not _shows_replicas(seen, found):
            return _lost_or_several(seen, evidence)
        finding = f"About {misses} caches answer behind this address, and requests go to any: a prompt is missed once by each."
        return Verdict("replicas", FAULT, STRONG, finding, evidence, AFFINITY)
    if seen.is_jumping:
        finding = (
            "Counters jump back between readings: several replicas answer /metrics, though repeats meet the one that knows them."
        )
        return Verdict(
            "replicas",
            EXPECTED,
            STRONG,
            finding,
            (*_readings(seen), *lines),
            "Read the counters of each replica and add them up.",
        )
    if seen.facts.num_engines > 1 and seen.is_steady:
        finding = f"{seen.facts.num_engines} engines share this address, and repeats meet the one that knows them."
        return Verdict("replicas", FINE, CERTAIN, finding, lines)
    if seen.is_steady:
        return Verdict(
            "replicas",
            FINE,
            STRONG,
            f"One cache answers, seen from here: {count(len(bursts), 'prompt')} found from the first repeat on.",
            lines,
        )
    return None


def _shows_replicas(seen: Observations, found: list[list[bool]]) -> bool:
    """Whether misses are replicas', and not prompts that others pushed out in between."""
    if seen.is_jumping or seen.facts.num_engines > 1:
        return True
    if seen.is_shared is None:
        return all(_is_settled(turns) for turns in found)
    return not seen.is_shared


def _is_settled(turns: list[bool]) -> bool:
    """Whether a burst ended with more hits in a row than it had misses: every replica knows the prompt by then."""
    num_last = len(turns) - 1 - max(number for number, is_found in enumerate((False, *turns)) if not is_found) + 1
    return num_last > turns.count(False)


def _after_hits(found: list[list[bool]]) -> tuple[str, ...]:
    late = sum(turns[turns.index(True) :].count(False) for turns in found)
    return (f"missed again after it had been found: {count(late, 'time')}",) if late else ()


def _lost_or_several(seen: Observations, evidence: tuple[str, ...]) -> Verdict:
    pool, others = seen.facts.pool_tokens, seen.foreign_queries
    evidence += (f"looked up by others meanwhile: {others:,} tokens",) if others else ()
    evidence += (f"announced pool: {pool:,} tokens",) if pool else ()
    finding = "Prompts are lost within moments: others push them out of the pool, or several caches answer."
    next_step = f"Ask again at a quiet moment, where only replicas would still miss; {flag('pool', seen.facts)}."
    return Verdict("replicas", CANNOT_TELL, WEAK, finding, evidence, next_step)


def _is_late(seen: Observations) -> bool:
    """Whether every repeat after a pause was found, though repeats at once were not."""
    late = [turns for turns in seen.turns_of(LATE) if len(turns) > 1]
    return (
        not seen.is_jumping
        and len(late) > 1
        and all(turns[-1].cached for turns in late)
        and any(not turns[1] for turns in seen.bursts)
    )


def _readings(seen: Observations) -> tuple[str, ...]:
    if not seen.is_jumping:
        return ()
    return (
        f"counted lookups at {len(seen.rereadings)} readings in a row: {numbers(one.queries for one in seen.rereadings)} tokens",
    )
