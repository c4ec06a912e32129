"""Lab 14: does measured time follow the FLOPs?

Background. A prefill costs 2·P FLOPs a token and, for attention, 4·L·h·d FLOPs for each token before it. Cached tokens are
terms left out of that sum, so the cost model says what a hit is worth: FLOPs of the whole prompt over those of its rest
(10.66 for Llama-3-8B, 2,200 tokens of which 2,000 are cached). Time follows FLOPs as far as arithmetic decides; each step
also has a fixed cost, reads all weights once however few tokens it computes, and runs small matrices less efficiently.

Predicted. Hits: unit·⌊min(C, L − 1)/unit⌋ for C cached tokens, 0 for an unrelated prompt. On `sim` every time to first token
is predicted exactly: overhead + the longer of arithmetic and reading. That checks the accounting, not physics: the
simulated clock is driven by the same cost model, and a wrong count of tokens, steps or hits would show. On a real model the
ratios cold/warm and unrelated/warm are judged in a wide range that follows from the model and the lengths alone. It begins
at what is left of the ratio of FLOPs by a start of 0.05 s a request, slow memory and a fast processor (3 TFLOP/s a CPU,
1 PFLOP/s a GPU) that the few tokens of the rest fill half as well; it ends at three times the ratio of FLOPs, since cores are
shared. Where less than 1.2 is left, as of a small model on a fast GPU, the ratios are shown and not judged.
With arrivals (sim): prefills of s seconds saturate the GPU at 1/s requests a second; above that the queue grows with every
request. Percentiles are predicted exactly, from the arrival times and what each step costs, for one server whose steps
serve all who wait, in turn, up to its budget.

How to read it. The tables give hits and time by cached and new tokens; then cold, warm, the warm prompt again (only its
last block or token is computed: what is left is fixed cost), and an unrelated prompt of the same length, sent when all was
warmed up: were it as fast as a warm one, the cache would not be the reason. A line through times over the FLOPs of what was
not found gives the fixed cost and the FLOP/s of this machine; R² says how much of the spread the FLOPs explain, and is not
predicted. On a real model the radix cache runs with its first page size; `--full`, and the simulated target, run all.
FLOPs are counted for all P parameters, though the output head, a part of P, computes only the last token: what the machine
really does is somewhat less. Arrivals: compare a rate with and without the cache.

Sources: labs/theory.py, engine/cost_model.py (Kaplan et al. 2020; Williams et al. 2009, the roofline); Lindley 1952.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Sequence

from engine.model_shape import ModelShape
from labs import theory
from labs.caches import Cache, caches
from labs.chart import Chart, ChartSeries, times_of
from labs.field_check import check_numbers
from labs.length_check import check_length
from labs.line_fit import LineFit
from labs.measure import Spread, sim_times_note
from labs.outcome import outcome_line
from labs.protocol import Lab, LabReport, LabSession, Measurement, Prediction
from labs.scenarios.arrival_series import ArrivalSeries
from labs.scenarios.prefill_series import Arm, PromptSource, is_arithmetic, ratio_law, saved_law, time_law
from labs.series import prove_cold
from labs.target_shape import shape_of
from labs.targets.base import Completion, Target
from labs.workload import SharedPrefixWorkload

CLOSE_FIT = 0.9  # R² from which on times may be said to follow the FLOPs
SAME_LENGTH = ("cold", "warm", "repeat", "unrelated")
UNSEEN = "what a hit saves of so short a prompt may be less than times differ by on a fast machine"


@dataclass(frozen=True)
class Config:
    """Sizes of the experiment; in tokens unless said otherwise."""

    shared_tokens: int = 2000  # a system prompt
    user_tokens: int = 200  # that each request has of its own
    cached_tokens: tuple[int, ...] = (0, 512, 1024)  # of the system prompt, in the prompts that the line is fitted to
    suffix_tokens: tuple[int, ...] = (64, 256, 512)  # new behind each
    trials: int = 2  # of every time; sim needs one
    arrival_rates: tuple[float, ...] = (10.0, 20.0, 40.0)  # requests a second; sim only
    num_arrivals: int = 100  # at each rate
    block_size: int = 16  # of the hash cache
    page_sizes: tuple[int, ...] = (1, 16)  # of the radix caches
    full: bool = False  # every page size on a real model too
    seed: int = 0

    def __post_init__(self) -> None:
        most = {"trials": 100, "num_arrivals": 2_000, "cached_tokens": self.shared_tokens}
        check_numbers(self, {"cached_tokens": 0, "arrival_rates": 0.001, "num_arrivals": 2}, most)

    @property
    def longest_suffix(self) -> int:
        return max(self.user_tokens, *self.suffix_tokens)


@dataclass(frozen=True)
class CacheRun:
    """What one cache brought."""

    cache: Cache
    measurements: tuple[Measurement, ...]
    line: LineFit | None  # of times over FLOPs; None: too few prompts that arithmetic decides
    peak_flops_per_s: float | None  # of the simulated GPU
    cold: bool

    def one(self, row: str, name: str) -> Measurement:
        return next(one for one in self.measurements if (one.row, one.name) == (row, name))

    def value(self, row: str, name: str) -> float:
        return self.one(row, name).value


def run(session: LabSession, config: Config) -> LabReport:
    """Each cache alone; then, on sim, arrivals with and without the first."""
    shape, workload = _prepare(session, config)
    is_sim = session.open_target.kind == "sim"
    tested = caches(config.block_size, config.page_sizes if is_sim or config.full else config.page_sizes[:1])
    per_cache = 2 + _num_trials(session, config) * (len(config.cached_tokens) * len(config.suffix_tokens) + 4)
    num_series = 2 * (len(config.arrival_rates) + 1) if is_sim else 0
    session.expect(per_cache * len(tested) + num_series * config.num_arrivals)
    runs = [_run_cache(session, config, cache, shape, PromptSource(workload)) for cache in tested]
    measurements = [one for run_ in runs for one in run_.measurements]
    findings = [line for run_ in runs for line in _findings(run_, config, shape)]
    charts = [_time_chart(runs[0])]
    cold = all(run_.cold for run_ in runs)
    if is_sim:
        arrivals, started_cold = _run_arrivals(session, config, tested[0], workload)
        measurements += arrivals
        cold = cold and started_cold
        findings.append(_arrival_finding(config, arrivals))
        charts.append(_arrival_chart(arrivals))
    charts.append(times_of(f"The same length, {runs[0].cache.title}", {row: runs[0].one(row, "ttft").samples for row in SAME_LENGTH}))
    return LabReport(
        tuple(measurements),
        "cold" if cold else "uncontrolled",
        tuple(findings),
        _conclusion(measurements, [run_.line for run_ in runs if run_.line is not None], is_sim),
        {"workload": workload.digest, "model": {"num_parameters": shape.num_parameters, "source": shape.source}},
        tuple(charts),
    )


def _prepare(session: LabSession, config: Config) -> tuple[ModelShape, SharedPrefixWorkload]:
    """The model's shape, and random prompts: what a prompt says does not change its cost."""
    probe = session.open_target(num_gpu_blocks=2)
    shape, vocab_size, max_model_len = shape_of(probe), probe.info.vocab_size, probe.info.max_model_len
    probe.close()
    suffixes = {"user_tokens": config.user_tokens, "suffix_tokens": max(config.suffix_tokens)}
    longest = max(suffixes, key=suffixes.__getitem__)
    # A token is generated.
    check_length(config, max_model_len - 1, **{"shared_tokens": config.shared_tokens, longest: suffixes[longest]})
    num_trials = _num_trials(session, config)
    num_fitted = num_trials * len(config.cached_tokens) * len(config.suffix_tokens)
    # One more than are sent: a tail that would lengthen its match is passed over.
    num_tails = num_fitted + 2 * num_trials + 2
    if session.open_target.kind == "sim":
        num_tails = max(num_tails, config.num_arrivals + 1)
    workload = SharedPrefixWorkload.from_token_ids(
        vocab_size, config.seed, config.shared_tokens, config.longest_suffix, num_tails, num_trials + 1
    )
    return shape, workload


