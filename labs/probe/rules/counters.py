"""Numbers that are true and mislead: lifetime rates, the latest batch's gauge, other people's traffic."""

from __future__ import annotations

from labs.probe.flags import flag
from labs.probe.observation import MIN_SLACK, SLACK, Observations
from labs.probe.rules.copies import num_copies
from labs.probe.rules.kept_replies import are_kept
from labs.probe.rules.words import numbers
from labs.probe.verdict import CANNOT_TELL, EXPECTED, FAULT, FINE, STRONG, WEAK, Verdict
from labs.servers.prefix_counters import CounterReading
from labs.theory import hit_rate

FAR = 0.15  # rates that differ by more mislead whoever takes one for the other
NEAR = 0.02  # a gauge that is rounded, or leaves the last token out
MIN_ALONE = 3  # requests over which the counters grew by just what the replies say: then they count this probe
MIN_BEFORE = 4_000  # tokens looked up before the probe: with fewer a lifetime rate is nearly the probe's own


def counters(seen: Observations) -> Verdict | None:
    """Whether the server's counters tell this probe's requests, and what their lifetime rate says."""
    last, growth = seen.last_reading, seen.last_reading.growth_since(seen.first_reading)
    lengths = [one.length for one in seen.sent]
    if not (last.is_known and seen.first_reading.is_known) or None in lengths or seen.failures:
        return None
    own = sum(lengths)
    growth = growth.without_checks(own)
    if seen.is_jumping or are_kept(seen) or num_copies(seen):
        return None  # several replicas answer in turn, or a front answers, or asks twice: their rules tell it
    if not growth.is_known or seen.num_falls:
        finding = "The counters fell while the probe ran: the server was restarted, or several replicas answer /metrics."
        evidence = (f"looked up before: {seen.first_reading.queries:,}, after: {last.queries:,}",)
        evidence += (f"readings lower than the one before: {seen.num_falls:,}",) if seen.num_falls else ()
        return Verdict("counters", FAULT, STRONG, finding, evidence, "Read each replica's counters, and only their growth.")
    evidence = (
        f"looked up meanwhile: {growth.queries:,} tokens, of this probe's own {own:,}",
        f"found: {growth.hits:,}, own {_own_found(seen)}",
        *([f"of requests that were cut before their answer: up to {seen.num_cut_tokens:,}"] if seen.num_cut_tokens else []),
    )
    if not growth.queries and not seen.hitting_repeats:
        return None  # nothing is looked up where caching is off: its rule tells it
    if seen.is_counted_in_part:
        finding = (
            "The counters show only a part of this probe's requests: /metrics is kept for a while somewhere, or another replica "
            "answered the rest."
        )
        next_step = "Read /metrics at each replica itself, without a gateway between; several are added up."
        state = EXPECTED if growth.queries else CANNOT_TELL
        return Verdict("counters", state, WEAK, finding, evidence, next_step)
    if seen.is_shared:
        return _of_others(seen, growth, (*evidence, _lifetime(last)))
    if seen.late_s is not None:
        finding = "The counters are late: they showed this probe's requests only some moments after the last reply."
        evidence = (*evidence, f"all were counted when read again {seen.late_s:,.1f} s later")
        return Verdict(
            "counters", EXPECTED, STRONG, finding, evidence, "Read them a few seconds after the traffic you ask about."
        )
    return _lifetime_rate(seen, growth, evidence) or Verdict(
        "counters", FINE, STRONG, "The counters grow by what this probe sent.", evidence
    )


def _own_found(seen: Observations) -> str:
    """Tokens that this probe's requests found, as far as any witness tells."""
    known = [one.cached for one in seen.sent if one.cached is not None]
    if not known:
        return "unknown"
    return f"{sum(known):,}" + (f" in the {len(known)} of {len(seen.sent)} requests that tell" if len(known) < len(seen.sent) else "")


def _of_others(seen: Observations, growth: CounterReading, evidence: tuple[str, ...]) -> Verdict:
    """That others are counted, and whether this probe is among them: it may be another replica's page."""
    own, found = sum(one.length or 0 for one in seen.sent), [one.cached for one in seen.sent]
    slack = max(MIN_SLACK, SLACK * own)
    if None not in found and (growth.hits < sum(found) - slack or growth.queries - growth.hits < own - sum(found) - slack):
        finding = "The counters grow by others' requests and lack this probe's: they are another replica's, or kept for a while."
        next_step = "Read /metrics at each replica itself, without a gateway between; several are added up."
        return Verdict("counters", EXPECTED, STRONG, finding, evidence, next_step)
    next_step = f"For a rate of your own traffic use usage, or a quiet server; for the whole server {flag('counters', seen.facts)}."
    if sum(one.is_counted and one.usage.cached_tokens == one.counted.hits for one in seen.sent) >= MIN_ALONE:
        finding = "Others send requests too: counters over the same time mix their traffic with this probe's."
        return Verdict("counters", EXPECTED, STRONG, finding, evidence, next_step)
    finding = (
        "Others send requests too, and the counters count theirs, with this probe's or in their place: too few of its own were "
        "counted alone, and another replica may answer /metrics."
    )
    return Verdict("counters", EXPECTED, STRONG, finding, evidence, next_step)


def _lifetime(last: CounterReading) -> str:
    return f"since the server started: {last.hits:,} of {last.queries:,} tokens"


def _lifetime_rate(seen: Observations, growth: CounterReading, evidence: tuple[str, ...]) -> Verdict | None:
    """Told where the rate since the start is far from the one over the probe's own time, both over all requests."""
    last = seen.last_reading
    if seen.first_reading.queries < MIN_BEFORE or not growth.queries:
        return None
    lifetime, now = hit_rate(last.hits, last.queries), hit_rate(growth.hits, growth.queries)
    if abs(lifetime - now) <= FAR:
        return None
    finding = f"The lifetime rate ({lifetime:.1%}) is not this moment's: while the probe ran it was {now:.1%}."
    next_step = f"Use growth, never totals: {flag('counters', seen.facts)}."
    return Verdict("counters", EXPECTED, STRONG, finding, (*evidence, _lifetime(last)), next_step)


def gauge(seen: Observations) -> Verdict | None:
    """Whether SGLang's cache_hit_rate is the latest batch's rate, as it is meant, and how far that is from a rate over time."""
    known = [one for one in seen.sent if one.length]
    if seen.gauge is None or not 0 <= seen.gauge <= 1 or not known or known[-1].cached is None:
        return None  # no number is no share either
    latest = known[-1]
    evidence = (f"this probe's latest request: {numbers([latest.cached])} of {latest.length:,} cached",)
    if abs(seen.gauge - hit_rate(latest.cached, latest.length)) <= NEAR:
        finding = f"The gauge sglang:cache_hit_rate says {seen.gauge:.1%}, the latest batch's rate as it should: none over time."
        return Verdict("gauge", FINE, STRONG, finding, evidence)
    growth = seen.last_reading.growth_since(seen.first_reading)
    if not growth.is_known or not growth.queries or abs(seen.gauge - hit_rate(growth.hits, growth.queries)) <= FAR:
        return None
    finding = (
        f"The gauge sglang:cache_hit_rate says {seen.gauge:.1%}: that is the latest batch alone, while the probe ran "
        f"{hit_rate(growth.hits, growth.queries):.1%} were found."
    )
    return Verdict("gauge", EXPECTED, WEAK, finding, evidence, f"Leave the gauge; use {flag('counters', seen.facts)}.")
