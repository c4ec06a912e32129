"""Is anything cached; and if so, do equal prompts carry equal identities?

    configuration says off                                   caching off, certain
    vLLM's counter of lookups stands still                   caching off, strong
    nothing found, nothing else known                        one of several explanations, weak
    looked up, long enough, equal as the server saw it, and never found in quick succession: another identity each time
    found on one connection, never on new ones               another identity, or another cache, for each connection
"""

from __future__ import annotations

from labs.probe.flags import flag
from labs.probe.new_prompts import CHANCE_TOKENS
from labs.probe.observation import Observations
from labs.probe.rules.fronts import changes_in_front, front_tokens
from labs.probe.rules.kept_replies import are_kept
from labs.probe.rules.timing import tells_reuse, times_line
from labs.probe.rules.words import cached_by_length, control, count, crowd, numbers
from labs.probe.sent import BURST, LATE, NO_SALT, OWN_SALT, SALTED, SALTED_CHAT
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
    if facts.is_caching:
        seen_work = "" if seen.repeats else "; no prompt could be sent twice to see it work"
        return Verdict("caching", FINE, CERTAIN, f"Prefix caching is on by the server's configuration{seen_work}.", evidence)
    if not seen.repeats:
        return Verdict(
            "caching", CANNOT_TELL, WEAK, "No prompt could be sent twice.", evidence, "Give the probe more time or requests."
        )
    if are_kept(seen):
        return None  # repeats are answered in front: they tell nothing of the server's cache
    if not repeats:
        return _by_time(seen, repair)
    if seen.is_looked_up is False:
        evidence = (*evidence, "the counter of looked-up tokens did not grow with them")
        return Verdict("caching", FAULT, STRONG, "The server looks nothing up: prefix caching is off.", evidence, f"{repair}.")
    if seen.is_looked_up or seen.new_prompts.are_found:
        return None  # what is looked up and not found is told by other rules
    finding = (
        f"No repeat of up to {seen.longest_repeat:,} tokens found anything: caching is off, each request gets another identity "
        "(a salt), or goes to another replica, a cache of whole replies answers in front, or the unit is larger."
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
    """Whether equal prompts are looked up under different identities: a gateway's salt for each request, or connection."""
    if _only_on_one_connection(seen):
        return _by_connection(seen)
    repeats, unit = seen.known_repeats, seen.facts.unit_size
    if seen.hitting_repeats or not seen.is_looked_up or len(repeats) < MIN_REPEATS:
        return None
    if changes_in_front(seen) or front_tokens(seen) or are_kept(seen):
        return None  # something in front explains it
    if any(one.is_counted and one.counted.hits for one in repeats):
        return None  # another witness saw hits
    if unit is not None and seen.longest_repeat <= 2 * unit:
        return None  # too short, perhaps beside a drafter
    if seen.is_crowded:
        return _crowded(seen)
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


def _crowded(seen: Observations) -> Verdict:
    finding = "Equal prompts are looked up and not found: others may have pushed them out, or each request gets an identity of its own."
    next_step = f"Ask again at a quiet moment, where only an identity for each request would still miss; {flag('pool', seen.facts)}."
    evidence = (*cached_by_length(seen.known_repeats), *crowd(seen))
    return Verdict("identity", CANNOT_TELL, WEAK, finding, evidence, next_step)


def _only_on_one_connection(seen: Observations) -> bool:
    """Whether repeats on the probe's own connection are found, and those on new ones never, after a pause neither."""
    by_new, law = seen.new_prompts.most_found, seen.explanation
    if law is None or changes_in_front(seen) or seen.new_prompts.are_found or seen.is_crowded:
        return False
    on_new = [one for one in seen.known_repeats if one.purpose == BURST and one.length and law.hits(one.length, one.length)]
    on_new += [one for one in seen.of(LATE) if one.turn]
    found = [one for one in seen.hitting_repeats if one.purpose != BURST and one.cached > by_new]
    return len(on_new) >= MIN_REPEATS and len(found) > 1 and all(one.cached is not None and one.cached <= by_new for one in on_new)


def _by_connection(seen: Observations) -> Verdict:
    on_one = [one for one in seen.known_repeats if one.purpose != BURST]
    late = [one.cached for one in seen.of(LATE) if one.turn]
    evidence = (
        f"repeats on one connection: {sum(one.cached > 0 for one in on_one)} of {len(on_one)} found something",
        *(f"one prompt {len(turns)} times in a row, each on a new connection: {numbers(turns)} cached" for turns in seen.bursts),
        *([f"on new connections after a pause: {numbers(late)} cached"] if late else []),
    )
    finding = (
        "Repeats on one connection are found, on new connections never: each connection gets an identity (a salt) or a cache "
        "of its own."
    )
    next_step = (
        "Ask the server without the gateway in front; let it set one cache_salt for each tenant, and route by session or by "
        "prefix, not by connection."
    )
    return Verdict("identity", FAULT, STRONG, finding, evidence, next_step)


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
    in_chat = _salt_in_chat(seen)
    if any(one.cached is None for one in sent) or len(own) < 2:
        if in_chat is False:
            return _dropped_in_chat(seen)
        finding = "Whether a cache_salt separates could not be seen: requests with one are refused, or not told of."
        return Verdict("salts", CANNOT_TELL, WEAK, finding, (f"answered with a salt: {len(own)} of 2",))
    others = [one for one in sent if one.salt not in (OWN_SALT, NO_SALT)]
    evidence = (
        f"{own[0].length or 0:,} tokens known without a salt; with one: {numbers(one.cached for one in own)} cached",
        f"with another: {numbers(one.cached for one in others)} cached",
        *_chat_line(seen),
    )
    if own[0].cached or any(one.cached for one in others):
        finding = "A cache_salt separates nothing: a request with one finds what was sent without it."
        next_step = "Do not rely on it for isolation: does a gateway drop the field, or the server's version not know it?"
        return Verdict("salts", FAULT, STRONG, finding, evidence, next_step)
    if in_chat is False:
        return _dropped_in_chat(seen)
    if not any(one.cached for one in own[1:]):
        finding = "Requests with one and the same cache_salt do not find each other."
        if len(own) < 3:
            finding = f"{finding} It was tried only once."
            return Verdict("salts", CANNOT_TELL, WEAK, finding, evidence, "Ask again with more time.")
        next_step = "Does a gateway replace the salt by one of its own for each request?"
        return Verdict("salts", FAULT, STRONG, finding, evidence, next_step)
    finding = "A cache_salt separates: the same salt finds, no other does."
    if seen.form != "chat":
        finding += " In chat too." if in_chat else " Whether it does in chat was not seen."
    return Verdict("salts", FINE, STRONG, finding, evidence)


def _salt_in_chat(seen: Observations) -> bool | None:
    """Whether a chat message with a salt of its own missed what the same without one found; None where that was not seen."""
    found = [one.cached for one in seen.of(SALTED_CHAT)]
    if len(found) < 3 or None in found:
        return None
    new, salted, known = found
    if known <= new + CHANCE_TOKENS:
        return None  # a message that is sent again finds nothing anyway
    return False if 2 * salted > new + known else (True if salted <= CHANCE_TOKENS else None)


def _chat_line(seen: Observations) -> tuple[str, ...]:
    found = [one.cached for one in seen.of(SALTED_CHAT)]
    return (f"a chat message without a salt, with one, without one again: {numbers(found)} cached",) if found else ()


def _dropped_in_chat(seen: Observations) -> Verdict:
    finding = "In chat a cache_salt separates nothing: a message with one finds what was sent without it."
    next_step = "Do not rely on it for isolation: does a gateway drop the field from chat, or the server's version not know it?"
    return Verdict("salts", FAULT, STRONG, finding, _chat_line(seen), next_step)
