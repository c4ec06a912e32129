"""ArrivalComparison: the same arrivals served without a cache, and with one that holds their shared start already.

                     10/s   20/s   40/s   all at once
    no cache          ·      ·      ·      ·             every prompt computed whole
    cached            ·      ·      ·      ·             what each has of its own

Requests that come all at once show how many a second an engine serves when it is full. Above that rate the queue grows with
every request, and what users wait for is the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from labs.caches import Cache
from labs.chart import Chart, ChartSeries
from labs.protocol import LabSession, Measurement
from labs.scenarios.arrival_series import ArrivalSeries
from labs.series import prove_cold
from labs.workload import TokenIds

NO_CACHE, CACHED = "no cache", "cached"


@dataclass(frozen=True)
class ArrivalComparison:
    """What both brought, rate by rate."""

    measurements: tuple[Measurement, ...]
    is_cold: bool  # whether every cache was proven to be empty before it got the shared start

    def served(self, title: str) -> Measurement:
        """Requests served a second when all come at once, with their prediction."""
        return next(one for one in self.measurements if one.name == "served/s" and _of(one) == (title, None))

    def median_s(self, title: str, requests_per_s: float) -> float:
        """The median time to first token at that rate."""
        return next(one.value for one in self.measurements if one.name == "p50" and _of(one) == (title, requests_per_s))

    @property
    def chart(self) -> Chart:
        """Percentiles of the time to first token over the rate."""
        lines: dict[str, list[tuple[float, float]]] = {}
        for one in self.measurements:
            title, rate = _of(one)
            if one.unit == "s" and rate is not None:
                lines.setdefault(f"{title}, {one.name}", []).append((rate, one.value))
        series = tuple(ChartSeries(name, points=tuple(sorted(points))) for name, points in lines.items())
        return Chart("lines", "Above saturation the queue decides", series, "s", "arrivals (requests/s)", "time to first token")


def compare_arrivals(
    session: LabSession, cache: Cache, series: Sequence[ArrivalSeries], primer: TokenIds, canary_ids: TokenIds
) -> ArrivalComparison:
    """Serve each series from a cache of its own, or from none if its title is NO_CACHE. Only on a simulated clock.

    series  with the same prompts
    primer  a prompt more that shares their start: sent first, uncounted, it fills a cache
    """
    num_prompts = len(series[0].prompts) + 1
    num_blocks = cache.blocks_for(len(primer) * num_prompts, num_prompts)
    found: list[Measurement] = []
    is_cold = True
    for one in series:
        caching = {"enable_prefix_caching": False} if one.title == NO_CACHE else {}
        target = session.open_target(**cache.engine_fields, **caching, num_gpu_blocks=num_blocks)
        try:
            if not caching:
                is_cold = prove_cold(session, target, canary_ids) and is_cold
                target.complete(primer)
                target.counters()
            found += one.run(session, target)
        finally:
            target.close()
    return ArrivalComparison(tuple(found), is_cold)


def _of(one: Measurement) -> tuple[str, float | None]:
    """Without a cache or with one, and at which rate; None: all at once."""
    return one.params["title"], one.params["requests_per_s"]
