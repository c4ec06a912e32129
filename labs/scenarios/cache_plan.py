"""CachePlan: what one cache is asked, in order, in phases that share a cold start.

    phase    proven cold ── prime: one prompt, uncounted ── series ── series ── …
    plan     phase ── phase ── …                            all predictions made, nothing sent yet

How large a pool it wants: in this process a lab chooses the pool, and one that is not about eviction takes room for all of its
longest phase. A server's pool is as large as it is and drops what was used longest ago, so a series wants only what lies between
its last request and the earliest one that it is due to find:

    a phase                         ├─ prime ─┼─ series 1 ─┼─ … ─┼─ this series ─┤
    finds what was sent before it   ├────────────────────────────────────────────┤
    finds its own requests                                       ├───────────────┤
    finds nothing                                                     ├ a prompt ─┤

Where that is more than a server keeps, finds are measured and not judged.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import DEFAULT_POOL_TOKENS
from labs.caches import Cache
from labs.protocol import LabSession
from labs.series import Series, SeriesResult, prove_cold, run_series
from labs.targets.base import Target
from labs.workload import TokenIds


@dataclass(frozen=True)
class Phase:
    """Series that share one cold start."""

    series: tuple[Series, ...]
    canary_ids: TokenIds  # of the same workload: another's may begin like one of these prompts
    prime: TokenIds = ()  # a prompt sent before the series, uncounted, that they start from

    def all_tokens(self, unit: int) -> int:
        """Tokens of a cache that keeps everything."""
        return len(self.prime) + sum(_stored_tokens(series, unit) for series in self.series)

    def reaches(self, unit: int) -> list[int]:
        """For each series, tokens of a cache that drops what was used longest ago and still finds what is due."""
        before, reaches = len(self.prime), []
        for series in self.series:
            own = _stored_tokens(series, unit)
            before += own
            first, *later = (request.hits.value > series.front_hits for request in series.requests)
            if first:
                reaches.append(before)
            elif any(later):
                reaches.append(own)
            else:
                reaches.append(max(len(request.token_ids) for request in series.requests) + 2 * unit)
        return reaches


@dataclass(frozen=True)
class CachePlan:
    """One cache and its phases."""

    cache: Cache
    phases: tuple[Phase, ...]

    @property
    def title(self) -> str:
        return self.cache.title

    @property
    def series(self) -> list[Series]:
        return [series for phase in self.phases for series in phase.series]

    @property
    def num_requests(self) -> int:
        return sum(len(series.requests) for series in self.series)

    @property
    def num_pool_blocks(self) -> int:
        """Blocks, the null block included, for the phase that needs most."""
        unit, is_chosen = self.cache.unit, bool(self.cache.engine_fields)
        tokens = max(phase.all_tokens(unit) if is_chosen else max(phase.reaches(unit)) for phase in self.phases)
        canary = 1024 + 4 * unit
        return -(-max(tokens + canary, DEFAULT_POOL_TOKENS if is_chosen else 0) // unit) + 1

    def run(self, session: LabSession, target: Target) -> tuple[dict[str, SeriesResult], bool]:
        """Results by scenario, and whether every phase started from a proven cold cache."""
        results: dict[str, SeriesResult] = {}
        # In this process a pool is the lab's choice, and what it evicts is shown. A server's cannot be helped.
        is_served = session.open_target.served is not None and target.info.num_blocks is not None
        pool = target.info.num_blocks * self.cache.unit if is_served else None
        cold = True
        for phase in self.phases:
            cold = prove_cold(session, target, phase.canary_ids) and cold
            if phase.prime:
                target.complete(phase.prime)
            for series, reach in zip(phase.series, phase.reaches(self.cache.unit)):
                is_kept = pool is None or reach <= pool
                unjudged = "" if is_kept else f"the pool keeps {pool:,} tokens, and these finds need {reach:,}"
                results[series.row] = run_series(session, target, series, self.title, unjudged=unjudged)
        return results, cold


def _stored_tokens(series: Series, unit: int) -> int:
    # For each request a partial block, and room for the tokens sampled.
    return series.pool_tokens + 2 * unit * len(series.requests)
