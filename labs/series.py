"""A series of requests, sent one after the other: each with its predicted hit, all checked against two counts.

Each request tells what it found (`num_cached_tokens`), and the cache counts what was looked up and found in all. The
two come from different places, so a series also says when they disagree: in this process by an error, on a server, which
is not ours, by measuring both (labs/witnesses.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Sequence

from labs.cache_laws import CacheLaws
from labs.protocol import LabSession, Measurement, Prediction
from labs.targets.base import CacheCounters, Completion, Target, TargetError
from labs.witnesses import Doubt, are_witnessed, judge_sums


@dataclass(frozen=True)
class SeriesRequest:
    """One request, and what it should find in the cache."""

    token_ids: Sequence[int] = field(repr=False)
    hits: Prediction  # tokens
    cache_salt: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Series:
    """One scenario: its requests in order, and the laws of their sums."""

    row: str  # the scenario's name in the table
    requests: tuple[SeriesRequest, ...]
    total: Prediction  # tokens found by all requests
    queries: Prediction  # tokens looked up by all requests
    is_control: bool = False  # its times are the cost of a miss, whatever few tokens it happens to find
    front_hits: int = 0  # tokens that any request finds, because its server puts the same in front of all: no reuse

    @property
    def pool_tokens(self) -> int:
        """Tokens it adds to the cache: what is not found must be stored."""
        return sum(len(request.token_ids) - int(request.hits.value) for request in self.requests)


@dataclass(frozen=True)
class SeriesResult:
    """What a series brought: completions in order, and the measurements made of them."""

    series: Series
    completions: tuple[Completion, ...]
    measurements: tuple[Measurement, ...]
    doubts: tuple[Doubt, ...] = ()  # of a server whose witnesses disagree

    @property
    def ttfts_s(self) -> list[float]:
        return [completion.ttft_s for completion in self.completions]

    def by_request(self) -> list[dict[str, Any]]:
        """JSON-ready evidence, one entry a request: predicted and found tokens, and the time; a server's two witnesses."""
        entries = []
        for request, completion in zip(self.series.requests, self.completions):
            entry: dict[str, Any] = {
                "prompt_tokens": completion.num_prompt_tokens,
                "predicted_hits": request.hits.value,
                "hits": completion.num_cached_tokens,
                "ttft_s": completion.ttft_s,
            }
            if completion.evidence is not None:
                entry |= {"usage": completion.evidence.usage, "counted": completion.evidence.counted_hits}
            entries.append(entry)
        return entries


def run_series(
    session: LabSession, target: Target, series: Series, group: str, max_tokens: int = 1, unjudged: str = ""
) -> SeriesResult:
    """Send a series and record its measurements under the table `group`.

    unjudged  why its finds are measured without a prediction: what they would find may be gone; empty: they are judged

    Raises TargetError when, in this process, the requests' own reports and the cache's counters disagree: then neither
    can be trusted.
    """
    target.counters()  # start from zero
    completions: list[Completion] = []
    try:
        for request in series.requests:
            completions.append(target.complete(request.token_ids, max_tokens=max_tokens, cache_salt=request.cache_salt))
            session.progress(f"{group}: {series.row}")
    except BaseException:
        session.record(*_judged(_by_request(series, completions, group), unjudged))  # what was measured is kept, Ctrl-C or not
        raise
    counted = target.counters()
    sums, doubts = _sums(series, completions, counted, group)
    found = _by_request(series, completions, group)
    measurements = [one for one in found if one.unit != "s"] + sums + [one for one in found if one.unit == "s"]
    measurements = _judged(measurements, unjudged)
    session.record(*measurements)
    return SeriesResult(series, tuple(completions), tuple(measurements), tuple(doubts))


