"""CostLine: times to first token over the FLOPs of what was computed, and the line through them.

    time = fixed cost + FLOPs / rate        R²: how much of the spread of times the FLOPs explain

Prompts of several cached and new lengths make the points. On a simulated clock only those count whose time arithmetic decides:
where a step's reading of all weights takes longer, its time says nothing of FLOPs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from engine.model.simulated_runner import STEP_OVERHEAD_S
from labs import theory
from labs.chart import Chart, ChartSeries
from labs.line_fit import LineFit
from labs.protocol import Measurement
from labs.scenarios.prefill_series import TIME_TOLERANCE_S
from labs.targets.base import Target


@dataclass(frozen=True)
class CostLine:
    """What one cache's prompts took, and what follows from it."""

    times: tuple[Measurement, ...]  # as PrefillSeries measures them, one an arm
    fit: LineFit | None  # seconds over FLOPs; None: fewer than two prompts that arithmetic decides

    @classmethod
    def through(cls, found: Sequence[Measurement], target: Target) -> CostLine:
        """The line through every sample of every time among the measurements."""
        times = tuple(one for one in found if one.name == "ttft")
        points = [
            (flops, seconds)
            for one in times
            for flops, seconds in zip(one.params["flops"], one.samples)
            if one.predicted is None or _is_arithmetic(target, flops, one.params["uncached_tokens"], one.predicted.value)
        ]
        xs, ys = [flops for flops, _ in points], [seconds for _, seconds in points]
        return cls(times, LineFit.of(xs, ys) if len(set(xs)) > 1 else None)

    def chart(self, title: str) -> Chart:
        """Time over new tokens, a line for each number of cached ones; beside the fewest cached what the fit says."""
        lines: dict[int, list[tuple[float, float]]] = {}
        for one in self.times:
            lines.setdefault(one.params["cached_tokens"], []).append((one.params["uncached_tokens"], one.value))
        series = [ChartSeries(f"{cached:,} cached", points=tuple(sorted(points))) for cached, points in lines.items()]
        if self.fit is not None:
            least = min(lines)
            alike = [one.params for one in self.times if one.params["cached_tokens"] == least]
            points = sorted((params["uncached_tokens"], self.fit.at(params["flops"][0])) for params in alike)
            series.append(ChartSeries(f"line fitted to FLOPs, {least:,} cached", points=tuple(points)))
        return Chart("lines", title, tuple(series), "s", "uncached tokens", "time to first token")


def _is_arithmetic(target: Target, num_flops: int, num_tokens: int, predicted_s: float) -> bool:
    """Whether arithmetic, not reading, decides a predicted time on the simulated clock."""
    runner: Any = target.engine.runner
    num_steps = -(-num_tokens // target.engine.config.max_num_batched_tokens)
    arithmetic_s = num_flops / theory.achieved_flops_per_s(runner.gpu, runner.mfu)
    return predicted_s <= arithmetic_s + num_steps * STEP_OVERHEAD_S + TIME_TOLERANCE_S
