"""Lab 08: does recompute cost what it seems?

Background. Requests grow while they generate. When the pool lacks a block for one of them, the newest request is preempted:
its blocks go back, its tokens stay, and later it is computed again. With prefix caching that is mostly a lookup of its own
blocks, as long as nobody took them meanwhile. Such lookups say nothing about reuse between requests, so they have counters
of their own; and a request that waits for room is counted once, when it is admitted, however often it was tried.

Predicted and measured (L prompt tokens, k generated, N usable blocks of B tokens; prompts unique, so first lookups find 0):

    two requests at once       a block lacks when each has generated B·⌊N/2⌋ − L + 1 tokens; the second is the victim
    what it looks up           its prompt and what it had generated, once
    what it finds, hash cache  B·min(⌊N/2⌋, N − ⌈(L+k−1)/B⌉): the other grew into the rest, tail first
    what it finds, tree        its prompt's B·⌊L/B⌋, or 0: outputs enter a tree only when their request ends
    computed twice             all it looks up but the newest token and what it finds
    no room for the second     it is refused in each of k steps, and counted once
    many requests              first lookups stay N·L and find 0 whatever is preempted; outputs do not change

How to read it. Survival f = found / looked up, over resumed requests only: near 1, recompute is nearly free. With two requests
in the hash cache it falls from there to 0 with the pool, block by block, as the older one grows into what the newer gave
back. In a tree the prompt is found or not, and the share even rises a little before it drops to 0: fewer outputs are looked
up. With many requests no law is known here: f hangs on who waits how long, and neither falls nor rises steadily with the
pool. Their counts are measured only, and checked against the engine's own plans (`unaccounted` counts tokens in which the two
differ). Whether outputs differ is judged on a real model alone: simulated tokens do not hang on K/V. `naive_rate` is what
a dashboard shows that adds these lookups to the first ones: hits on prompts that share nothing.

On a real model three pools of each kind are run, to spare time; `--full`, and the simulated target, run all.

Sources: vLLM 0.32.0, v1/core/sched/scheduler.py and v1/metrics/stats.py; SGLang 0.5.23, srt/mem_cache/radix_cache.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from engine.errors import ConfigError
from labs.caches import caches
from labs.chart import Chart, bars_of
from labs.field_check import check_numbers
from labs.length_check import check_length
from labs.measure import ratio_of_medians, sim_times_note
from labs.outcome import outcome_line
from labs.protocol import Lab, LabReport, LabSession, Measurement
from labs.scenarios.churn_series import ChurnResult, ChurnSeries, Crowd, most_outputs
from labs.scenarios.empty_pools import EmptyPools
from labs.scenarios.preemption_series import Pair, Run, send_at_once
from labs.scenarios.survival_curve import SurvivalCurve, survival_chart
from labs.watch.block_map import BlockMap
from labs.workload import workload_digest


@dataclass(frozen=True)
class Config:
    """Sizes of the experiment; pools, prompts and outputs in tokens."""

    prompt_tokens: int = 64  # of each of two requests
    output_tokens: int = 64  # each of them generates
    pool_tokens: tuple[int, ...] = (256, 240, 224, 208, 192, 176, 160, 144, 128)  # from roomy to one request's size
    wait_prompt_tokens: int = 80  # of two requests that are not admitted together
    wait_output_tokens: int = 16  # each of them generates: so long the second waits
    wait_pool_tokens: int = 128  # room for one of them
    num_requests: int = 8  # of many at once
    churn_prompt_tokens: int = 65  # of each of the many
    churn_output_tokens: int = 48  # on average; each generates from a half to three halves of it
    churn_pools: tuple[int, ...] = (1024, 720, 624, 528, 448, 352, 256, 176)  # from roomy to tight
    trials: int = 3  # runs of the many, for their times; on a real model, with the hash cache
    block_size: int = 16  # of the hash cache
    page_sizes: tuple[int, ...] = (1, 16)  # of the radix caches
    full: bool = False  # every pool on a real model too
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"output_tokens": 2, "num_requests": 2, "churn_output_tokens": 2}
        check_numbers(self, least=least, most={"num_requests": 128, "trials": 100})
        units = (self.block_size, *self.page_sizes)
        for name, prompt, output in (
            ("pool_tokens", self.prompt_tokens, self.output_tokens),
            ("wait_pool_tokens", self.wait_prompt_tokens, self.wait_output_tokens),
            ("churn_pools", self.churn_prompt_tokens, most_outputs(self.churn_output_tokens)),
        ):
            value = getattr(self, name)
            # Two blocks at least: the canary that proves the cache cold is a token longer than one.
            least_pool = max(max(2, -(-(prompt + output) // unit)) * unit for unit in units)
            if min(value if isinstance(value, tuple) else (value,)) < least_pool:
                raise ConfigError(name, value, f"whole numbers from {least_pool}: one request must fit, with its outputs")
        most = min(2 * -(-self.wait_prompt_tokens // unit) * unit for unit in units) - 1
        if self.wait_pool_tokens > most:
            raise ConfigError("wait_pool_tokens", self.wait_pool_tokens, f"at most {most}: the second request must wait")


class Bench:
    """Empty pools, the prompts, and what the report is made of."""

    def __init__(self, session: LabSession, config: Config) -> None:
        self.pools = EmptyPools(session)
        max_model_len, budget = self.pools.info.max_model_len, self.pools.info.config["max_num_batched_tokens"]
        for prompt, output, room in (
            ("prompt_tokens", "output_tokens", budget // 2),  # two prompts share a step
            ("wait_prompt_tokens", "wait_output_tokens", budget),
            ("churn_prompt_tokens", "churn_output_tokens", budget),
        ):
            check_length(config, max_model_len, **{prompt: getattr(config, prompt), output: getattr(config, output)})
            check_length(config, room, "where prompts share a step", **{prompt: getattr(config, prompt)})
        most = (max_model_len - config.churn_prompt_tokens) * 2 // 3
        if config.churn_output_tokens > most:
            raise ConfigError("churn_output_tokens", config.churn_output_tokens, f"at most {most}: some generate half more")
        longest = max(config.prompt_tokens, config.wait_prompt_tokens, config.churn_prompt_tokens)
        self.prompts = self.pools.prompts(config.num_requests, longest, config.seed)
        churning = [ids[: config.churn_prompt_tokens] for ids in self.prompts]
        self.crowd = Crowd.of(churning, config.churn_output_tokens, config.seed)
        self.session = session
        self.measurements: list[Measurement] = []


def run(session: LabSession, config: Config) -> LabReport:
    """Two requests in ever smaller pools, two that must wait for each other, then many."""
    kind = session.open_target.kind
    full = config.full or kind == "sim"
    bench, asked = Bench(session, config), caches(config.block_size, config.page_sizes)
    pools, churn_pools = _thinned(config.pool_tokens, full), _thinned(config.churn_pools, full)
    num_trials = {cache.title: config.trials if cache.is_hash and kind == "engine" else 1 for cache in asked}
    churns = [ChurnSeries(bench.crowd, cache, churn_pools, num_trials[cache.title]) for cache in asked]
    session.expect(len(asked) * 2 * (len(pools) + 1) + sum(churn.num_requests for churn in churns))
    findings: list[str] = []
    charts: list[Chart] = []
    of_two: list[SurvivalCurve] = []
    for cache in asked:
        pairs = [Pair(cache, config.prompt_tokens, config.output_tokens, pool) for pool in pools]
        preempting = [pair for pair in pairs if pair.preempts]
        shown = preempting[(len(preempting) - 1) // 2] if preempting else None  # whose law and map are shown
        results = {pair.pool_tokens: _run_pair(bench, pair, pair is shown) for pair in pairs}
        charts += [chart for _, chart in results.values() if chart is not None]
        curve = SurvivalCurve.of(cache.title, {pool: result for pool, (result, _) in results.items()})
        of_two.append(curve)
        findings += [f"{cache.title}, two requests: the newer found of its own tokens {curve.text}"] if curve.text else []
    sizes = (config.wait_prompt_tokens, config.wait_output_tokens, config.wait_pool_tokens)
    waiting = {cache.title: _run_pair(bench, Pair(cache, *sizes), False)[0] for cache in asked}
    findings += _wait_findings(config, waiting)
    of_many: list[SurvivalCurve] = []
    for churn in churns:
        result = churn.run(session, bench.pools)
        bench.measurements += result.measurements
        of_many.append(result.survival)
        findings += _churn_findings(result, kind)
        charts += [_rates_chart(result)] if result.cache.is_hash else []
    return LabReport(
        tuple(bench.measurements),
        "cold" if bench.pools.cold else "uncontrolled",
        tuple(findings),
        _conclusion(bench.measurements),
        {"workload": workload_digest([bench.prompts])},
        (
            survival_chart("Two requests: a hash cache loses block by block, a tree the whole prompt at once", of_two),
            survival_chart("Many requests: what a resumed one finds hangs on who waits how long, not on the pool alone", of_many),
            *charts,
        ),
    )


def _thinned(pools: tuple[int, ...], full: bool) -> tuple[int, ...]:
    """The roomiest first; on a real model that one, one in the middle, and the tightest."""
    ordered = tuple(sorted(set(pools), reverse=True))
    return ordered if full or len(ordered) <= 3 else (ordered[0], ordered[len(ordered) // 2], ordered[-1])


def _run_pair(bench: Bench, pair: Pair, shows: bool) -> tuple[Run, Chart | None]:
    """Two requests at once; what happened beside what must."""
    cache = pair.cache
    target = bench.pools.open(cache.engine_fields, pair.num_usable)
    try:
        block_map = BlockMap(target.engine, changes=True) if shows and cache.is_hash else None
        prompts = [ids[: pair.prompt_tokens] for ids in bench.prompts[:2]]
        result = send_at_once(target, prompts, [pair.output_tokens] * 2, block_map)
    finally:
        target.close()
    bench.session.progress(f"{cache.title}: two requests", 2)
    counts, units = result.counts_of_newer, {"preempted": "requests", "refused": "steps"}
    found = [
        Measurement(name, units.get(name, "tokens"), (counts[name],), pair.group, pair.row, law, key=shows and name == "found")
        for name, law in pair.predictions().items()
    ]
    bench.session.record(*found)
    bench.measurements += found
    title = "Preemption: the newer request gives its blocks back, and finds again what the older one did not need"
    return result, block_map.chart(title, "step") if block_map is not None else None


def _wait_findings(config: Config, results: dict[str, Run]) -> list[str]:
    """How a request that waits is counted; caches that agree share a line."""
    alike: dict[str, list[str]] = {}
    for title, result in results.items():
        tried, queries = result.watch.num_refused, result.counters.queries
        text = (
            f"a request without room was refused in {tried:,} steps and counted once, {queries:,} tokens looked up by both; "
            f"counted at each try it would be {queries + tried * config.wait_prompt_tokens:,}"
        )
        alike.setdefault(text, []).append(title)
    return [f"{'; '.join(titles)}: {text}" for text, titles in alike.items()]


def _churn_findings(churned: ChurnResult, kind: str) -> list[str]:
    """The course of survival, the wrong rate beside the right one, and what recompute cost."""
    title = churned.cache.title
    resumed = {pool: run for pool, run in churned.first_runs.items() if run.survival is not None}
    if not resumed:
        return [f"{title}: nobody was preempted in any pool; smaller churn_pools would"]
    lost = "outputs are not in the tree, " if not churned.cache.is_hash else ""
    pool = max(resumed, key=lambda pool: resumed[pool].naive_rate)
    counted = resumed[pool].counters
    return [
        f"{title}: resumed requests found of their own tokens {churned.survival.text}; {lost}the rest was computed twice",
        f"{title}, pool for {pool:,}: unique prompts hit {counted.hits:,} of {counted.queries:,} tokens; a rate that "
        f"adds {counted.preempted_hits:,} of {counted.preempted_queries:,} tokens of resumed requests shows "
        f"{resumed[pool].naive_rate:.0%}",
        _cost_finding(churned, kind),
    ]


def _cost_finding(churned: ChurnResult, kind: str) -> str:
    """What the tightest pool computed twice; with several pools, how its steps and its time compare to the roomiest's."""
    by_pool = list(churned.runs.values())
    roomy, tight = by_pool[0][0], by_pool[-1][0]
    text = (
        f"{churned.cache.title}: in the tightest pool {tight.num_computed_twice:,} tokens were computed twice "
        f"({tight.num_computed_twice / tight.num_needed:.0%} of what must be computed) and "
        f"{tight.counters.preempted_hits:,} recovered"
    )
    if len(by_pool) == 1:
        return text
    ratio = ratio_of_medians([one.seconds for one in by_pool[-1]], [one.seconds for one in by_pool[0]])
    num_trials = len(by_pool[-1])
    if num_trials > 1:
        spread = f" [{ratio.low:.2f}–{ratio.high:.2f}, {num_trials} trials each]"
    else:
        spread = f" ({sim_times_note(kind) or 'one trial each, so its spread is not known'})"
    return (
        f"{text}; {tight.requests_per_step:.1f} requests ran at once on average instead of the roomiest's "
        f"{roomy.requests_per_step:.1f}, in {tight.watch.num_steps:,} steps instead of {roomy.watch.num_steps:,}; it took "
        f"{ratio.value:.2f} times as long{spread}"
    )


