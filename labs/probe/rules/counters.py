"""Numbers that are true and mislead: lifetime rates, the latest batch's gauge, other people's traffic."""

from __future__ import annotations

from labs.probe.flags import flag
from labs.probe.observation import Observations
from labs.probe.own_rate import OwnRate
from labs.probe.verdict import EXPECTED, FAULT, FINE, STRONG, WEAK, Verdict

FAR = 0.15  # rates that differ by more mislead whoever takes one for the other
SLACK = 0.05  # of the probe's tokens: retries, and requests that are still being counted
MIN_SLACK = 64  # tokens


def counters(seen: Observations) -> Verdict | None:
    """Whether the server's counters tell this probe's requests, and what their lifetime rate says."""
    last, growth = seen.last_reading, seen.last_reading.growth_since(seen.first_reading)
    lengths = [one.length for one in seen.sent]
    if not (last.is_known and seen.first_reading.is_known) or None in lengths or seen.failures:
        return None
    own, counted_own = sum(lengths), sum(one.cached or 0 for one in seen.sent)
    if seen.is_jumping:
        return None  # several replicas answer in turn: their rule tells it
    if not growth.is_known or seen.num_falls:
        finding = "The counters fell while the probe ran: the server was restarted, or several replicas answer /metrics."
        evidence = (f"looked up before: {seen.first_reading.queries:,}, after: {last.queries:,}",)
        evidence += (f"readings lower than the one before: {seen.num_falls:,}",) if seen.num_falls else ()
        return Verdict("counters", FAULT, STRONG, finding, evidence, "Read each replica's counters, and only their growth.")
    evidence = (
        f"looked up meanwhile: {growth.queries:,} tokens, of this probe's own {own:,}",
        f"found: {growth.hits:,}, own {counted_own:,}",
    )
    slack = max(MIN_SLACK, SLACK * own)
    if growth.queries < own - slack and growth.queries:
        finding = "The counters saw only a part of this probe's requests: another replica answered the rest."
        return Verdict("counters", EXPECTED, STRONG, finding, evidence, "Read each replica's counters and add them up.")
    lifetime = f"since the server started: {last.hits:,} of {last.queries:,} tokens"
    if growth.queries > own + slack:
        finding = "Others send requests too: counters over the same time mix their traffic with this probe's."
        next_step = (
            f"For a rate of your own traffic use usage, or a quiet server; for the whole server {flag('counters', seen.facts)}."
        )
        return Verdict("counters", EXPECTED, STRONG, finding, (*evidence, lifetime), next_step)
    rate = OwnRate.of(seen).value
    if last.queries > 2 * own and rate is not None and abs(last.hits / last.queries - rate) > FAR:
        finding = (
            f"The lifetime rate ({last.hits / last.queries:.1%}) is not this moment's: this probe's repeats found {rate:.1%}."
        )
        return Verdict(
            "counters",
            EXPECTED,
            STRONG,
            finding,
            (*evidence, lifetime),
            f"Use growth, never totals: {flag('counters', seen.facts)}.",
        )
    return Verdict("counters", FINE, STRONG, "The counters grow by what this probe sent.", evidence)


def gauge(seen: Observations) -> Verdict | None:
    """Whether SGLang's cache_hit_rate is read as a rate: it is the latest batch's, and 0 after any new prompt."""
    rate = OwnRate.of(seen).value
    if seen.gauge is None or rate is None or abs(seen.gauge - rate) <= FAR:
        return None
    finding = (
        f"The gauge sglang:cache_hit_rate says {seen.gauge:.1%}: that is the latest batch alone, this probe's "
        f"repeats found {rate:.1%}."
    )
    return Verdict("gauge", EXPECTED, WEAK, finding, (), f"Leave the gauge; use {flag('counters', seen.facts)}.")