def _run_cache(session: LabSession, config: Config, cache: Cache, shape: ModelShape, source: PromptSource) -> CacheRun:
    """The fitted prompts, then cold, warm and unrelated ones in turns."""
    num_trials = _num_trials(session, config)
    num_requests = num_trials * (len(config.cached_tokens) * len(config.suffix_tokens) + 4) + 2
    # Two whole prompts, and what the fitted ones add behind their starts; the later trials start from an empty cache.
    num_new = num_trials * len(config.cached_tokens) * sum(config.suffix_tokens)
    num_tokens = 2 * config.shared_tokens + 4 * config.longest_suffix + num_new
    target = session.open_target(**cache.engine_fields, num_gpu_blocks=cache.blocks_for(num_tokens, num_requests))
    found: list[Measurement] = []
    try:
        cold = prove_cold(session, target, source.canary_ids)
        # The first run of its length allocates and warms up: its time answers another question.
        _send(session, target, cache, Arm("warm-up", config.shared_tokens, config.user_tokens, is_unrelated=True), source)
        _send(session, target, cache, Arm("shared prompt", config.shared_tokens, 1, is_first=True), source)
        target.counters()
        for cached in config.cached_tokens:
            for new in config.suffix_tokens:
                arm = Arm(f"{cached:,} cached, {new:,} new", cached, new)
                done = [_send(session, target, cache, arm, source) for _ in range(num_trials)]
                found += _measure(session, target, cache, shape, arm, done)
        line = _fit(target, found)
        parts, started_cold = _cold_and_warm(session, config, target, cache, shape, source)
        found += parts
        peak = target.engine.runner.gpu.peak_flops_per_s if target.info.kind == "sim" else None
    finally:
        target.close()
    return CacheRun(cache, tuple(found), line, peak, cold and started_cold)


