"""What the server reports of its cache, and whether its witnesses agree. Unreported is unknown, never zero."""

from __future__ import annotations

from collections import Counter

from labs.probe.flags import flag
from labs.probe.observation import Observations
from labs.probe.rules.kept_replies import are_kept
from labs.probe.rules.timing import tells_reuse, times_line
from labs.probe.rules.words import count, numbers
from labs.probe.sent import CHAT, NO_SALT, SALTED_CHAT, Sent
from labs.probe.verdict import CANNOT_TELL, CERTAIN, EXPECTED, FAULT, FINE, STRONG, WEAK, Verdict
from labs.servers.server_facts import ServerFacts
from labs.servers.server_reply import ABSENT, NO_DETAILS, REPORTED, Usage

MAX_SHOWN = 3  # requests quoted as evidence
MANY_FAILURES, MUCH_FAILURE = 3, 0.1  # requests, and their share, from which on a busy server is one that fails
MUCH_TOLD = 4  # more than one new prompt in so many
BUSY_STEP = "Look at the server's queue: more replicas, or a longer one"


def replies(seen: Observations) -> Verdict | None:
    """Whether requests are answered at all; one that was turned away and answered a moment later is."""
    turned = f"turned away as the server was busy: {count(seen.num_turned_away, 'time')}, and sent again a moment later"
    if not seen.failures:
        if not seen.sent and seen.stopped:
            finding = "No question was answered before the probe's limit was met: what is said here the server says of itself."
            next_step = "Give it more time, or requests: --max-seconds, --max-requests."
            return Verdict("replies", CANNOT_TELL, CERTAIN, finding, (seen.stopped,), next_step)
        if not seen.num_turned_away:
            return None
        finding = "The server was too busy at times, and answered a moment later."
        return Verdict("replies", EXPECTED, WEAK, finding, (turned,), f"{BUSY_STEP}, where that happens often.")
    (line, times), = Counter(seen.failures).most_common(1)  # fmt: skip
    num_failed, num_asked = len(seen.failures), len(seen.sent) + len(seen.failures)
    evidence = (f"failed: {num_failed} of {num_asked}", f"{count(times, 'time')}: {line}")
    evidence += (turned,) if seen.num_turned_away else ()
    finding = f"{count(num_failed, 'request')} of the probe failed: what else is said here rests on those that were answered."
    is_busy = num_failed == seen.num_busy_failures and not seen.is_given_up
    if is_busy and (num_failed < MANY_FAILURES or num_failed <= MUCH_FAILURE * num_asked):
        return Verdict("replies", EXPECTED, WEAK, finding, evidence, f"{BUSY_STEP}; or ask at a quiet moment.")
    next_step = "Look into the log of the server, and of whatever stands before it."
    return Verdict("replies", FAULT, STRONG, finding, evidence, f"{BUSY_STEP}." if is_busy else next_step)


def usage(seen: Observations) -> Verdict | None:
    """Whether replies say how many tokens were found in the cache."""
    sent = [one for one in seen.sent if one.native_cached is None and one.purpose not in (CHAT, SALTED_CHAT)]
    asked = [one.usage for one in seen.sent if one.native_cached is None]
    if not asked:
        return None
    states = Counter(one.state for one in asked)
    evidence = (", ".join(f"{state}: {number}" for state, number in states.most_common()), *_other_witnesses(seen))
    if set(states) == {REPORTED}:
        return Verdict("usage", FINE, CERTAIN, "Every reply says how many tokens were found.", evidence)
    if REPORTED in states:
        return _partly_reported(seen, sent, evidence)
    what = "no usage at all" if states[ABSENT] == len(asked) else "no cached_tokens (prompt_tokens_details is null or missing)"
    finding = f"Replies carry {what}: how much was found is unknown to clients, not 0."
    if seen.facts.kind == "openai":
        return Verdict("usage", CANNOT_TELL, CERTAIN, finding, evidence, f"{flag('usage', seen.facts)}.")
    if states[ABSENT] == len(asked) or seen.facts.info.get("enable_cache_report") == "True":
        next_step = "The server writes it, so something on the way drops it: look at the gateway."
        return Verdict("usage", FAULT, STRONG, finding, evidence, next_step)
    return Verdict("usage", FAULT, CERTAIN, finding, evidence, f"{flag('usage', seen.facts)}.")


