"""Measure: what a handful of timings says, and how far to trust it.

Times are skewed: now and then a run is slow, never one impossibly fast. So the centre is the median, the spread the
median absolute deviation (MAD), and one outlier moves neither. Raw samples are what a record keeps; everything here
is derived from them.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from typing import Callable, Sequence

FEW_SAMPLES = 5  # fewer say little about their own spread
WIDE_SPREAD = 0.1  # MAD over median, above which the note warns


@dataclass(frozen=True)
class Spread:
    """A summary of samples of one quantity, in its unit."""

    count: int
    median: float
    minimum: float
    maximum: float
    mad: float  # median distance from the median

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Summarise at least one sample. Raises ValueError for none."""
        if not samples:
            raise ValueError("samples is empty; accepted: at least one number")
        median = statistics.median(samples)
        mad = statistics.median(abs(sample - median) for sample in samples)
        return cls(len(samples), median, min(samples), max(samples), mad)

    @property
    def relative(self) -> float:
        """MAD over median: 0.05 says that half of the samples lie within 5 % of the median; 0.0 if the median is 0."""
        return self.mad / abs(self.median) if self.median else 0.0

    @property
    def stability_note(self) -> str:
        """One line on why not to lean on these samples; empty when there is nothing to say."""
        if self.count < FEW_SAMPLES:
            return f"few samples ({self.count} of at least {FEW_SAMPLES}): read the median as an order of magnitude"
        if self.relative > WIDE_SPREAD:
            return (
                f"unstable: half of {self.count} samples lie more than {self.relative:.0%} from the median "
                f"({self.minimum:.4g} to {self.maximum:.4g})"
            )
        return ""


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians with its 95 % interval."""

    value: float
    low: float
    high: float


def percentiles(samples: Sequence[float], percents: Sequence[int] = (50, 90, 99)) -> dict[int, float]:
    """Percentiles 1 to 99 of the samples, interpolated between neighbours; the extremes are the ends.

    Raises ValueError for no samples or another percent.
    """
    if not samples:
        raise ValueError("samples is empty; accepted: at least one number")
    for percent in percents:
        if not 1 <= percent <= 99:
            raise ValueError(f"percent is {percent!r}; accepted: a whole number from 1 to 99")
    # One sample is every percentile; `quantiles` wants two.
    cuts = statistics.quantiles(samples if len(samples) > 1 else list(samples) * 2, n=100, method="inclusive")
    return {percent: cuts[percent - 1] for percent in percents}


def ratio_of_medians(
    numerators: Sequence[float], denominators: Sequence[float], *, seed: int = 0, num_resamples: int = 1000
) -> Ratio:
    """median(numerators) / median(denominators), and where 95 % of resampled ratios lie.

    Both samples are drawn anew with replacement `num_resamples` times (the bootstrap, Efron 1979); the seed makes the
    interval reproducible. Raises ValueError when a sample is empty or a denominator is not above zero.
    """
    if not numerators or not denominators:
        raise ValueError("samples are empty; accepted: at least one number on each side")
    if min(denominators) <= 0:
        raise ValueError(f"a denominator is {min(denominators)!r}; accepted: numbers above 0")
    rng = random.Random(seed)
    ratios = [
        statistics.median(rng.choices(numerators, k=len(numerators)))
        / statistics.median(rng.choices(denominators, k=len(denominators)))
        for _ in range(num_resamples)
    ]
    cuts = statistics.quantiles(ratios, n=40, method="inclusive")  # steps of 2.5 %
    return Ratio(statistics.median(numerators) / statistics.median(denominators), cuts[0], cuts[-1])


def auc(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """The chance that a random positive is larger than a random negative, ties counted half.

    1: all are larger, the two never mix; 0.5: chance; 0: all are smaller. The area under the ROC curve, by ranks (Hanley
    and McNeil 1982). Raises ValueError when a side is empty.
    """
    if not positives or not negatives:
        raise ValueError("samples are empty; accepted: at least one number on each side")
    wins = sum((one > other) + (one == other) / 2 for one in positives for other in negatives)
    return wins / (len(positives) * len(negatives))


def sim_times_note(target_kind: str) -> str:
    """What to think of times measured on a target of that kind; empty for real ones."""
    if target_kind != "sim":
        return ""
    return "on sim the times check the accounting, not physics: the clock is driven by the cost model"


def time_repeats(
    run: Callable[[], object],
    num_samples: int,
    *,
    num_warm_ups: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, ...]:
    """Seconds of each of `num_samples` runs, after runs whose time is not kept.

    First runs compile, allocate and read pages in; they answer another question.
    """
    for _ in range(num_warm_ups):
        run()
    samples_s = []
    for _ in range(num_samples):
        start_s = clock()
        run()
        samples_s.append(clock() - start_s)
    return tuple(samples_s)
