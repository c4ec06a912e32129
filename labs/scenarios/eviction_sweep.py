"""EvictionSweep: cycles that differ in one number, to find the cliff beyond which prompts in turn no longer hit.

    working sets    1, 2, 3 … prompts in turn in one pool
    pools           the same prompts in pools of other sizes

A sweep makes the rows of a table, the points of a chart and a finding; who sends the cycles hands back one hit rate for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Sequence

from labs.chart import Chart, ChartSeries
from labs.scenarios.eviction_series import Cycle


@dataclass(frozen=True)
class EvictionSweep:
    """The cycles, and what table and chart are called."""

    cycles: dict[int, Cycle]  # by what is varied: the chart's x
    x_label: str
    row: str  # of the table: "pool for {:,}"
    group: str
    chart_title: str

    @classmethod
    def over_working_sets(cls, sizes: Sequence[int], prompt_tokens: int, pool_tokens: int, rounds: int) -> EvictionSweep:
        """More and more prompts in a pool of one size."""
        return cls(
            {size: Cycle(size, size * rounds, prompt_tokens, pool_tokens) for size in sizes},
            "prompts in turn",
            "{:,} in turn",
            f"More prompts in turn, {prompt_tokens:,} tokens each, pool for {pool_tokens:,}, {rounds} turns",
            "One prompt more than fits: hits fade with tails first, and end at once where a prompt dies whole",
        )

    @classmethod
    def over_pools(cls, pools: Sequence[int], prompt_tokens: int, num_prompts: int, rounds: int) -> EvictionSweep:
        """The same prompts in pools of other sizes."""
        return cls(
            {pool: Cycle(num_prompts, num_prompts * rounds, prompt_tokens, pool) for pool in pools},
            "pool, in tokens",
            "pool for {:,}",
            f"Pools of other sizes, {num_prompts} prompts of {prompt_tokens:,} tokens in turn, {rounds} turns",
            "The cliff: below the working set hits fade over one prompt's length, or end at once",
        )

    @property
    def num_requests(self) -> int:
        return sum(cycle.num_requests for cycle in self.cycles.values())

    def findings(self, rates: Mapping[str, Sequence[float]]) -> list[str]:
        """What each order's rates are, cycle by cycle; orders that agree to a per cent share a line."""
        alike: dict[tuple[float, ...], list[str]] = {}
        for title, found in rates.items():
            alike.setdefault(tuple(round(rate, 2) for rate in found), []).append(title)
        return [
            f"{'; '.join(titles)}: hit rate after the first turn {_course(list(self.cycles), found)} ({self.x_label})"
            for found, titles in alike.items()
        ]

    def chart(self, rates: Mapping[str, Sequence[float]]) -> Chart:
        """One line an order."""
        xs = [float(x) for x in self.cycles]
        lines = tuple(ChartSeries(title, points=tuple(zip(xs, found))) for title, found in rates.items())
        return Chart("lines", self.chart_title, lines, "ratio", self.x_label, "hit rate after the first turn")


def _course(xs: Sequence[int], rates: Sequence[float]) -> str:
    """"99% at 1–4, 49% at 5, 0% at 6–8": equal neighbours together."""
    runs: list[list[int]] = []
    for index, rate in enumerate(rates):
        if index and rate == rates[index - 1]:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(
        f"{rates[run[0]]:.0%} at {xs[run[0]]:,}" + (f"–{xs[run[-1]]:,}" if len(run) > 1 else "") for run in runs
    )
