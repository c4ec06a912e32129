"""Judgement: every rule, asked about the same observations. A rule that has nothing to say is silent.

    replies      were requests answered                     caching     is anything cached at all
    usage        do replies tell what was found             identity    do equal prompts carry equal identities
    metrics      are there counters                         salts       does a cache_salt separate
    stream       do streams report usage                    replicas    how many caches answer here
    impossible   more found than can be                     front       does something put tokens in front
    witnesses    do usage, counters and times agree         chat        does the chat template vary
    counters     what the counters' totals mix              bos         the opening token twice
    gauge        SGLang's gauge of the latest batch         unit        of how many tokens is a hit a multiple
    strangers    are prompts found that nobody sent         aligned     one unit less for whole units
    timing       are repeats answered sooner                drafter     one unit less at every length
    pool         how much is kept                           shared      are fronts found under another tail
    length       may a request be as long as one's own      cut         are prompts cut on their way
    long         are long prompts found as short ones are   repeats     did they find less, and no rule says why
    kept         does a cache of replies answer repeats     copies      is each request sent on more than once
"""

from __future__ import annotations

from typing import Callable

from labs.probe.observation import Observations
from labs.probe.rules.caching import caching, identity, salts
from labs.probe.rules.copies import copies
from labs.probe.rules.counters import counters, gauge
from labs.probe.rules.fronts import bos, chat, front
from labs.probe.rules.kept_replies import kept_replies
from labs.probe.rules.long_prompts import cut, long_prompts
from labs.probe.rules.pool import length, pool
from labs.probe.rules.replicas import replicas
from labs.probe.rules.reports import impossible, metrics, replies, stream, usage, witnesses
from labs.probe.rules.shortfall import repeats
from labs.probe.rules.timing import timing
from labs.probe.rules.units import aligned, drafter, shared, strangers, unit
from labs.probe.verdict import Verdict, worst_first

RULES: tuple[Callable[[Observations], Verdict | None], ...] = (
    length, cut, caching, identity, kept_replies, copies, replicas, long_prompts, front, chat, bos, usage, metrics, unit,
    strangers, impossible, witnesses, salts, shared,
    replies, pool, drafter, aligned, counters, gauge, stream, timing,
)  # fmt: skip


def judge(seen: Observations) -> list[Verdict]:
    """All verdicts, the worst first."""
    found = [verdict for rule in RULES if (verdict := rule(seen)) is not None]
    left = repeats(seen, found)
    return worst_first(found if left is None else [*found, left])