def _partly_reported(seen: Observations, sent: list[Sent], evidence: tuple[str, ...]) -> Verdict:
    if _hides_misses(seen):
        # Silent on nothing that may have been found, either.
        if not any(_may_find(seen, one) for one in sent if one.usage.state != REPORTED and not one.is_counted):
            finding = "A miss is reported as no cached_tokens, a hit as a number: here a missing number means 0."
            next_step = "Count a missing number as 0 on this server, and on no other."
            return Verdict("usage", EXPECTED, STRONG, finding, evidence, next_step)
        finding = "Some repeats say nothing of what was found, and no reply says 0: a missing number means that, or was dropped."
        next_step = f"Ask the server itself; there {flag('usage', seen.facts)}."
        return Verdict("usage", CANNOT_TELL, WEAK, finding, evidence, next_step)
    in_chat = {one.usage.state for one in seen.of(CHAT, SALTED_CHAT)}
    if {one.usage.state for one in sent} == {REPORTED} and REPORTED not in in_chat:
        finding = "Completions say how many tokens were found, chat replies do not: something drops it from chat."
        next_step = "Look at the gateway; or another server answers chat, with other settings."
        return Verdict("usage", FAULT, STRONG, finding, evidence, next_step)
    silent = [one for one in seen.sent if one.native_cached is None and one.usage.state != REPORTED]
    if len(silent) == 1:
        finding = "One reply does not say how many tokens were found, all others do: one alone may be anything's."
        return Verdict("usage", CANNOT_TELL, WEAK, finding, evidence, "Ask again, to see whether that happens often.")
    finding = (
        "Some replies say how many tokens were found, others do not: servers of different settings answer here, or something on "
        "the way drops it at times."
    )
    return Verdict("usage", FAULT, STRONG, finding, evidence, f"Ask each server itself; there {flag('usage', seen.facts)}.")


def _hides_misses(seen: Observations) -> bool:
    """Whether only hits are told, and no reply says 0, as far as any witness knows."""
    sent = [one for one in seen.sent if one.native_cached is None and one.purpose not in (CHAT, SALTED_CHAT)]
    silent = [one for one in sent if one.usage.state != REPORTED]
    is_found = any(one.counted.hits for one in silent if one.is_counted)
    # Behind a front that is always found no reply says 0 either; by chance few new prompts find a token.
    new = [one.usage.state == REPORTED for one in sent if not one.turn and one.matched is None]
    is_told = MUCH_TOLD * sum(new) > len(new)
    return 0 < len(silent) < len(sent) and not is_found and not is_told and all(one.usage.cached_tokens != 0 for one in sent)


def _may_find(seen: Observations, one: Sent) -> bool:
    """Whether a request is a repeat that can find something; a salt of its own finds nothing the first time."""
    law, told = seen.explanation, [other.length for other in seen.hitting_repeats if other.length]
    shortest = law.shortest_hit if law is not None else min(told, default=0)
    return bool(one.turn) and one.salt == NO_SALT and (one.length or 0) >= shortest


def _other_witnesses(seen: Observations) -> tuple[str, ...]:
    counted = sum(one.counted.hits for one in seen.sent if one.is_counted)
    native = sum(one.native_cached or 0 for one in seen.sent)
    lines = [f"the counters found {counted:,} tokens in the same requests"] if counted else []
    lines += [f"/generate found {native:,} tokens"] if native else []
    return tuple(lines)


def metrics(seen: Observations) -> Verdict | None:
    """Whether there are counters to read."""
    facts = seen.facts
    if facts.has_counters:
        return Verdict("metrics", FINE, CERTAIN, "/metrics counts tokens looked up and found.", ())
    if facts.metrics_trouble:
        return _unread_metrics(facts)
    finding = (
        "/metrics answers, without counters of tokens found."
        if facts.has_metrics
        else "There is no /metrics: nothing counts what was found."
    )
    if facts.kind == "openai":
        return Verdict("metrics", CANNOT_TELL, CERTAIN, finding, (), f"{flag('metrics', facts)}.")
    return Verdict("metrics", FAULT, CERTAIN, finding, (), f"{flag('metrics', facts)}.")


def _unread_metrics(facts: ServerFacts) -> Verdict:
    """There is a /metrics, and this client could not read it."""
    finding = "/metrics could not be read from here: whether the server counts what it finds is unknown."
    if facts.is_metrics_broken and facts.kind != "openai":
        next_step = "Look into the log of the server, and of whatever stands before it."
        return Verdict("metrics", FAULT, STRONG, finding, (facts.metrics_trouble,), next_step)
    next_step = "Read it at the server itself, or let it through to whoever judges the cache."
    return Verdict("metrics", CANNOT_TELL, CERTAIN, finding, (facts.metrics_trouble,), next_step)


