"""Several servers behind one address, without affinity: each misses a prompt once, and counters jump between readings.

A prompt that r requests in a row send over n replicas in turn is missed n times and found r − n times; over replicas drawn
by chance it is missed up to n times. So the misses of one burst count the replicas that it met. Each request of a burst has a
connection of its own, since a balancer may choose by connection; and as it may choose the idlest, a known prompt is also sent
several times at once. Only what passes both shows one cache.

A small pool that others fill loses a prompt within moments, and then it is missed too, again and again. So replicas are named
only where their counters show them, or where nobody else was served meanwhile; without counters, where each burst ended with
hits alone. One miss of a known prompt names none: a reset of the cache gives it as well.
"""

from __future__ import annotations

from labs.probe.flags import flag
from labs.probe.observation import Observations
from labs.probe.rules.fronts import changes_in_front, front_tokens
from labs.probe.rules.kept_replies import are_kept
from labs.probe.rules.words import cached_by_length, count, crowd, numbers
from labs.probe.sent import LADDER, LATE, STAIRCASE
from labs.probe.verdict import CANNOT_TELL, CERTAIN, EXPECTED, FAULT, FINE, STRONG, WEAK, Verdict

MIN_LOST = 2  # misses of known prompts, one after the other or at once: one may be anything's
AFFINITY = (
    "Route by prefix or by session (a hash of the system prompt, the user, the conversation), or ask each replica by itself."
)


def replicas(seen: Observations) -> Verdict | None:
    """How many caches one address leads to."""
    bursts = seen.bursts
    if are_kept(seen) or changes_in_front(seen) or (front_tokens(seen) and seen.is_kept is False):
        return None  # no repeat reaches a cache; or a clock in front makes a prompt miss now and then as well
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
        if sum(turns.count(False) - 1 for turns in found) < MIN_LOST and not _counts_several(seen):
            return _lost_once(evidence)
        finding = f"About {misses} caches answer behind this address, and requests go to any: a prompt is missed once by each."
        return Verdict("replicas", FAULT, STRONG, finding, evidence, AFFINITY)
    return _lost_at_once(seen, lines) or _several_readings(seen, lines) or _steady(seen, lines)


def _lost_at_once(seen: Observations, lines: tuple[str, ...]) -> Verdict | None:
    """Known prompts that are found one after the other, and missed when they come at once: the idlest replica answers."""
    told = [(one.sent[0].prompt, len(one.sent), number) for one, number in zip(seen.at_once, seen.missed_at_once) if number is not None]
    if not any(number for _, _, number in told) or not seen.is_steady or seen.new_prompts.are_found:
        return None
    first: dict[int, int] = {}
    again = []  # whether a prompt was missed by fewer the second time: each replica knows it by then that was asked
    for prompt, _, number in told:
        again += [number < first[prompt]] if prompt in first else []
        first.setdefault(prompt, number)
    evidence = (*lines, *(f"a known prompt {count(times, 'time')} at once: {number} missed it" for _, times, number in told))
    if sum(number > 0 for number in first.values()) < MIN_LOST or not all(again) or seen.is_shared:
        finding = (
            "Known prompts that come at once are not all found: other replicas answer some, others push prompts out, or there is no "
            "room for all."
        )
        next_step = "Ask again at a quiet moment; then ask each replica by itself."
        return Verdict("replicas", CANNOT_TELL, WEAK, finding, evidence, next_step)
    finding = (
        f"Requests that come at once go to caches that do not know the prompt: at least {max(first.values()) + 1} answer behind this "
        "address. One after the other all meet the same one, as where the idlest answers."
    )
    return Verdict("replicas", FAULT, STRONG, finding, (*evidence, *_readings(seen)), AFFINITY)