def _rates_chart(churned: ChurnResult) -> Chart:
    """The rate of first lookups beside the one that adds resumed requests."""
    groups: dict[str, list[tuple[str, float]]] = {"first lookups": [], "all lookups": []}
    for pool, run in churned.first_runs.items():
        groups["first lookups"].append((f"pool for {pool:,}", run.counters.hits / run.counters.queries))
        groups["all lookups"].append((f"pool for {pool:,}", run.naive_rate))
    title = f"Prompts that share nothing show hits once resumed requests are counted in: {churned.cache.title}"
    return bars_of(title, groups, "ratio")


def _conclusion(measurements: Sequence[Measurement]) -> str:
    """What happened and what to do about it."""
    return (
        f"{outcome_line(measurements)} Preemption throws away blocks, not content: the hash cache finds a preempted request's "
        "own blocks again, prompt and outputs, until others have taken them, tail first; a tree keeps its prompt whole or not at "
        "all, and outputs are computed again. So recompute costs little while the others end soon or have room to grow, and "
        "nearly everything once they have grown into what was given back; and fewer requests run at once, which the findings "
        "count beside it. In production: watch the number of preemptions and the survival fraction beside the hit rate, which "
        "these lookups must not enter; a hit rate on prompts that share nothing is a sign that they do, and more tokens looked "
        "up than were sent, that refused tries are counted. Where survival is low, run fewer requests at once "
        "(max_num_seqs), keep a part of the pool back from newcomers (watermark), or give the cache more memory."
    )


LAB = Lab(
    number=8,
    name="preemption",
    question="Does recompute cost what it seems?",
    config_type=Config,
    quick=Config(
        prompt_tokens=32, output_tokens=24, pool_tokens=(128, 80), page_sizes=(16,),
        wait_prompt_tokens=48, wait_output_tokens=4, wait_pool_tokens=80,
        num_requests=4, churn_prompt_tokens=33, churn_output_tokens=20, churn_pools=(320, 160), trials=1,
    ),  # fmt: skip
    full=Config(full=True),
    run=run,
)