def stream(seen: Observations) -> Verdict | None:
    """Whether a stream brings usage when it is asked for."""
    if seen.streamed is None:
        return None
    streamed: Usage = seen.streamed.usage
    if seen.streamed.error:
        finding = "A streamed completion could not be read: whether streams report usage is open."
        return Verdict("stream", CANNOT_TELL, CERTAIN, finding, (seen.streamed.error,))
    is_reported = any(one.usage.state == REPORTED for one in seen.sent)
    has_usage = any(one.usage.state != ABSENT for one in seen.sent)
    evidence = (
        f"stream with include_usage: {streamed.state}",
        f"without a stream: {REPORTED if is_reported else 'not reported'}",
    )
    if streamed.state == NO_DETAILS and _hides_misses(seen):
        finding = "A stream says nothing of a miss, as replies in one piece do here: whether it tells a hit is open."
        return Verdict("stream", CANNOT_TELL, WEAK, finding, evidence)
    if (streamed.state == ABSENT and has_usage) or (streamed.state != REPORTED and is_reported):
        finding = "Streams do not report what replies in one piece do, though usage was asked for."
        return Verdict(
            "stream",
            FAULT,
            STRONG,
            finding,
            evidence,
            "Something on the way drops the last chunk, whose choices are empty: look at the gateway.",
        )
    if streamed.state == ABSENT:
        finding = "Neither streams nor replies in one piece carry usage: what was found is unknown from both."
        return Verdict("stream", CANNOT_TELL, CERTAIN, finding, evidence)
    finding = "Streams report what replies in one piece do, when the request asks for it."
    return Verdict("stream", FINE, CERTAIN, finding, evidence)


def impossible(seen: Observations) -> Verdict | None:
    """Whether a reply says that more was found than can be: never the whole prompt, whose last token is always computed."""
    wrong = [
        one.usage for one in seen.sent if one.usage.prompt_tokens and (one.usage.cached_tokens or 0) >= one.usage.prompt_tokens
    ]
    if not wrong:
        return None
    pairs = [f"{one.cached_tokens:,} of {one.prompt_tokens:,}" for one in wrong[:MAX_SHOWN]]
    finding = "Replies say that whole prompts were found, or more: impossible, the last token is always computed."
    evidence = (f"so in {len(wrong)} of {len(seen.sent)}: {', '.join(pairs)} tokens",)
    next_step = (
        "Who writes usage? A gateway that adds up, guesses, or counts prompt_tokens without the cached ones is the usual cause."
    )
    return Verdict("impossible", FAULT, CERTAIN, finding, evidence, next_step)


def witnesses(seen: Observations) -> Verdict | None:
    """Whether usage, counters and times tell the same of the same requests."""
    both = [one for one in seen.sent if one.usage.cached_tokens is not None and one.is_counted]
    apart = [one for one in both if one.usage.cached_tokens != one.counted.hits]
    if len(apart) > 1:
        shown = [
            f"{one.length:,} tokens: usage {one.usage.cached_tokens:,}, counters {one.counted.hits:,}"
            for one in apart[:MAX_SHOWN]
        ]
        says = "repeats are answered sooner, as if they reuse something" if tells_reuse(seen) else "times tell no difference"
        finding = f"Usage and counters tell different numbers of the same requests ({len(apart)} of {len(both)})."
        side = (
            "Usage says"
            if sum(one.usage.cached_tokens for one in apart) < sum(one.counted.hits for one in apart)
            else "The counters say"
        )
        next_step = f"{side} less. Do not judge by it until you know who is wrong; compare with repeats' times."
        return Verdict("witnesses", FAULT, STRONG, finding, (*shown, says), next_step)
    if seen.known_repeats and not seen.hitting_repeats and tells_reuse(seen) and not are_kept(seen):
        finding = "Nothing reports a hit, yet repeats are answered sooner than new prompts of the same length."
        evidence = (f"repeats: {numbers(one.cached for one in seen.known_repeats)} cached", times_line(seen))
        next_step = "A cache that nobody counts may answer (a gateway's, a lower tier): ask the server itself."
        return Verdict("witnesses", FAULT, WEAK, finding, evidence, next_step)
    if not both:
        return None
    return Verdict("witnesses", FINE, STRONG, f"Usage and counters agree on {count(len(both), 'request')}.", ())
