"""A quantity as people read it: thousands separators, and seconds in the unit that fits."""

from __future__ import annotations

import statistics
from typing import Sequence


def format_value(value: float | int, unit: str) -> str:
    """One value with its unit, except for the units a column's title already names (counts)."""
    if unit == "s":
        return format_seconds([value])
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def format_samples(samples: Sequence[float | int], unit: str) -> str:
    """Median [min–max] of several samples, or the one there is."""
    if unit == "s":
        return format_seconds(samples)
    if len(samples) == 1 or len(set(samples)) == 1:
        return format_value(samples[0], unit)
    low, high = format_value(min(samples), unit), format_value(max(samples), unit)
    is_count = all(isinstance(sample, int) for sample in samples)  # then so is its median: the lower of two in the middle
    return f"{format_value((statistics.median_low if is_count else statistics.median)(samples), unit)} [{low}–{high}]"


def format_seconds(samples: Sequence[float]) -> str:
    """Times in one unit: s, ms or µs, by the median."""
    median = statistics.median(samples)
    scale, unit = next((pair for pair in ((1, "s"), (1e3, "ms")) if abs(median) * pair[0] >= 1), (1e6, "µs"))
    if median == 0:
        scale, unit = 1, "s"
    digits = 0 if abs(median) * scale >= 100 else 1 if abs(median) * scale >= 10 else 2

    def shown(value: float) -> str:
        return f"{value * scale:,.{digits}f}"

    spread = f" [{shown(min(samples))}–{shown(max(samples))}]" if len(samples) > 1 else ""
    return f"{shown(median)} {unit}{spread}"
