"""Arrival series: requests that come when they come, whether the engine keeps up or not (an open loop).

A closed loop, each request sent when the one before is answered, can never overload anything: it hides what a queue does.
Here arrival times are drawn beforehand; who comes while the engine is busy waits, and its time counts from its arrival.
Only on a simulated clock: there, waiting for the next arrival costs nothing.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

from engine.llm_engine import LLMEngine
from engine.model.simulated_runner import STEP_OVERHEAD_S
from engine.request import SamplingParams
from labs import theory
from labs.measure import percentiles
from labs.protocol import LabSession, Measurement, Prediction
from labs.scenarios.prefill_series import TIME_TOLERANCE_S, time_law
from labs.targets.base import Target, TargetError
from labs.workload import TokenIds

ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)


@dataclass(frozen=True)
class Arrival:
    """How one request went; times count from the series' start."""

    arrived_s: float
    finished_s: float
    num_cached_tokens: int

    @property
    def ttft_s(self) -> float:
        """Arrival to first token, which is the only one."""
        return self.finished_s - self.arrived_s


def arrival_times(requests_per_s: float | None, count: int, seed: int) -> list[float]:
    """Seconds at which requests come: independent of each other at a mean rate (Poisson); None: all at once."""
    if requests_per_s is None:
        return [0.0] * count
    rng, now, times = random.Random(seed), 0.0, []
    for _ in range(count):
        times.append(now)
        now += rng.expovariate(requests_per_s)
    return times


def serve_arrivals(
    engine: LLMEngine, prompts: Sequence[Sequence[int]], arrivals_s: Sequence[float], on_end: Callable[[], None] = lambda: None
) -> list[Arrival]:
    """Serve one token to each prompt, which arrives at its time; results in the order of arrival.

    Raises TargetError for an engine whose clock cannot be moved.
    """
    runner = engine.runner
    if not runner.is_simulated:
        raise TargetError("arrivals need a simulated clock; accepted: target sim")
    start_s = runner.now()
    coming = deque(enumerate(zip(arrivals_s, prompts, strict=True)))
    ids: dict[str, int] = {}
    found: dict[int, Arrival] = {}
    while coming or engine.has_unfinished_requests:
        if not engine.has_unfinished_requests:
            runner.wait_until(start_s + coming[0][1][0])
        while coming and start_s + coming[0][1][0] <= runner.now():
            index, (_, prompt) = coming.popleft()
            ids[engine.add_request(prompt, ONE_TOKEN)] = index
        for output in engine.step():
            index = ids[output.request_id]
            found[index] = Arrival(arrivals_s[index], runner.now() - start_s, output.num_cached_tokens)
            on_end()
    return [found[index] for index in range(len(prompts))]


def predicted_ttft(
    percent: int, arrivals_s: Sequence[float], cached_tokens: int, prompt_tokens: int, cost: theory.StepCost
) -> Prediction:
    """A percentile of the times to first token, by the arrival times and the cost of each step, to the nanosecond."""
    times = theory.batched_ttfts(arrivals_s, cached_tokens, prompt_tokens, cost)
    value = percentiles(times, (percent,))[percent]
    law = (
        f"p{percent} of {len(times)} requests with {prompt_tokens - cached_tokens:,} tokens to compute, first come, first "
        f"served, up to {cost.token_budget:,} tokens a step = {value * 1e3:,.2f} ms"
    )
    # Each step adds its rounding to the clock.
    tolerance_s = TIME_TOLERANCE_S * len(times)
    return Prediction(value, law, value - tolerance_s, value + tolerance_s)


@dataclass(frozen=True)
class ArrivalSeries:
    """Prompts of one length that share their start, arriving at a rate; one row of a table."""

    title: str  # "no cache"
    requests_per_s: float | None  # on average; None: all at once
    prompts: tuple[TokenIds, ...] = field(repr=False)
    shared_tokens: int  # a cache, if there is one, holds them already
    seed: int

    @property
    def row(self) -> str:
        return f"{self.title}, all at once" if self.requests_per_s is None else f"{self.title}, {self.requests_per_s:g}/s"

    def run(self, session: LabSession, target: Target) -> list[Measurement]:
        """Predict, serve and record: hits, percentiles of the time to first token, and requests served a second.

        Raises TargetError when requests and counters disagree.
        """
        runner: Any = target.engine.runner
        length, unit, count = len(self.prompts[0]), target.info.unit_size, len(self.prompts)
        if target.info.prefix_cache == "none":
            nothing, text = theory.predict(theory.queries, 0, length)
            each, hits = 0, Prediction(nothing, f"without a cache nothing is looked up: {text}")
        else:
            # One request more, the first, pays: it was sent before.
            each = theory.reuse(self.shared_tokens, length, unit)
            hits = Prediction(*theory.predict(theory.shared_prefix_hits, count + 1, self.shared_tokens, length, unit))
        alone_s = float(time_law(target, runner.shape, each, length).value)
        least_s = theory.prefill_seconds(runner.shape, runner.gpu, runner.mfu, each, length)
        limits = target.engine.config.max_num_batched_tokens, target.engine.config.max_num_seqs
        cost = theory.StepCost(runner.shape, runner.gpu, runner.mfu, STEP_OVERHEAD_S, *limits, runner.dtype_bytes)
        arrivals_s = arrival_times(self.requests_per_s, count, self.seed)
        laws = {percent: predicted_ttft(percent, arrivals_s, each, length, cost) for percent in (50, 90)}
        full = theory.predict(theory.saturating_requests_per_s, runner.shape, runner.gpu, runner.mfu, each, length)

        group = f"arrivals, {runner.shape.name} on {runner.gpu.name}"
        done = serve_arrivals(target.engine, self.prompts, arrivals_s, lambda: session.progress(f"{group}: {self.row}"))
        counted = target.counters()
        if sum(one.num_cached_tokens for one in done) != counted.hits:
            raise TargetError(f"{self.row}: the requests' cached tokens and the counters disagree")
        times = [one.ttft_s for one in done]
        served = count / max(one.finished_s for one in done)
        # Less than full by each request's overhead and reading, and by a last step that is not full.
        slowest = full.value * least_s / alone_s * 0.95
        rate_law = Prediction(*full, slowest, full.value * (1 + 1e-9)) if self.requests_per_s is None else None
        params = {"title": self.title, "requests_per_s": self.requests_per_s}
        found = [
            Measurement("hits", "tokens", (counted.hits,), group, self.row, hits, params),
            *(
                Measurement(f"p{percent}", "s", (percentiles(times, (percent,))[percent],), group, self.row, law, params)
                for percent, law in laws.items()
            ),
            Measurement("served/s", "requests/s", (served,), group, self.row, rate_law, params, key=rate_law is not None),
        ]
        session.record(*found)
        return found
