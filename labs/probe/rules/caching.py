"""Is anything cached; and if so, do equal prompts carry equal identities?

    configuration says off                                   caching off, certain
    vLLM's counter of lookups stands still                   caching off, strong
    nothing found, nothing else known                        one of several explanations, weak
    looked up, long enough, equal as the server saw it, and never found in quick succession: another identity each time
"""

from __future__ import annotations

from labs.probe.flags import flag
from labs.probe.observation import Observations
from labs.probe.rules.fronts import changes_in_front, front_tokens
from labs.probe.rules.timing import tells_reuse, times_line
from labs.probe.rules.words import cached_by_length, control, count, numbers
from labs.probe.sent import NO_SALT, OWN_SALT, SALTED
from labs.probe.verdict import CANNOT_TELL, CERTAIN, FAULT, FINE, STRONG, WEAK, Verdict

MIN_REPEATS = 6  # that must all miss before anything is said about identities
LONG = 4_000  # tokens: a unit that no such prompt fills is hardly met


def caching(seen: Observations) -> Verdict | None:
    """Whether prefix caching is on."""
    repeats, facts = seen.known_repeats, seen.facts
    evidence = (*cached_by_length(repeats), *([control(seen.new_prompts.sent)] if repeats else []))
    said = {True: "on", False: "off"}.get(facts.is_caching)
    if said:
        evidence = (f"the server's configuration says {said}", *evidence)
    repair = flag("caching", facts)
    if facts.is_caching is False:
        but = "; yet repeats found something, so another server answers here too" if seen.hitting_repeats else ""
        return Verdict(
            "caching", FAULT, CERTAIN, f"Prefix caching is off by the server's configuration{but}.", evidence, f"{repair}."
        )
    if seen.hitting_repeats and not seen.new_prompts.are_found:
        sure = CERTAIN if facts.is_caching else STRONG
        return Verdict("caching", FINE, sure, "Prefix caching is on: repeats find what was sent before.", evidence)
    if not seen.repeats:
        return Verdict(
            "caching", CANNOT_TELL, WEAK, "No prompt could be sent twice.", evidence, "Give the probe more time or requests."
        )
    if facts.is_caching:
        return Verdict("caching", FINE, CERTAIN, "Prefix caching is on by the server's configuration.", evidence)
    if not repeats:
        return _by_time(seen, repair)
    if seen.is_looked_up is False:
        evidence = (*evidence, "the counter of looked-up tokens did not grow with them")
        return Verdict("caching", FAULT, STRONG, "The server looks nothing up: prefix caching is off.", evidence, f"{repair}.")
    if seen.is_looked_up or seen.new_prompts.are_found:
        return None  # what is looked up and not found is told by other rules
    finding = (
        f"No repeat of up to {seen.longest_repeat:,} tokens found anything: caching is off, each request gets another identity "
        "(a salt), or goes to another replica, or the unit is larger."
    )
    return Verdict(
        "caching", FAULT, WEAK, finding, evidence, f"First {repair}; then ask the server itself, without a gateway between."
    )


def _by_time(seen: Observations, repair: str) -> Verdict:
    evidence = (times_line(seen), "usage, counters: unknown")
    if tells_reuse(seen):
        finding = "By their times alone, repeats reuse something; no reply or counter tells."
        return Verdict("caching", FINE, WEAK, finding, evidence, f"To be sure: {flag('usage', seen.facts)}.")
    finding = "Nothing tells whether repeats reuse anything: no reply, no counter, and times show no difference."
    return Verdict("caching", CANNOT_TELL, WEAK, finding, evidence, f"{flag('usage', seen.facts)}; {repair}.")


def identity(seen: Observations) -> Verdict | None:
    """Whether equal prompts are looked up under different identities: a gateway's salt for each request."""
    repeats, unit = seen.known_repeats, seen.facts.unit_size
    if seen.hitting_repeats or not seen.is_looked_up or len(repeats) < MIN_REPEATS:
        return None
    if changes_in_front(seen) or front_tokens(seen):
        return None  # something in front explains it
    if any(one.is_counted and one.counted.hits for one in repeats):
        return None  # another witness saw hits
    if unit is not None and seen.longest_repeat <= 2 * unit:
        return None  # too short, perhaps beside a drafter
    salted = [one for one in seen.of(SALTED) if one.salt == OWN_SALT and one.cached is not None]
    bursts = [f"one prompt {len(turns)} times in a row: {numbers(turns)} cached" for turns in seen.bursts]
    evidence = (*cached_by_length(repeats), *bursts[:1], _sameness(seen))
    next_step = (
        "Ask the server without the gateway in front; let the gateway set one cache_salt for each tenant, not for each request."
    )
    if len(salted) > 1 and salted[-1].cached:
        evidence = (*evidence, f"with a cache_salt of the probe's own: {numbers(one.cached for one in salted)} cached")
        finding = "Requests without a cache_salt are given one each on their way: only those that bring their own reuse anything."
        return Verdict("identity", FAULT, STRONG, finding, evidence, next_step + " Until then send a cache_salt for each tenant.")
    sure = STRONG if unit is not None or seen.longest_repeat > LONG else WEAK
    finding = (
        "Equal prompts are looked up and never found: each request gets an identity of its own, as a salt for each request gives."
    )
    return Verdict("identity", FAULT, sure, finding, evidence, next_step)


def _sameness(seen: Observations) -> str:
    """In what the server saw two equal prompts as equal."""
    pairs = [turns for purpose in {one.purpose for one in seen.repeats} for turns in seen.turns_of(purpose) if len(turns) > 1]
    with_ids = sum(all(one.prompt_ids is not None for one in turns) for turns in pairs)
    if with_ids:
        return f"token ids as the server saw them: equal in {count(with_ids, 'repeated prompt')}"
    return f"prompt_tokens of equal prompts: equal in {count(len(pairs), 'repeated prompt')}"


def salts(seen: Observations) -> Verdict | None:
    """Whether a cache_salt separates: the same salt finds, another finds nothing."""
    sent = seen.of(SALTED)
    own = [one for one in sent if one.salt == OWN_SALT]
    if not seen.hitting_repeats or not seen.is_steady or seen.new_prompts.are_found or not sent:
        return None
    if any(one.cached is None for one in sent) or len(own) < 2:
        finding = "Whether a cache_salt separates could not be seen: requests with one are refused, or not told of."
        return Verdict("salts", CANNOT_TELL, WEAK, finding, (f"answered with a salt: {len(own)} of 2",))
    others = [one for one in sent if one.salt not in (OWN_SALT, NO_SALT)]
    evidence = (
        f"{own[0].length or 0:,} tokens known without a salt; with one: {numbers(one.cached for one in own)} cached",
        f"with another: {numbers(one.cached for one in others)} cached",
    )
    if own[0].cached or any(one.cached for one in others):
        finding = "A cache_salt separates nothing: a request with one finds what was sent without it."
        next_step = "Do not rely on it for isolation: does a gateway drop the field, or the server's version not know it?"
        return Verdict("salts", FAULT, STRONG, finding, evidence, next_step)
    if not any(one.cached for one in own[1:]):
        finding = "Requests with one and the same cache_salt do not find each other."
        if len(own) < 3:
            finding = f"{finding} It was tried only once."
            return Verdict("salts", CANNOT_TELL, WEAK, finding, evidence, "Ask again with more time.")
        next_step = "Does a gateway replace the salt by one of its own for each request?"
        return Verdict("salts", FAULT, STRONG, finding, evidence, next_step)
    return Verdict("salts", FINE, STRONG, "A cache_salt separates: the same salt finds, no other does.", evidence)