def _num_trials(session: LabSession, config: Config) -> int:
    """On the simulated clock a second trial says what the first said."""
    return 1 if session.open_target.kind == "sim" else config.trials


def _cold_and_warm(
    session: LabSession,
    config: Config,
    target: Target,
    cache: Cache,
    shape: ModelShape,
    source: PromptSource,
) -> tuple[list[Measurement], bool]:
    """A cold prompt, one that shares its start, it again, and an unrelated one; each trial from a proven cold cache."""
    sizes = (config.shared_tokens, config.user_tokens)
    warm = Arm("warm", *sizes)
    repeat, unrelated = Arm("repeat", *sizes, is_repeat=True), Arm("unrelated", *sizes, is_unrelated=True)
    arms = (Arm("cold", *sizes, is_first=True), warm, repeat, unrelated)
    of_ratio, of_saved = ratio_law(target, shape, cache.unit, warm), saved_law(target, shape, cache.unit, warm)
    done: dict[str, list[Completion]] = {arm.row: [] for arm in arms}
    cold = True
    for _ in range(_num_trials(session, config)):
        cold = prove_cold(session, target, source.canary_ids) and cold
        for arm in arms:
            done[arm.row].append(_send(session, target, cache, arm, source))
    found = [one for arm in arms for one in _measure(session, target, cache, shape, arm, done[arm.row])]
    times = {row: [completion.ttft_s for completion in completions] for row, completions in done.items()}
    note = sim_times_note(target.info.kind) or ("" if of_ratio else "not judged: " + UNSEEN)
    both: list[Measurement] = []
    for row in (arms[0].row, unrelated.row):
        ratios = tuple(one / other for one, other in zip(times[row], times[warm.row]))
        is_key = row == arms[0].row
        both.append(Measurement("ratio", "ratio", ratios, cache.title, f"{row} / warm", of_ratio, note=note, key=is_key))
        if is_key:
            saved = tuple(one - other for one, other in zip(times[row], times[warm.row]))
            both.append(Measurement("saved", "s", saved, cache.title, f"{row} / warm", of_saved, note=note, key=True))
    session.record(*both)
    return [*found, *both], cold


def _send(session: LabSession, target: Target, cache: Cache, arm: Arm, source: PromptSource) -> Completion:
    completion = target.complete(source.prompt(arm))
    session.progress(f"{cache.title}: {arm.row}")
    return completion


def _measure(
    session: LabSession, target: Target, cache: Cache, shape: ModelShape, arm: Arm, done: Sequence[Completion]
) -> list[Measurement]:
    """Hits and times of an arm. Its requests tell what they found; on sim, the times must be those of the cost model."""
    law = Prediction(*theory.predict(theory.reuse, arm.match_tokens, arm.prompt_tokens, cache.unit))
    num_hits = arm.num_hits(cache.unit)
    cached = tuple(completion.num_cached_tokens or 0 for completion in done)
    # Of what was found, not of what should be: a line through predicted FLOPs would fit a cache that finds nothing.
    flops = [theory.prefill_flops(shape, min(found, arm.prompt_tokens - 1), arm.prompt_tokens) for found in cached]
    params = {"uncached_tokens": arm.prompt_tokens - num_hits, "cached_tokens": num_hits, "flops": flops}
    times = tuple(completion.ttft_s for completion in done)
    of_time = time_law(target, shape, num_hits, arm.prompt_tokens)
    found = [
        Measurement("hits", "tokens", cached, cache.title, arm.row, law, params),
        Measurement("ttft", "s", times, cache.title, arm.row, of_time, params, sim_times_note(target.info.kind)),
    ]
    session.record(*found)
    return found