def _several_readings(seen: Observations, lines: tuple[str, ...]) -> Verdict | None:
    """Counters that jump: several replicas answer /metrics, whatever repeats meet."""
    if not seen.is_jumping:
        return None
    at_once, next_step = _found_at_once(seen), "Read the counters of each replica and add them up."
    evidence = (*_readings(seen), *lines, *at_once)
    jump = "Counters jump back between readings: several replicas answer /metrics"
    if not seen.is_steady:
        finding = f"{jump}. Whether repeats meet the one that knows them could not be seen."
        return Verdict("replicas", CANNOT_TELL, WEAK, finding, evidence, AFFINITY)
    finding = f"{jump}, though repeats meet the one that knows them{'' if at_once else ', one after the other'}."
    return Verdict("replicas", EXPECTED, STRONG if at_once else WEAK, finding, evidence, next_step)


def _steady(seen: Observations, lines: tuple[str, ...]) -> Verdict | None:
    """Every prompt was found from its first repeat on: how far that shows one cache."""
    if not seen.is_steady or seen.new_prompts.are_found:
        return None
    at_once = _found_at_once(seen)
    alone = "" if at_once else ", one after the other; of several at once nothing could be seen"
    if any(found < most for found, most in seen.shares):
        finding = "Whole prompts meet the cache that knows them; fronts do not always: several may answer, each for prompts of its own."
        evidence = (*lines, f"known fronts under other tails: {numbers(found for found, _ in seen.shares)} cached")
        return Verdict("replicas", CANNOT_TELL, WEAK, finding, evidence, AFFINITY)
    if seen.facts.num_engines > 1:
        finding = f"{seen.facts.num_engines} engines share this address, and repeats meet the one that knows them{alone}."
        return Verdict("replicas", FINE, CERTAIN if at_once else WEAK, finding, (*lines, *at_once))
    if seen.hitting_repeats and not seen.explanations:
        finding = "Prompts are found from the first repeat on, yet in no one unit: caches of several units may answer, or who reports rounds."
        evidence = cached_by_length([one for one in seen.known_repeats if one.purpose in (LADDER, STAIRCASE)])
        return Verdict("replicas", CANNOT_TELL, WEAK, finding, (*lines, *evidence), "Ask each replica by itself.")
    finding = f"One cache answers, seen from here: {count(len(seen.bursts), 'prompt')} found from the first repeat on{alone}."
    return Verdict("replicas", FINE, STRONG if at_once else WEAK, finding, (*lines, *at_once))


def _found_at_once(seen: Observations) -> tuple[str, ...]:
    """That a known prompt was found by all of several at once; empty where that was not seen."""
    found = [one for one, missed in zip(seen.at_once, seen.missed_at_once) if missed == 0 and one.is_abreast]
    return tuple(f"a known prompt {count(len(one.sent), 'time')} at once: found each time" for one in found)


def _counts_several(seen: Observations) -> bool:
    """Whether the counters themselves show several caches."""
    return seen.is_jumping or seen.facts.num_engines > 1


def _shows_replicas(seen: Observations, found: list[list[bool]]) -> bool:
    """Whether misses are replicas', and not prompts that others pushed out in between."""
    if _counts_several(seen):
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


def _lost_once(evidence: tuple[str, ...]) -> Verdict:
    finding = "A known prompt was missed once: somebody reset the cache, something pushed the prompt out, or another cache answered."
    return Verdict("replicas", CANNOT_TELL, WEAK, finding, evidence, "Ask again: replicas miss prompts every time.")


def _lost_or_several(seen: Observations, evidence: tuple[str, ...]) -> Verdict:
    finding = "Prompts are lost within moments: others push them out of the pool, or several caches answer."
    next_step = f"Ask again at a quiet moment, where only replicas would still miss; {flag('pool', seen.facts)}."
    return Verdict("replicas", CANNOT_TELL, WEAK, finding, (*evidence, *crowd(seen)), next_step)


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
    if not seen.is_jumping or len(seen.rereadings) < 2:
        return ()
    return (
        f"counted lookups at {len(seen.rereadings)} readings in a row: {numbers(one.queries for one in seen.rereadings)} tokens",
    )
