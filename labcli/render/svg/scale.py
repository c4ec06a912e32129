"""Scale: from values to places along an axis, with round numbers to write beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Sequence

from labcli.render.svg.canvas import text_width


@dataclass(frozen=True)
class Scale:
    """The values at the two ends of an axis."""

    low: float
    high: float
    is_log: bool = False

    @classmethod
    def over(cls, values: Sequence[float], *, from_zero: bool = True, is_log: bool = False, full: float | None = None) -> Scale:
        """An axis on which all values have a place.

        from_zero  it begins at 0, or below for negative values; a bar's length means nothing otherwise
        is_log     each equal step multiplies; only for values above 0, else ignored
        full       the end at least: 100 for per cent
        """
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if is_log and low > 0 and high > low:
            return cls(low, high, True)
        if from_zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if full is not None:
            high = max(high, full)
        return cls(low, high if high > low else low + 1.0)

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def rounded(self, most: int = 5) -> Scale:
        """The same axis up to its next tick, so that no value lies above the last one."""
        if self.is_log:
            return self
        step = _round_step((self.high - self.low) / most)
        return Scale(math.floor(self.low / step + 1e-9) * step, math.ceil(self.high / step - 1e-9) * step)

    def ticks(self, most: int = 5) -> list[float]:
        """Round numbers between the ends, at most so many."""
        if self.is_log:
            return self._log_ticks(most)
        step = _round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first
        return [(first + number) * step for number in range(count + 1)]

    def _log_ticks(self, most: int) -> list[float]:
        for base in (2, 10):
            first, last = math.ceil(math.log(self.low, base) - 1e-9), math.floor(math.log(self.high, base) + 1e-9)
            if base == 10 or last - first + 1 <= 2 * most:
                powers = range(first, last + 1)
                step = max(1, -(-len(powers) // most))
                if len(powers) >= 2:
                    return [float(base) ** power for power in powers[::step]]
        return [self.low, self.high]


def full_scale(unit: str, values: Sequence[float]) -> float | None:
    """Where an axis of shares ends, so that a half looks like a half; None for what has no whole."""
    if unit == "ratio" and max(values, default=2) <= 1:
        return 1.0
    return 100.0 if unit == "%" else None


def short_number(value: float) -> str:
    """A tick's number: 1,500, 0.25, 2.5M."""
    size = abs(value)
    if size and (size >= 1e15 or size < 1e-4):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+", "e")
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= limit:
            return f"{value / limit:.4g}{letter}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"


def fitting_ticks(scale: Scale, width: float, most: int = 5) -> list[float]:
    """Ticks whose numbers do not touch on an axis `width` px long."""
    for count in range(most, 1, -1):
        ticks = scale.ticks(count)
        labels = [text_width(short_number(tick)) for tick in ticks]
        gaps = [(scale.place(right) - scale.place(left)) * width for left, right in zip(ticks, ticks[1:])]
        # An end's number stands wholly beside its tick, so it may need its full width.
        if all(gap >= left * 0.75 + right * 0.75 + 6 for gap, left, right in zip(gaps, labels, labels[1:])):
            return ticks
    return scale.ticks(1)[:1]


def _round_step(rough: float) -> float:
    """The least of 1, 2, 2.5, 5 times a power of ten that is not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
