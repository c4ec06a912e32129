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
from labs.chart import times_of
from labs.field_check import check_numbers
from labs.length_check import check_length
from labs.line_fit import LineFit
from labs.measure import Spread, sim_times_note
from labs.outcome import outcome_line
from labs.protocol import Lab, LabReport, LabSession, Measurement
from labs.scenarios.arrival_comparison import CACHED, NO_CACHE, ArrivalComparison, compare_arrivals
from labs.scenarios.arrival_series import ArrivalSeries
from labs.scenarios.cost_line import CostLine
from labs.scenarios.prefill_series import Arm, PrefillSeries, PromptSource, ratio_law, saved_law
from labs.series import prove_cold
from labs.target_shape import shape_of
from labs.targets.base import Completion
from labs.workload import SharedPrefixWorkload, TokenIds

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
class CacheResult:
    """What one cache brought."""

    cache: Cache
    measurements: tuple[Measurement, ...]
    costs: CostLine  # of the fitted prompts
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
    results = [_run_cache(session, config, cache, shape, workload) for cache in tested]
    measurements = [one for result in results for one in result.measurements]
    findings = [line for result in results for line in _findings(result, config, shape)]
    first = results[0]
    charts = [first.costs.chart(f"Time by what is computed, {first.cache.title}")]
    cold = all(result.cold for result in results)
    if is_sim:
        arrivals = _run_arrivals(session, config, tested[0], workload)
        measurements += arrivals.measurements
        cold = cold and arrivals.is_cold
        findings.append(_arrival_finding(config, arrivals))
        charts.append(arrivals.chart)
    charts.append(times_of(f"The same length, {first.cache.title}", {row: first.one(row, "ttft").samples for row in SAME_LENGTH}))
    return LabReport(
        tuple(measurements),
        "cold" if cold else "uncontrolled",
        tuple(findings),
        _conclusion(measurements, [result.costs.fit for result in results if result.costs.fit is not None], is_sim),
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


def _num_trials(session: LabSession, config: Config) -> int:
    """On the simulated clock a second trial says what the first said."""
    return 1 if session.open_target.kind == "sim" else config.trials


def _run_cache(
    session: LabSession, config: Config, cache: Cache, shape: ModelShape, workload: SharedPrefixWorkload
) -> CacheResult:
    """The fitted prompts, then cold, warm and unrelated ones in turns."""
    num_trials = _num_trials(session, config)
    num_requests = num_trials * (len(config.cached_tokens) * len(config.suffix_tokens) + 4) + 2
    # Two whole prompts, and what the fitted ones add behind their starts; the later trials start from an empty cache.
    num_new = num_trials * len(config.cached_tokens) * sum(config.suffix_tokens)
    num_tokens = 2 * config.shared_tokens + 4 * config.longest_suffix + num_new
    target = session.open_target(**cache.engine_fields, num_gpu_blocks=cache.blocks_for(num_tokens, num_requests))
    series = PrefillSeries(session, target, cache, shape, PromptSource(workload))
    found: list[Measurement] = []
    try:
        cold = prove_cold(session, target, workload.canary_ids)
        # The first run of its length allocates and warms up: its time answers another question.
        series.send(Arm("warm-up", config.shared_tokens, config.user_tokens, is_unrelated=True))
        series.send(Arm("shared prompt", config.shared_tokens, 1, is_first=True))
        target.counters()
        for cached in config.cached_tokens:
            for new in config.suffix_tokens:
                arm = Arm(f"{cached:,} cached, {new:,} new", cached, new)
                found += series.measure(arm, [series.send(arm) for _ in range(num_trials)])
        costs = CostLine.through(found, target)
        parts, started_cold = _cold_and_warm(session, config, series, workload.canary_ids)
        found += parts
        peak = target.engine.runner.gpu.peak_flops_per_s if target.info.kind == "sim" else None
    finally:
        target.close()
    return CacheResult(cache, tuple(found), costs, peak, cold and started_cold)


def _cold_and_warm(
    session: LabSession, config: Config, series: PrefillSeries, canary_ids: TokenIds
) -> tuple[list[Measurement], bool]:
    """A cold prompt, one that shares its start, it again, and an unrelated one; each trial from a proven cold cache."""
    sizes, is_cold = (config.shared_tokens, config.user_tokens), True
    cold, warm = Arm("cold", *sizes, is_first=True), Arm("warm", *sizes)
    repeat, unrelated = Arm("repeat", *sizes, is_repeat=True), Arm("unrelated", *sizes, is_unrelated=True)
    done: dict[Arm, list[Completion]] = {cold: [], warm: [], repeat: [], unrelated: []}
    for _ in range(_num_trials(session, config)):
        is_cold = prove_cold(session, series.target, canary_ids) and is_cold
        for arm in done:
            done[arm].append(series.send(arm))
    found = [one for arm in done for one in series.measure(arm, done[arm])]
    times = {arm: [completion.ttft_s for completion in completions] for arm, completions in done.items()}
    ratios = {arm: tuple(one / other for one, other in zip(times[arm], times[warm])) for arm in (cold, unrelated)}
    saved = tuple(one - other for one, other in zip(times[cold], times[warm]))
    of_model = (series.target, series.shape, series.cache.unit, warm)
    of_ratio, of_saved, title = ratio_law(*of_model), saved_law(*of_model), series.cache.title
    note = sim_times_note(session.open_target.kind) or ("" if of_ratio else "not judged: " + UNSEEN)
    both = [
        Measurement("ratio", "ratio", ratios[cold], title, "cold / warm", of_ratio, note=note, key=True),
        Measurement("saved", "s", saved, title, "cold / warm", of_saved, note=note, key=True),
        Measurement("ratio", "ratio", ratios[unrelated], title, "unrelated / warm", of_ratio, note=note),
    ]
    session.record(*both)
    return [*found, *both], is_cold


def _run_arrivals(session: LabSession, config: Config, cache: Cache, workload: SharedPrefixWorkload) -> ArrivalComparison:
    """Arrivals at each rate and all at once, without the cache and with it."""
    tails = workload.tail_ids[: config.num_arrivals + 1]
    *prompts, primer = ((*workload.shared_ids, *tail[: config.user_tokens]) for tail in tails)
    series = [
        ArrivalSeries(title, rate, tuple(prompts), config.shared_tokens, config.seed)
        for title in (NO_CACHE, CACHED)
        for rate in (*config.arrival_rates, None)
    ]
    return compare_arrivals(session, cache, series, primer, workload.canary_ids)


def _findings(result: CacheResult, config: Config, shape: ModelShape) -> Iterator[str]:
    title = result.cache.title
    length = config.shared_tokens + config.user_tokens
    num_hits = int(result.value("warm", "hits"))
    by_flops = theory.cold_over_warm(shape, min(num_hits, length - 1), length)
    ratios = {row: result.one(f"{row} / warm", "ratio") for row in ("cold", "unrelated")}
    yield (
        f"{title}: cold over warm {_with_spread(ratios['cold'])} by time, {by_flops:.2f} by FLOPs ({num_hits:,} of {length:,} "
        f"tokens cached, {shape.name}); {_seconds(result.value('cold / warm', 'saved'))} saved; an unrelated prompt took "
        f"{_with_spread(ratios['unrelated'])} times a warm one"
    )
    if result.costs.fit is None:
        yield f"{title}: no line: fewer than two of the fitted prompts are decided by arithmetic; take longer suffix_tokens"
        return
    line = result.costs.fit
    rate = _flops_per_s(1 / line.slope) if line.slope > 0 else "no rate: it falls"
    achieved = result.one("cold", "ttft").params["flops"][0] / result.value("cold", "ttft")
    share = f", {achieved / result.peak_flops_per_s:.3f} of the GPU's peak (MFU)" if result.peak_flops_per_s else ""
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


def _arrival_finding(config: Config, arrivals: ArrivalComparison) -> str:
    without, cached = arrivals.served(NO_CACHE), arrivals.served(CACHED)
    text = (
        f"prefills alone fill the GPU at {without.predicted.value:.1f} requests/s without the cache ({without.value:.1f} served) "
        f"and at {cached.predicted.value:.1f} with it ({cached.value:.1f} served)"
    )
    above = next((rate for rate in config.arrival_rates if rate > without.predicted.value), None)
    if above is None:
        return text + "; every arrival rate lies below both"
    return (
        f"{text}; at {above:g}/s, above the first, the median request of {config.num_arrivals} waits "
        f"{_seconds(arrivals.median_s(NO_CACHE, above))}; cached, {_seconds(arrivals.median_s(CACHED, above))}"
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
