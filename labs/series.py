"""A series of requests, sent one after the other: each with its predicted hit, all checked against two counts.

Each request tells what it found (`num_cached_tokens`), and the cache counts what was looked up and found in all. The
two come from different places, so a series also says when they disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence

from labs.protocol import LabSession, Measurement, Prediction
from labs.targets.base import Completion, Target, TargetError


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

    @property
    def ttfts_s(self) -> list[float]:
        return [completion.ttft_s for completion in self.completions]

    def by_request(self) -> list[dict[str, Any]]:
        """JSON-ready evidence, one entry a request: predicted and found tokens, and the time."""
        return [
            {
                "prompt_tokens": completion.num_prompt_tokens,
                "predicted_hits": request.hits.value,
                "hits": completion.num_cached_tokens,
                "ttft_s": completion.ttft_s,
            }
            for request, completion in zip(self.series.requests, self.completions)
        ]


def run_series(session: LabSession, target: Target, series: Series, group: str, max_tokens: int = 1) -> SeriesResult:
    """Send a series and record its measurements under the table `group`.

    Raises TargetError when the requests' own reports and the cache's counters disagree: then neither can be trusted.
    """
    target.counters()  # start from zero
    completions: list[Completion] = []
    try:
        for request in series.requests:
            completions.append(target.complete(request.token_ids, max_tokens=max_tokens, cache_salt=request.cache_salt))
            session.progress(f"{group}: {series.row}")
    except BaseException:
        session.record(*_by_request(series, completions, group))  # what was measured is kept, Ctrl-C or not
        raise
    counted = target.counters()
    reported = [completion.num_cached_tokens for completion in completions]
    if None not in reported and sum(reported) != counted.hits:
        raise TargetError(f"{series.row}: requests report {sum(reported)} cached tokens, the counters say {counted.hits}")
    measurements = _measurements(series, completions, counted.hits, counted.queries, group)
    session.record(*measurements)
    return SeriesResult(series, tuple(completions), tuple(measurements))


def prove_cold(session: LabSession, target: Target, canary_ids: Sequence[int]) -> bool:
    """Empty the cache and prove it: a prompt that was warm must miss. Its own traffic is left out of all counts."""
    # Longer than a block, or it could never hit; repeating it keeps its first token.
    canary_ids = tuple(canary_ids) * -(-(target.info.unit_size + 1) // len(canary_ids))
    # It is warm from the phase before, except the first time.
    warm = target.complete(canary_ids).num_cached_tokens or target.complete(canary_ids).num_cached_tokens
    reset = target.reset()
    after = target.complete(canary_ids).num_cached_tokens
    target.counters()
    # A canary that never was warm proves nothing by missing.
    cold = bool(warm) and reset and after == 0
    session.cold("cold" if cold else "uncontrolled")
    return cold


def _by_request(series: Series, completions: Sequence[Completion], group: str) -> list[Measurement]:
    """Hits of the first and of each later request, and times by whether a hit was predicted."""
    laws = [request.hits for request in series.requests[: len(completions)]]
    cached = [completion.num_cached_tokens for completion in completions]
    found: list[Measurement] = []

    def add(name: str, unit: str, samples: Sequence[float], law: Prediction | None = None) -> None:
        if samples:
            found.append(Measurement(name, unit, tuple(samples), group, series.row, law, key=name.startswith("later")))

    add("first", "tokens", cached[:1], laws[0] if laws else None)
    # Later requests with one law share a measurement; each of its samples must equal the prediction.
    for number, law in enumerate(dict.fromkeys(laws[1:]), start=1):
        samples = [tokens for tokens, other in zip(cached[1:], laws[1:]) if other == law]
        add("later" if number == 1 else f"later ({number})", "tokens", samples, law)
    for name, warm in (("ttft_cold", False), ("ttft_warm", True)):
        if not series.is_control:
            add(name, "s", [completion.ttft_s for completion, law in zip(completions, laws) if (law.value > 0) is warm])
    if series.is_control:
        add("ttft_control", "s", [completion.ttft_s for completion in completions])
    return found


def _measurements(
    series: Series, completions: Sequence[Completion], num_hits: int, num_queries: int, group: str
) -> list[Measurement]:
    """By request, with the sums between counts and times: hits of all, and tokens looked up."""
    found = _by_request(series, completions, group)
    sums = [
        Measurement("total", "tokens", (num_hits,), group, series.row, series.total),
        Measurement("queries", "tokens", (num_queries,), group, series.row, series.queries),
    ]
    return [one for one in found if one.unit != "s"] + sums + [one for one in found if one.unit == "s"]
