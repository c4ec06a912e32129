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

import random
from dataclasses import dataclass
from typing import Sequence

from engine.errors import ConfigError
from labs import theory
from labs.caches import Cache, caches
from labs.chart import Chart, ChartSeries, bars_of
from labs.field_check import check_numbers
from labs.length_check import check_length
from labs.measure import ratio_of_medians, sim_times_note
from labs.outcome import outcome_line
from labs.output_check import FLOAT32_NEAR_TIE
from labs.protocol import Lab, LabReport, LabSession, Measurement, Prediction
from labs.scenarios.preemption_series import Pair, Run, send_at_once
from labs.series import prove_cold
from labs.targets.base import Target
from labs.watch.block_map import BlockMap
from labs.workload import repeated_prompts, workload_digest

NOT_JUDGED = "differ is not judged on sim: its tokens do not hang on K/V"


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
            ("churn_pools", self.churn_prompt_tokens, self.most_churn_outputs),
        ):
            value = getattr(self, name)
            # Two blocks at least: the canary that proves the cache cold is a token longer than one.
            least_pool = max(max(2, -(-(prompt + output) // unit)) * unit for unit in units)
            if min(value if isinstance(value, tuple) else (value,)) < least_pool:
                raise ConfigError(name, value, f"whole numbers from {least_pool}: one request must fit, with its outputs")
        most = min(2 * -(-self.wait_prompt_tokens // unit) * unit for unit in units) - 1
        if self.wait_pool_tokens > most:
            raise ConfigError("wait_pool_tokens", self.wait_pool_tokens, f"at most {most}: the second request must wait")

    @property
    def most_churn_outputs(self) -> int:
        return self.churn_output_tokens * 3 // 2


class Bench:
    """Sends requests at once into pools of one size, and gathers what the report is made of."""

    def __init__(self, session: LabSession, config: Config) -> None:
        probe = session.open_target(num_gpu_blocks=2)
        vocab_size, max_model_len = probe.info.vocab_size, probe.info.max_model_len
        budget = probe.info.config["max_num_batched_tokens"]
        probe.close()
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
        # The last id begins the canary: no measured prompt may begin with it.
        rng = random.Random(config.seed)
        half, most = (config.churn_output_tokens + 1) // 2, config.most_churn_outputs
        self.churn_outputs = [rng.randint(half, most) for _ in range(config.num_requests)]  # requests end one by one
        self.prompts = repeated_prompts(vocab_size - 1, config.seed, config.num_requests, longest, 1)
        self.churn_prompts = [ids[: config.churn_prompt_tokens] for ids in self.prompts]
        self.canary_id = vocab_size - 1
        self.session, self.config = session, config
        self.cold = True
        self.measurements: list[Measurement] = []

    def open(self, cache: Cache, pool_tokens: int) -> Target:
        """A target with a pool of that size, proven to be empty."""
        target = self.session.open_target(**cache.engine_fields, num_gpu_blocks=pool_tokens // cache.unit + 1)
        self.empty(target, cache)
        return target

    def empty(self, target: Target, cache: Cache) -> None:
        """Forget all, and the canary that proves it: in a tight pool what it leaves would be in the way."""
        canary = (self.canary_id,) * (cache.unit + 1)
        proven = prove_cold(self.session, target, canary)
        # Whatever that said, or the canary would stay.
        self.cold = target.reset() and proven and self.cold

    def record(self, *measurements: Measurement) -> None:
        self.session.record(*measurements)
        self.measurements += measurements


@dataclass(frozen=True)
class Point:
    """Survival of one run, for the charts."""

    cache: str
    pool_tokens: int
    survival: float | None


def run(session: LabSession, config: Config) -> LabReport:
    """Two requests in ever smaller pools, two that must wait for each other, then many."""
    full = config.full or session.open_target.kind == "sim"
    bench, asked = Bench(session, config), caches(config.block_size, config.page_sizes)
    pools, churn_pools = _thinned(config.pool_tokens, full), _thinned(config.churn_pools, full)
    num_trials = {cache.title: config.trials if cache.is_hash and session.open_target.kind == "engine" else 1 for cache in asked}
    session.expect(len(asked) * 2 * (len(pools) + 1) + sum(num_trials.values()) * len(churn_pools) * config.num_requests)
    findings: list[str] = []
    of_two: list[Point] = []
    of_many: list[Point] = []
    charts: list[Chart] = []
    for cache in asked:
        pairs = [Pair(cache, config.prompt_tokens, config.output_tokens, pool) for pool in pools]
        preempting = [pair for pair in pairs if pair.preempts]
        shown = preempting[(len(preempting) - 1) // 2] if preempting else None  # whose law and map are shown
        course: list[Point] = []
        for pair in pairs:
            result, chart = _run_pair(bench, pair, pair is shown)
            course.append(Point(cache.title, pair.pool_tokens, result.survival))
            charts += [chart] if chart is not None else []
        of_two += course
        findings += [f"{cache.title}, two requests: the newer found of its own tokens {told}" for told in _course(course)]
    sizes = (config.wait_prompt_tokens, config.wait_output_tokens, config.wait_pool_tokens)
    waiting = {cache.title: _run_pair(bench, Pair(cache, *sizes), False)[0] for cache in asked}
    findings += _wait_findings(config, waiting)
    for cache in asked:
        many = _churn(bench, cache, churn_pools, num_trials[cache.title])
        of_many += _points(cache, many)
        findings += _churn_findings(cache, many, session.open_target.kind)
        charts += [_rates_chart(cache, many)] if cache.is_hash else []
    return LabReport(
        tuple(bench.measurements),
        "cold" if bench.cold else "uncontrolled",
        tuple(findings),
        _conclusion(bench.measurements),
        {"workload": workload_digest([bench.prompts])},
        (
            _survival_chart("Two requests: a hash cache loses block by block, a tree the whole prompt at once", of_two),
            _survival_chart("Many requests: what a resumed one finds hangs on who waits how long, not on the pool alone", of_many),
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
    target = bench.open(cache, pair.pool_tokens)
    try:
        block_map = BlockMap(target.engine, changes=True) if shows and cache.is_hash else None
        prompts = [ids[: pair.prompt_tokens] for ids in bench.prompts[:2]]
        result = send_at_once(target, prompts, [pair.output_tokens] * 2, block_map)
    finally:
        target.close()
    bench.session.progress(f"{cache.title}: two requests", 2)
    watch, counted = result.watch, result.counters
    victims = [one for one in watch.preemptions if one.request == 1]  # the older one must never be
    values = {
        "preempted": len(victims),
        "outputs": victims[0].num_outputs if victims else len(result.outputs[1]),
        "looked_up": counted.preempted_queries,
        "found": counted.preempted_hits,
        "computed_twice": result.num_computed_twice,
        "refused": watch.num_refused,
        "hits": counted.hits,
        "queries": counted.queries,
    }
    units = {"preempted": "requests", "refused": "steps"}
    bench.record(
        *(
            Measurement(
                name, units.get(name, "tokens"), (values[name],), pair.group, pair.row, law, key=shows and name == "found"
            )
            for name, law in pair.predictions().items()
        )
    )
    title = "Preemption: the newer request gives its blocks back, and finds again what the older one did not need"
    return result, block_map.chart(title, "step") if block_map is not None else None


def _course(points: Sequence[Point]) -> list[str]:
    """"99% at 240, 85% at 224 (pool, in tokens)"; nothing where nobody was preempted."""
    told = ", ".join(f"{point.survival:.0%} at {point.pool_tokens:,}" for point in points if point.survival is not None)
    return [f"{told} (pool, in tokens)"] if told else []


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


def _churn(bench: Bench, cache: Cache, pools: Sequence[int], num_trials: int) -> dict[int, list[Run]]:
    """Many unique prompts at once, from the roomiest pool to the tightest; runs by pool."""
    config = bench.config
    count = config.num_requests
    many: dict[int, list[Run]] = {}
    for pool in pools:
        target = bench.open(cache, pool)
        try:
            for trial in range(num_trials):
                if trial:
                    bench.empty(target, cache)
                many.setdefault(pool, []).append(send_at_once(target, bench.churn_prompts, bench.churn_outputs))
                bench.session.progress(f"{cache.title}: {count} requests, pool for {pool:,}", count)
            differing = _num_differing(bench, target, cache, many[pools[0]][0], many[pool][0], pool)
        finally:
            target.close()
        _record_churn(bench, cache, pool, many[pool], differing)
    return many


def _record_churn(bench: Bench, cache: Cache, pool: int, runs: list[Run], differing: int) -> None:
    config, first = bench.config, runs[0]
    group = (
        f"{cache.title}: {config.num_requests} unique prompts of {config.churn_prompt_tokens:,} tokens, "
        f"{min(bench.churn_outputs):,} to {max(bench.churn_outputs):,} generated"
    )
    count, length = config.num_requests, config.churn_prompt_tokens
    unique = Prediction(*theory.predict(theory.shared_prefix_hits, count, 0, length, cache.unit))
    queries = Prediction(*theory.predict(theory.queries, count, length))
    apart = Prediction(*theory.predict(theory.unaccounted_tokens, 1))
    is_sim = bench.session.open_target.kind == "sim"
    same = None if is_sim else Prediction(*theory.predict(theory.differing_outputs, "preemption"))
    notes = {"differ": NOT_JUDGED if is_sim else "", "time": sim_times_note(bench.session.open_target.kind)}
    columns: list[tuple[str, str, Sequence[float | None], Prediction | None]] = [
        ("hits", "tokens", [one.counters.hits for one in runs], unique),
        ("queries", "tokens", [one.counters.queries for one in runs], queries),
        ("unaccounted", "tokens", [one.unaccounted for one in runs], apart),
        ("differ", "outputs", [differing], same),
        ("preempted", "requests", [len(first.watch.preemptions)], None),
        ("looked_up", "tokens", [first.counters.preempted_queries], None),
        ("found", "tokens", [first.counters.preempted_hits], None),
        ("survival", "ratio", [first.survival], None),
        ("naive_rate", "ratio", [first.naive_rate], None),
        ("computed_twice", "tokens", [first.num_computed_twice], None),
        ("time", "s", [one.seconds for one in runs], None),
    ]
    for name, unit, samples, law in columns:
        if None not in samples:
            note = notes.get(name, "")
            bench.record(Measurement(name, unit, tuple(samples), group, f"pool for {pool:,}", law, note=note))  # type: ignore[arg-type]


def _num_differing(bench: Bench, target: Target, cache: Cache, roomy: Run, tight: Run, pool: int) -> int:
    """Outputs of the tight run that differ from the roomy one's beyond a near tie."""
    if roomy.outputs == tight.outputs:
        return 0
    if target.info.dtype != "float32":
        # Other batches round differently, and half precision may choose the other of two near ties: asked again in float32.
        exact = [
            bench.session.open_target(**cache.engine_fields, num_gpu_blocks=tokens // cache.unit + 1, dtype="float32")
            for tokens in (max(bench.config.churn_pools), pool)
        ]
        try:
            roomy, tight = (send_at_once(one, bench.churn_prompts, bench.churn_outputs) for one in exact)
            return _num_beyond_ties(bench, exact[0], roomy, tight)
        finally:
            for one in exact:
                one.close()
    return _num_beyond_ties(bench, target, roomy, tight)


def _num_beyond_ties(bench: Bench, target: Target, roomy: Run, tight: Run) -> int:
    count = 0
    for prompt, first, second in zip(bench.churn_prompts, roomy.outputs, tight.outputs):
        if first != second:
            alone = target.complete(prompt, max_tokens=len(first), logprob_gaps=True)
            parted = theory.common_prefix(first, second)
            count += alone.top_logprob_gaps[parted] >= FLOAT32_NEAR_TIE
    return count


def _points(cache: Cache, many: dict[int, list[Run]]) -> list[Point]:
    return [Point(cache.title, pool, runs[0].survival) for pool, runs in many.items()]


def _churn_findings(cache: Cache, many: dict[int, list[Run]], kind: str) -> list[str]:
    """The course of survival, the wrong rate beside the right one, and what recompute cost."""
    found = [(pool, runs) for pool, runs in many.items() if runs[0].survival is not None]
    if not found:
        return [f"{cache.title}: nobody was preempted in any pool; smaller churn_pools would"]
    lost = "outputs are not in the tree, " if not cache.is_hash else ""
    course = _course(_points(cache, many))[0]
    findings = [f"{cache.title}: resumed requests found of their own tokens {course}; {lost}the rest was computed twice"]
    pool, runs = max(found, key=lambda entry: entry[1][0].naive_rate)
    counted = runs[0].counters
    findings.append(
        f"{cache.title}, pool for {pool:,}: unique prompts hit {counted.hits:,} of {counted.queries:,} tokens; a rate that "
        f"adds {counted.preempted_hits:,} of {counted.preempted_queries:,} tokens of resumed requests shows "
        f"{runs[0].naive_rate:.0%}"
    )
    return [*findings, _cost_finding(cache, many, kind)]


def _cost_finding(cache: Cache, many: dict[int, list[Run]], kind: str) -> str:
    """What the tightest pool computed twice; with several pools, how its steps and its time compare to the roomiest's."""
    pools = list(many)
    roomy, tight = many[pools[0]], many[pools[-1]]
    share = tight[0].num_computed_twice / tight[0].num_needed
    text = (
        f"{cache.title}: in the tightest pool {tight[0].num_computed_twice:,} tokens were computed twice ({share:.0%} of "
        f"what must be computed) and {tight[0].counters.preempted_hits:,} recovered"
    )
    if len(pools) == 1:
        return text
    ratio = ratio_of_medians([one.seconds for one in tight], [one.seconds for one in roomy])
    if len(tight) > 1:
        spread = f" [{ratio.low:.2f}–{ratio.high:.2f}, {len(tight)} trials each]"
    else:
        spread = f" ({sim_times_note(kind) or 'one trial each, so its spread is not known'})"
    return (
        f"{text}; {tight[0].requests_per_step:.1f} requests ran at once on average instead of the roomiest's "
        f"{roomy[0].requests_per_step:.1f}, in {tight[0].watch.num_steps:,} steps instead of {roomy[0].watch.num_steps:,}; it took "
        f"{ratio.value:.2f} times as long{spread}"
    )


def _survival_chart(title: str, points: Sequence[Point]) -> Chart:
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        if point.survival is not None:
            lines.setdefault(point.cache, []).append((float(point.pool_tokens), point.survival))
    series = tuple(ChartSeries(name, points=tuple(sorted(found))) for name, found in lines.items())
    return Chart("lines", title, series, "ratio", "pool, in tokens", "found / looked up by resumed requests")


def _rates_chart(cache: Cache, many: dict[int, list[Run]]) -> Chart:
    """The rate of first lookups beside the one that adds resumed requests."""
    groups: dict[str, list[tuple[str, float]]] = {"first lookups": [], "all lookups": []}
    for pool, runs in many.items():
        counted = runs[0].counters
        groups["first lookups"].append((f"pool for {pool:,}", counted.hits / counted.queries))
        groups["all lookups"].append((f"pool for {pool:,}", runs[0].naive_rate))
    return bars_of(f"Prompts that share nothing show hits once resumed requests are counted in: {cache.title}", groups, "ratio")


def _conclusion(measurements: Sequence[Measurement]) -> str:
    """What happened and what to do about it."""
    return (
        f"{outcome_line(measurements)} Preemption throws away blocks, not content: the hash cache finds a preempted request's own "
        "blocks again, prompt and outputs, until others have taken them, tail first; a tree keeps its prompt whole or not at all, "
        "and outputs are computed again. So recompute costs little while the others end soon or have room to grow, and "
        "nearly everything once they have grown into what was given back; and fewer requests run at once, which the findings "
        "count beside it. In production: watch the number of preemptions and the survival fraction beside the hit rate, which these "
        "lookups must not enter; a hit rate on prompts that share nothing is a sign that they do, and more tokens looked "
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
