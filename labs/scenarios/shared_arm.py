"""SharedArm: one cache, and series of requests that share their first tokens; what its unit leaves of them.

    request 1    ├── shared ───────────────────────┼── own ──┤     pays
    request n    ├── shared ───────────────────────┼── own ──┤     finds U·⌊shared/U⌋, if the prompt is longer
                 ├── U ──┼── U ──┼── U ──┤ lost ┤

A series' verdict comes from its prompts' own ids and the unit, and says so when the hits do not agree: shorter than one unit,
nothing can be reused, however many requests share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from labs import theory
from labs.cache_laws import CacheLaws
from labs.caches import Cache
from labs.protocol import LabSession, Measurement
from labs.scenarios.match_sweep import fitted_unit
from labs.series import Series, SeriesRequest, SeriesResult, prove_cold, run_series
from labs.witnesses import tell_doubts
from labs.workload import TokenIds


@dataclass(frozen=True)
class SharedSeries:
    """Requests that share their first tokens, sent to a cache that follows `laws`."""

    prompts: tuple[TokenIds, ...]
    laws: CacheLaws

    @property
    def unit(self) -> int:
        return self.laws.unit

    @property
    def shared(self) -> int:
        """Tokens they share, by their ids."""
        return theory.longest_match(self.prompts[1], self.prompts[:1])

    @property
    def length(self) -> int:
        return len(self.prompts[0])

    @property
    def row(self) -> str:
        return f"{len(self.prompts)} share {self.shared:,} of {self.length:,}"

    @property
    def series(self) -> Series:
        """With every request's prediction."""
        count, sizes = len(self.prompts), (self.shared, self.length)
        first = self.laws.predict(theory.reuse, 0, self.length)
        later = self.laws.predict(theory.reuse, *sizes)
        each = [first, *[later] * (count - 1)]
        requests = tuple(SeriesRequest(prompt, law) for prompt, law in zip(self.prompts, each))
        total = self.laws.total(each, theory.shared_prefix_hits, count, *sizes)
        queries = self.laws.predict(theory.queries, count, self.length)
        return Series(self.row, requests, total, queries, front_hits=self.laws.front_hits(self.length))

    def verdict(self, unit_name: str, hits: Sequence[int]) -> str:
        """What the unit does to the shared prefix, if the later requests' `hits` say the same."""
        if not hits:
            return "the server does not tell what was reused"
        laws, prefix, unit = self.laws, self.shared, self.unit
        longer = theory.next_longer_match(prefix + laws.num_front, unit, laws.num_dropped) - laws.num_front
        reused = int(laws.predict(theory.reuse, prefix, self.length).value)
        deviating = next((found for found in hits if found != reused), None)
        if deviating is not None:
            due = f"{reused:,} are due with a {unit_name} of {unit:,}"
            return f"NOT as predicted: of {prefix:,} shared tokens {deviating:,} are reused, {due}"
        if not reused:
            needed = f"one {unit_name} ({unit:,})"
            if laws.has_drafter:
                needed = f"two {unit_name}s of {unit:,}, of which the drafter gives up one"
            return (
                f"shared prefix ({prefix:,}) is shorter than {needed}: nothing can be reused, although "
                f"{len(hits)} later request(s) share it; the next prefix length that would hit is {longer:,}"
            )
        lost = prefix + laws.num_front - reused
        also = " and to the drafter" if laws.has_drafter else ""
        return f"of {prefix:,} shared tokens {reused:,} are reused and {lost:,} lost to {unit_name}s of {unit:,}{also}"


@dataclass(frozen=True)
class SharedArm:
    """One cache, and the series it serves, none of which begins like another."""

    title: str
    cache: Cache
    series: tuple[SharedSeries, ...]
    canary_ids: TokenIds  # longer than the unit, or it never could be warm
    is_fitted: bool = False  # its series tell the unit

    @property
    def is_own_unit(self) -> bool:
        """Whether hits come in the cache's own blocks or pages, not in a match unit of several."""
        return self.series[0].unit == self.cache.unit

    @property
    def unit_name(self) -> str:
        return ("block" if self.cache.is_hash else "page") if self.is_own_unit else "match unit"

    @property
    def num_requests(self) -> int:
        return sum(len(shared.prompts) for shared in self.series)

    def run(self, session: LabSession) -> tuple[list[Measurement], list[str], bool]:
        """All series: measurements, findings with a verdict on each, whether they started cold."""
        series = [shared.series for shared in self.series]
        tokens = sum(one.pool_tokens for one in series) + len(self.canary_ids)
        target = session.open_target(**self.cache.engine_fields, num_gpu_blocks=self.cache.blocks_for(tokens, self.num_requests))
        try:
            cold = prove_cold(session, target, self.canary_ids)
            results = [run_series(session, target, one, self.title) for one in series]
        finally:
            target.close()
        found = [_later_hits(result) for result in results]
        measurements = [one for result in results for one in result.measurements]
        verdicts = [shared.verdict(self.unit_name, hits) for shared, hits in zip(self.series, found)]
        if self.is_fitted and any(found):
            fitted, verdict = self._fit(found)
            session.record(*fitted)
            measurements += fitted
            verdicts.insert(0, verdict)
        doubts = [doubt for result in results for doubt in result.doubts]
        return measurements, [f"{self.title}: {'; '.join(verdicts)}", *tell_doubts(doubts)], cold

    def _fit(self, found: Sequence[Sequence[int]]) -> tuple[list[Measurement], str]:
        """The unit that explains the hits of each series' later requests, if one alone does; and that in words."""
        front = self.cache.num_front
        observed = [
            (shared.shared + front, shared.length + front, one) for shared, hits in zip(self.series, found) for one in hits
        ]
        fitted = fitted_unit(observed, self.series[0].unit, self.title, "all series")
        if fitted is None:
            advice = "" if self.is_own_unit else ": set match_shared_tokens to lengths on both sides of a multiple"
            fit = f"several units would explain that{advice}"
        else:
            fit = f"hits come in units of {fitted.value:,}" if fitted.agrees else "NOT what the match unit would do"
        steps = "; ".join(f"{match:,} shared tokens find {hits:,}" for match, _, hits in dict.fromkeys(observed))
        steps = steps if self.is_own_unit else f"blocks of {self.cache.unit}, yet {steps}"
        return [] if fitted is None else [fitted], f"{steps}: {fit}"


def _later_hits(result: SeriesResult) -> list[int]:
    """What each request after the first found, of those that tell."""
    hits = [completion.num_cached_tokens for completion in result.completions[1:]]
    return [one for one in hits if one is not None]
