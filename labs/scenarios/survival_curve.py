"""SurvivalCurve: how much of their own tokens resumed requests found again, by the size of the pool.

    survival = found / looked up, over resumed requests only      near 1: recompute was nearly free; 0: all was computed twice

Where nobody was preempted there is no survival, and the curve has no point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, Mapping

from labs.chart import Chart, ChartSeries
from labs.scenarios.preemption_series import Run


@dataclass(frozen=True)
class SurvivalCurve:
    """One cache's."""

    cache_title: str
    survival: dict[int, float]  # by pool, in tokens

    @classmethod
    def of(cls, cache_title: str, runs: Mapping[int, Run]) -> SurvivalCurve:
        """From one run for each pool."""
        return cls(cache_title, {pool: run.survival for pool, run in runs.items() if run.survival is not None})

    @property
    def text(self) -> str:
        """"99% at 240, 85% at 224 (pool, in tokens)"; empty where nobody was preempted."""
        told = ", ".join(f"{share:.0%} at {pool:,}" for pool, share in self.survival.items())
        return f"{told} (pool, in tokens)" if told else ""


def survival_chart(title: str, curves: Iterable[SurvivalCurve]) -> Chart:
    """One line a cache, from the tightest pool up."""
    series = tuple(
        ChartSeries(curve.cache_title, points=tuple(sorted((float(pool), share) for pool, share in curve.survival.items())))
        for curve in curves
        if curve.survival
    )
    return Chart("lines", title, series, "ratio", "pool, in tokens", "found / looked up by resumed requests")
