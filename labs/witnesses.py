"""Witnesses: on a server the same requests are counted twice, by their own replies and by the server's counters.

    total      the sum of what replies report (usage)
    counted    the growth of the server's counter of tokens found
    queries    the growth of its counter of tokens looked up

Each is judged against the same prediction. One that is unknown is left out and named, never taken for 0, and two that
disagree are told side by side, never averaged: people have met counters that stand still while the cache works, and replies
that say nothing while it does. An engine in this process has one account, kept in two places; labs check that elsewhere.

What the counters grew by is judged as far as it can be these requests' account. Fewer lookups than were sent are no other
user's doing, nor are more finds than lookups: both miss their prediction. More lookups may be others' or a second count of the
same, which nobody can tell from outside: the growth is measured and told with its ratio to what was sent, and not judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Sequence

from labs.protocol import Measurement, Prediction
from labs.targets.base import CacheCounters, Completion

NO_COUNTERS = "the server's counters tell nothing of these requests: counted and queries are left out"
NO_USAGE = "replies do not tell what they found: total is left out, and the other counts are the counters'"

NOT_JUDGED = "queries that are more than was sent are not judged: others use this server, or it counts lookups more than once"

TRAFFIC = "traffic"  # kind of the doubts that others may be among what was counted
NUM_TOLD = 2  # doubts of one kind told in full


@dataclass(frozen=True)
class Doubt:
    """Where the witnesses of some requests disagree, or one cannot be heard."""

    kind: str  # the same for the same cause
    text: str  # one line


def tell_doubts(doubts: Iterable[Doubt]) -> list[str]:
    """Findings: the first of each kind in full, the others by their number."""
    by_kind: dict[str, list[str]] = {}
    for doubt in doubts:
        by_kind.setdefault(doubt.kind, []).append(doubt.text)
    lines = []
    for texts in by_kind.values():
        more = len(texts) - NUM_TOLD
        lines += texts[:NUM_TOLD] if more <= 0 else [*texts[: NUM_TOLD - 1], f"{texts[NUM_TOLD - 1]} (and {more} more like it)"]
    return lines


def are_witnessed(completions: Sequence[Completion]) -> bool:
    """Whether they came from a server, with its witnesses."""
    return any(completion.evidence is not None for completion in completions)


def reported_hits(completions: Sequence[Completion]) -> int | None:
    """Tokens found by all of them, as their replies report; None when any reply tells nothing."""
    reported = [None if one.evidence is None else one.evidence.usage for one in completions]
    return None if None in reported else sum(reported)


def counted_hits(completions: Sequence[Completion]) -> int | None:
    """The same by the counters' growth over each; None when it is unknown for any."""
    counted = [None if one.evidence is None else one.evidence.counted_hits for one in completions]
    return None if None in counted else sum(counted)


def judge_sums(
    group: str, row: str, completions: Sequence[Completion], counted: CacheCounters, hits: Prediction, queries: Prediction
) -> tuple[list[Measurement], list[Doubt]]:
    """Measurements of a series by both witnesses, and doubts where one cannot be heard or they disagree.

    counted        what the counters say of the whole series
    hits, queries  what all requests should find and look up
    """
    found: list[Measurement] = []
    doubts: list[Doubt] = []
    reported = reported_hits(completions)
    num_queries, num_hits = counted.growth or (None, None)
    is_more = num_queries is not None and num_queries > queries.value
    # Of as many lookups as were sent, without an account of them: some came late, from before.
    is_judged = num_queries is not None and not is_more and (
        counted.queries is not None or num_queries < queries.value or num_hits > num_queries
    )  # fmt: skip
    if reported is not None:
        note = "" if is_judged or is_more else NO_COUNTERS
        found.append(Measurement("total", "tokens", (reported,), group, row, hits, note=note))
    if is_judged:
        note = "" if reported is not None else NO_USAGE
        found.append(Measurement("counted", "tokens", (num_hits,), group, row, hits, note=note))
        found.append(Measurement("queries", "tokens", (num_queries,), group, row, queries))
    if is_more:
        found.append(Measurement("queries", "tokens", (num_queries,), group, row, note=NOT_JUDGED))
        doubts.append(doubt_of_traffic(f"{group}: {row}", num_queries, int(queries.value)))
    if reported is not None and is_judged and reported != num_hits:
        doubts.append(_told_apart(f"{group}: {row}", reported, num_hits))
    return found, doubts


def counted_beside(group: str, row: str, completions: Sequence[Completion], law: Prediction) -> list[Measurement]:
    """The counters' account of requests whose replies are measured elsewhere; empty when either witness is silent."""
    counted = counted_hits(completions)
    if counted is None or reported_hits(completions) is None:
        return []
    return [Measurement("counted", "tokens", (counted,), group, row, law)]


def disagreements(label: str, completions: Sequence[Completion]) -> list[Doubt]:
    """A doubt when replies and counters say different things of the same requests."""
    both = [one for one in completions if one.evidence is not None and None not in (one.evidence.usage, one.evidence.counted_hits)]
    if not any(one.evidence.disagrees for one in both):
        return []
    return [_told_apart(label, sum(one.evidence.usage for one in both), sum(one.evidence.counted_hits for one in both))]


def doubt_of_traffic(label: str, num_looked_up: int, num_due: int) -> Doubt:
    """That the counters saw what these requests cannot have been."""
    due = f"{num_due:,} are due (×{num_looked_up / num_due:.2f})" if num_due else "none are due"
    text = (
        f"{label}: the counters looked up {num_looked_up:,} tokens where {due}: others use this server, or it counts lookups more "
        "than once; its counters are not judged"
    )
    return Doubt(TRAFFIC, text)


def _told_apart(label: str, reported: int, counted: int) -> Doubt:
    text = (
        f"{label}: replies report {reported:,} cached tokens, the counters {counted:,}: one of the two is wrong, or they are not of "
        "the same requests (another replica's counters, a cache of whole replies in front)"
    )
    return Doubt("apart", text)