def _fit(target: Target, found: Sequence[Measurement]) -> LineFit | None:
    """The line through times over FLOPs; on sim without prompts that reading decides, as the cost model itself says."""
    points: list[tuple[int, float]] = []
    for one in found:
        num_tokens = one.params["uncached_tokens"]
        for flops, seconds in zip(one.params["flops"], one.samples) if one.name == "ttft" else ():
            if one.predicted is None or is_arithmetic(target, flops, num_tokens, one.predicted.value):
                points.append((flops, seconds))
    xs, ys = [flops for flops, _ in points], [seconds for _, seconds in points]
    return LineFit.of(xs, ys) if len(set(xs)) > 1 else None


def _run_arrivals(
    session: LabSession, config: Config, cache: Cache, workload: SharedPrefixWorkload
) -> tuple[list[Measurement], bool]:
    """The same arrivals without a cache and with one that holds the shared part already."""
    prompts = [(*workload.shared_ids, *tail[: config.user_tokens]) for tail in workload.tail_ids[: config.num_arrivals + 1]]
    length = config.shared_tokens + config.user_tokens
    fields = {**cache.engine_fields, "num_gpu_blocks": cache.blocks_for(length * len(prompts), len(prompts))}
    found: list[Measurement] = []
    cold = True
    for title, more in (("no cache", {"enable_prefix_caching": False}), ("cached", {})):
        for rate in (*config.arrival_rates, None):
            target = session.open_target(**fields, **more)
            try:
                if not more:
                    cold = prove_cold(session, target, workload.canary_ids) and cold
                    target.complete(prompts[-1])
                    target.counters()
                arrivals = ArrivalSeries(title, rate, tuple(prompts[:-1]), config.shared_tokens, config.seed)
                found += arrivals.run(session, target)
            finally:
                target.close()
    return found, cold


def _findings(run_: CacheRun, config: Config, shape: ModelShape) -> Iterator[str]:
    title = run_.cache.title
    length = config.shared_tokens + config.user_tokens
    num_hits = int(run_.value("warm", "hits"))
    by_flops = theory.cold_over_warm(shape, min(num_hits, length - 1), length)
    ratios = {row: run_.one(f"{row} / warm", "ratio") for row in ("cold", "unrelated")}
    yield (
        f"{title}: cold over warm {_with_spread(ratios['cold'])} by time, {by_flops:.2f} by FLOPs ({num_hits:,} of {length:,} "
        f"tokens cached, {shape.name}); {_seconds(run_.value('cold / warm', 'saved'))} saved; an unrelated prompt took "
        f"{_with_spread(ratios['unrelated'])} times a warm one"
    )
    if run_.line is None:
        yield f"{title}: no line: fewer than two of the fitted prompts are decided by arithmetic; take longer suffix_tokens"
        return
    line = run_.line
    rate = _flops_per_s(1 / line.slope) if line.slope > 0 else "no rate: it falls"
    achieved = run_.one("cold", "ttft").params["flops"][0] / run_.value("cold", "ttft")
    share = f", {achieved / run_.peak_flops_per_s:.3f} of the GPU's peak (MFU)" if run_.peak_flops_per_s else ""
    yield (
        f"{title}: the line through time over FLOPs has R² = {line.r_squared:.4f}, {rate}, and "
        f"{_seconds(line.intercept)} of fixed cost a request; a whole cold prompt achieved {_flops_per_s(achieved)}{share}"
    )


def _with_spread(ratio: Measurement) -> str:
    """"5.34 [5.19–5.83, 2 trials]"; a simulated clock has no spread."""
    if len(ratio.samples) == 1:
        return f"{ratio.value:.4g}"
    spread = Spread.of(ratio.samples)
    return f"{spread.median:.4g} [{spread.minimum:.4g}–{spread.maximum:.4g}, {spread.count} trials]"


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if abs(value) >= 1 else f"{value * 1e3:,.1f} ms"


def _flops_per_s(value: float) -> str:
    return f"{value / 1e12:,.1f} TFLOP/s" if value >= 1e13 else f"{value / 1e9:,.1f} GFLOP/s"


