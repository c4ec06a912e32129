"""Several servers behind one address, without affinity: each misses a prompt once, and counters jump between readings.

A prompt that r requests in a row send over n replicas in turn is missed n times and found r − n times; over replicas drawn
by chance it is missed up to n times. So the misses of one burst count the replicas that it met.
"""

from __future__ import annotations

from labs.probe.observation import LATE, Observations
from labs.probe.rules.fronts import changes_in_front, front_tokens
from labs.probe.rules.words import count, numbers
from labs.probe.verdict import CERTAIN, EXPECTED, FAULT, FINE, STRONG, WEAK, Verdict

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
    misses = [turns.count(0) for turns in bursts if any(turns)]
    if misses and max(misses) > 1:
        first = sum(1 for turns in bursts if turns[1])
        evidence = (*lines, f"first repeats found: {first} of {len(bursts)}", *_readings(seen))
        finding = (
            f"About {max(misses)} caches answer behind this address, and requests go to any: a prompt is missed once by each."
        )
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
            "replicas", FINE, STRONG, f"One cache answers: {count(len(bursts), 'prompt')} found from the first repeat on.", lines
        )
    return None


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
