"""Line fit: the line through points with the least squared vertical distance, and how much of their spread it explains."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Sequence


@dataclass(frozen=True)
class LineFit:
    """y = intercept + slope · x."""

    intercept: float
    slope: float
    r_squared: float  # 1: every point lies on the line; 0: it says no more than the mean does

    @classmethod
    def of(cls, xs: Sequence[float], ys: Sequence[float]) -> LineFit:
        """Fit at least two points of different x. Raises ValueError otherwise."""
        if len(set(xs)) < 2:
            raise ValueError(f"xs hold {len(set(xs))} different values; accepted: at least 2")
        slope, intercept = statistics.linear_regression(xs, ys)
        mean = statistics.fmean(ys)
        spread = sum((y - mean) ** 2 for y in ys)
        missed = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys))
        return cls(intercept, slope, 1 - missed / spread if spread else 1.0)

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x