def _arrival_finding(config: Config, arrivals: Sequence[Measurement]) -> str:
    at_once = {one.params["title"]: one for one in arrivals if one.name == "served/s" and one.params["requests_per_s"] is None}
    without, cached = at_once["no cache"], at_once["cached"]
    above = [rate for rate in config.arrival_rates if rate > without.predicted.value]
    text = (
        f"prefills alone fill the GPU at {without.predicted.value:.1f} requests/s without the cache ({without.value:.1f} served) "
        f"and at {cached.predicted.value:.1f} with it ({cached.value:.1f} served)"
    )
    if not above:
        return text + "; every arrival rate lies below both"
    p50 = {
        one.params["title"]: one.value for one in arrivals if one.name == "p50" and one.params["requests_per_s"] == above[0]
    }
    return (
        f"{text}; at {above[0]:g}/s, above the first, the median request of {config.num_arrivals} waits "
        f"{_seconds(p50['no cache'])}; cached, {_seconds(p50['cached'])}"
    )


def _conclusion(measurements: Sequence[Measurement], lines: Sequence[LineFit], is_sim: bool) -> str:
    meaning = (
        "On sim this says that tokens, steps and hits are accounted for as the cost model says, not that a GPU is as fast. What "
        "matters most under load: an engine that computes shared tokens anew is full at a fraction of the rate, and above it the "
        "queue, which grows with every request, is what users wait for."
        if is_sim
        else f"{_fit_text(lines)} What that means under load, `--target sim` shows with requests that arrive at random."
    )
    return (
        f"{outcome_line(measurements, 'Every prediction is met.')} A hit saves the FLOPs of the cached tokens, whatever is asked "
        "behind them; the longer the shared part beside the question, the larger the ratio. "
        f"{meaning} In production: compare requests a second with the rate at which prefills "
        "alone fill the GPU, hit rate included, before adding machines; and expect the first requests after a cache is lost to "
        "meet that rate without it."
    )


def _fit_text(lines: Sequence[LineFit]) -> str:
    """Whether times followed the FLOPs, by the fitted lines."""
    shown = ", ".join(f"{line.r_squared:.2f}" for line in lines)
    if not lines:
        return "There were too few prompts to say whether time follows the FLOPs."
    if all(line.r_squared >= CLOSE_FIT and line.slope > 0 for line in lines):
        return (
            f"Time followed the FLOPs of what was computed (R² = {shown}), plus a fixed cost: short prompts gain less than the "
            "ratio says."
        )
    return (
        f"Time did NOT follow the FLOPs closely here (R² = {shown}): something else was at work, such as other programs on the "
        "same cores; read no fixed cost and no rate from these lines, and take more trials."
    )


def _time_chart(run_: CacheRun) -> Chart:
    fitted = [one for one in run_.measurements if one.name == "ttft" and one.row not in SAME_LENGTH]
    lines: dict[str, list[tuple[float, float]]] = {}
    for one in fitted:
        name = f"{one.params['cached_tokens']:,} cached"
        lines.setdefault(name, []).append((one.params["uncached_tokens"], one.value))
    series = [ChartSeries(name, points=tuple(sorted(points))) for name, points in lines.items()]
    if run_.line is not None:
        least = min(one.params["cached_tokens"] for one in fitted)
        alike = [one.params for one in fitted if one.params["cached_tokens"] == least]
        points = sorted((params["uncached_tokens"], run_.line.at(params["flops"][0])) for params in alike)
        series.append(ChartSeries(f"line fitted to FLOPs, {least:,} cached", points=tuple(points)))
    title = f"Time by what is computed, {run_.cache.title}"
    return Chart("lines", title, tuple(series), "s", "uncached tokens", "time to first token")


def _arrival_chart(arrivals: Sequence[Measurement]) -> Chart:
    lines: dict[str, list[tuple[float, float]]] = {}
    for one in arrivals:
        if one.unit == "s" and one.params["requests_per_s"] is not None:
            lines.setdefault(f"{one.params['title']}, {one.name}", []).append((one.params["requests_per_s"], one.value))
    series = tuple(ChartSeries(name, points=tuple(sorted(points))) for name, points in lines.items())
    return Chart("lines", "Above saturation the queue decides", series, "s", "arrivals (requests/s)", "time to first token")


LAB = Lab(
    number=14,
    name="cost-model",
    question="Does measured time follow the FLOPs?",
    config_type=Config,
    quick=Config(
        shared_tokens=240, user_tokens=24, cached_tokens=(0, 128), suffix_tokens=(32, 192),
        arrival_rates=(20.0, 200.0), num_arrivals=20,
    ),
    full=Config(full=True),
    run=run,
)  # fmt: skip
