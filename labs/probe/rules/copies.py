"""Whether each request reaches the engine more than once: a guard model reads it first, a gateway hedges or sends it again.

    lookups over each request     k times its tokens, k a whole number from 2 on
    new prompts                   found, as the later copy finds what the first one computed

Both together are copies; the hits are real, and half of the work is theirs. Where new prompts find nothing, the same lookups may
just be counted k times.
"""

from __future__ import annotations

from collections import Counter

from labs.probe.observation import Observations
from labs.probe.rules.words import control
from labs.probe.verdict import EXPECTED, FAULT, STRONG, WEAK, Verdict

MIN_REQUESTS = 6  # whose lookups are known: of fewer a whole multiple may be chance
MOSTLY = 0.8  # of them, where now and then somebody else is counted too


def copies(seen: Observations) -> Verdict | None:
    """How often the engine is asked for one request."""
    times = num_copies(seen)
    if times is None:
        return None
    growth, own = seen.last_reading.growth_since(seen.first_reading), sum(one.length or 0 for one in seen.sent)
    known = [one for one in seen.new_prompts.sent if one.cached is not None]
    evidence = (f"lookups over each of {len(_ratios(seen))} requests: nearly always {times} times its tokens",)
    evidence += (f"looked up meanwhile: {growth.queries:,} tokens, of this probe's own {own:,}",) if growth.is_known else ()
    evidence += (control(known),) if known else ()
    if seen.new_prompts.are_found or _later_copies_find(seen, times):
        finding = (
            f"Each request reaches the engine {times} times: the later copy finds what the first one computed, so prompts that "
            "nobody sent before look found, and every rate is too good."
        )
        next_step = (
            "What sends it again: a guard model that reads first, hedging, a retry? Count requests at the gateway and at the engine."
        )
        return Verdict("copies", FAULT, STRONG, finding, evidence, next_step)
    finding = (
        f"The counters grow by {times} times what was sent: each lookup is counted so often, or each request is sent so often, and "
        "its copies go where nothing is found."
    )
    return Verdict("copies", EXPECTED, WEAK, finding, evidence, "Ask the server itself, and take rates, not sums, from its counters.")


def num_copies(seen: Observations) -> int | None:
    """How many times what was sent was looked up, over nearly each request; None where that is once, or no whole number."""
    told = _ratios(seen)
    if len(told) < MIN_REQUESTS:
        return None
    ratio, number = Counter(told).most_common(1)[0]
    return int(ratio) if ratio >= 2 and ratio == int(ratio) and number >= MOSTLY * len(told) else None


def _later_copies_find(seen: Observations, times: int) -> bool:
    """Whether the counters show hits in most new prompts, where replies tell nothing."""
    new = [one for one in seen.sent if not one.turn and one.matched is None and one.length and one.counted.is_known]
    exact = [one for one in new if one.counted.queries == times * one.length]
    return bool(exact) and sum(one.counted.hits > 0 for one in exact) >= MOSTLY * len(exact)


def _ratios(seen: Observations) -> list[float]:
    return [one.counted.queries / one.length for one in seen.sent if one.counted.is_known and one.counted.queries and one.length]