def prove_cold(session: LabSession, target: Target, canary_ids: Sequence[int]) -> bool:
    """Empty the cache and prove it: a prompt that was warm must miss. Its own traffic is left out of all counts.

    A server that cannot be emptied gives every token another name at a reset, which empties it for this run; so does one that
    says it was emptied, and then still finds the prompt.
    """
    laws = CacheLaws.of(session.open_target.served) or CacheLaws(target.info.unit_size)
    # Longer than a block (than two beside a drafter), or it could never hit; repeating it keeps its first token.
    shortest = (1 + laws.num_dropped) * laws.unit + 1
    canary_ids = tuple(canary_ids) * -(-shortest // len(canary_ids))
    canary_ids = canary_ids[: target.info.max_model_len - 1]  # of a block that no prompt fills, it never hits
    miss = laws.front_hits(len(canary_ids))
    # It is warm from the phase before, except the first time.
    warm = _hits(target, canary_ids)
    warm = warm if warm > miss else _hits(target, canary_ids)
    reset = target.reset()
    after = target.complete(canary_ids).num_cached_tokens
    if reset and warm > miss and after is not None and after > miss and target.rename():
        after = target.complete(canary_ids).num_cached_tokens
    target.counters()
    # A canary that never was warm proves nothing by missing, nor does one whose hits are unknown.
    cold = warm > miss and reset and after is not None and after <= miss
    session.cold("cold" if cold else "uncontrolled")
    return cold


def _judged(measurements: list[Measurement], unjudged: str) -> list[Measurement]:
    """Without their predictions, if there is a reason not to judge them."""
    if not unjudged:
        return measurements
    note = f"not judged: {unjudged}"
    return [one if one.predicted is None else replace(one, predicted=None, key=False, note=note) for one in measurements]


def _hits(target: Target, token_ids: Sequence[int]) -> int:
    """Tokens that a prompt finds; an unknown number is as good as none."""
    return target.complete(token_ids).num_cached_tokens or 0


def _by_request(series: Series, completions: Sequence[Completion], group: str) -> list[Measurement]:
    """Hits of the first and of each later request, and times by whether a hit was predicted."""
    laws = [request.hits for request in series.requests[: len(completions)]]
    cached = [completion.num_cached_tokens for completion in completions]
    num_unknown = cached.count(None)
    note = f"{num_unknown} of {len(cached)} requests tell nothing of their hits, and are left out" if num_unknown else ""
    found: list[Measurement] = []

    def add(name: str, unit: str, samples: Sequence[float | None], law: Prediction | None = None) -> None:
        known = tuple(sample for sample in samples if sample is not None)
        if known:
            told = note if unit == "tokens" else ""
            found.append(Measurement(name, unit, known, group, series.row, law, note=told, key=name.startswith("later")))

    add("first", "tokens", cached[:1], laws[0] if laws else None)
    # Later requests with one law share a measurement; each of its samples must equal the prediction.
    for number, law in enumerate(dict.fromkeys(laws[1:]), start=1):
        samples = [tokens for tokens, other in zip(cached[1:], laws[1:]) if other == law]
        add("later" if number == 1 else f"later ({number})", "tokens", samples, law)
    for name, warm in (("ttft_cold", False), ("ttft_warm", True)):
        if not series.is_control:
            due = [law.value > series.front_hits for law in laws]
            add(name, "s", [completion.ttft_s for completion, is_warm in zip(completions, due) if is_warm is warm])
    if series.is_control:
        add("ttft_control", "s", [completion.ttft_s for completion in completions])
    return found


def _sums(
    series: Series, completions: Sequence[Completion], counted: CacheCounters, group: str
) -> tuple[list[Measurement], list[Doubt]]:
    """Tokens found and looked up by all requests, by every witness there is; doubts about a server's."""
    if are_witnessed(completions):
        return judge_sums(group, series.row, completions, counted, series.total, series.queries)
    reported = [completion.num_cached_tokens for completion in completions]
    if None not in reported and sum(reported) != counted.hits:
        raise TargetError(f"{series.row}: requests report {sum(reported)} cached tokens, the counters say {counted.hits}")
    sums = [
        Measurement("total", "tokens", (counted.hits,), group, series.row, series.total),
        Measurement("queries", "tokens", (counted.queries,), group, series.row, series.queries),
    ]
    return sums, []
