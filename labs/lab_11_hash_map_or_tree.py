"""Lab 11: when do the two caches differ?

Background. vLLM finds a prompt's start in a hash map from block names to blocks; SGLang walks a radix tree of token runs.
Sent the same prompts, both are offered the same tokens: those in common with an earlier prompt. They lose some of them, and
not the same ones, so that every difference between their hits has a kind:

    rounding     behind the last whole block of a match: up to B − 1 tokens; with pages of one token nothing
    last token   is always computed, and with it its block: a prompt of whole blocks repeats with B tokens less, or with 1
    eviction     the map's blocks die one by one, tail before head; the tree gives up whole leaves, head and all
    twins        of the same step: the map knows a block as soon as it has slots, the tree learns of it after the step

Predicted. For every request, from the token ids: offered − lost, kind by kind, gives its hits; the difference of two
caches is the difference of their losses. Who is admitted first decides what is found in a small pool: by longest cached
prefix (lpm), two families of requests that came in turns run one after the other, and nothing shared is computed twice.
A lookup asks the map once a block up to the first that is missing, min(⌊m/B⌋ + 1, ⌊(L − 1)/B⌋); it asks the tree once a
node on its path, and once in vain where the path ends early. A block that is computed again although it has a name stays
as a duplicate in the map's pool; the tree keeps one copy.

How to read it. First each cache by itself: hits, probes, duplicates by scenario. Then hash − radix: the law under the table
names what each difference consists of. Times of lookups are this machine's, on every target: they are Python's, and only
their growth with the prompt's length says something about other engines. A map's lookup needs names, which are made before
(lab 01) and not timed here.

Sources: vLLM 0.32.0, v1/core/block_pool.py and kv_cache_manager.py; SGLang 0.5.23, srt/mem_cache/radix_cache.py and
managers/schedule_policy.py; labs/theory.py, labs/scenarios/hit_losses.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.admission_order import MAX_SORTED_REQUESTS, SHORT_MATCH_TOKENS
from labs import theory
from labs.benches import cache_cost
from labs.caches import Cache, caches
from labs.chart import Chart, ChartSeries, bars_of
from labs.field_check import check_numbers
from labs.length_check import check_length
from labs.measure import Spread
from labs.outcome import outcome_line
from labs.protocol import Lab, LabReport, LabSession, Measurement, Prediction
from labs.scenarios.hit_losses import HitLosses, difference_text, signed
from labs.scenarios.two_caches_series import (
    QUEUE,
    SINGLE,
    SORTED,
    TURNS,
    TWINS,
    Forecast,
    Scenario,
    TwoCachesWorkload,
    WorkloadMaker,
)
from labs.series import prove_cold
from labs.targets.base import Completion, Target, TargetError
from labs.watch.probe_count import count_probes, num_duplicates

WHOLE = "the whole workload"
MAX_LOOKUP_UNIT = 4_096  # of labs/benches/cache_cost.py
COLUMNS_NOTE = (
    "exact: requests that found what their ids say; probes: questions to a table, by all lookups; "
    "copies: blocks that hold what another holds"
)
TIMES_NOTE = "this machine's real time, on every target; the prompt is cached and its names are made"


@dataclass(frozen=True)
class Config:
    """Sizes of the scenarios; in tokens unless said otherwise."""

    shared_tokens: int = 405  # five more than whole blocks of 16
    user_tokens: int = 40  # that each request has of its own
    num_requests: int = 6  # that share a prompt
    repeat_tokens: int = 320  # whole blocks of 16; of twins too
    num_repeats: int = 3  # requests with one prompt
    mixed_tokens: int = 160  # of the longest mixed prompt
    num_mixed: int = 12  # requests that go on from anywhere in an earlier one
    num_twins: int = 8  # equal requests at once
    twin_seats: int = 4  # twins that one step admits
    turn_tokens: int = 401  # of each prompt in the tight pool
    num_turns: int = 6  # requests with two prompts in turns
    num_queued: int = 4  # of each family in the queue
    lookup_tokens: tuple[int, ...] = (1_000, 10_000, 50_000)  # of the prompts whose lookup is timed
    lookup_trials: int = 7
    block_size: int = 16  # of the hash cache
    page_sizes: tuple[int, ...] = (1, 16)  # of the radix caches
    seed: int = 0

    def __post_init__(self) -> None:
        least = {name: 2 for name in ("num_requests", "num_repeats", "num_mixed", "num_twins", "num_turns", "num_queued")}
        most = {
            "num_requests": 64, "num_twins": 64, "num_queued": MAX_SORTED_REQUESTS // 2, "num_turns": 64, "num_repeats": 64,
            "num_mixed": 128, "twin_seats": 64,
            "block_size": MAX_LOOKUP_UNIT, "page_sizes": MAX_LOOKUP_UNIT, "lookup_tokens": 1_000_000, "lookup_trials": 1_000,
        }  # fmt: skip
        check_numbers(self, {**least, "repeat_tokens": 2, "mixed_tokens": 2}, most)
        unit = max(self.block_size, *self.page_sizes)
        # What is cached must be longer than lpm overlooks, whatever is lost to rounding.
        shortest = self.user_tokens + max(SHORT_MATCH_TOKENS + 1, unit * (SHORT_MATCH_TOKENS // unit + 1))
        if self.turn_tokens < shortest:
            accepted = f"a whole number from {shortest}, with these user_tokens and units: lpm overlooks shorter prefixes"
            raise ValueError(f"turn_tokens is {self.turn_tokens}; accepted: {accepted}")


def run(session: LabSession, config: Config) -> LabReport:
    """Send the workload to each cache, then set them side by side."""
    workload = _workload(session, config)
    plans = [(cache, workload.forecasts(cache)) for cache in caches(config.block_size, config.page_sizes)]
    session.expect(sum(len(scenario.prompts) for scenario in workload.scenarios) * len(plans))
    measurements: list[Measurement] = []
    cold = True
    for cache, forecasts in plans:
        found, started_cold = _run_cache(session, workload, cache, forecasts)
        measurements += found
        cold = cold and started_cold
    (hash_plan, *radix_plans) = plans
    for radix_plan in radix_plans:
        found = _differences(measurements, workload, hash_plan, radix_plan)
        session.record(*found)
        measurements += found
    # How long a wrong lookup takes is of no interest.
    exact = all(one.agrees for one in measurements)
    lookups = _time_lookups(session, config, [cache for cache, _ in plans]) if exact else []
    measurements += lookups
    totals = {cache.title: sum((one.total for one in forecasts.values()), HitLosses()) for cache, forecasts in plans}
    return LabReport(
        tuple(measurements),
        "cold" if cold else "uncontrolled",
        _findings(measurements, totals),
        _conclusion(config, measurements),
        {"workload": workload.digest, "losses": {title: one.by_kind for title, one in totals.items()}},
        _charts(measurements, totals, lookups),
    )


def _workload(session: LabSession, config: Config) -> TwoCachesWorkload:
    probe = session.open_target(num_gpu_blocks=2)
    vocab_size, max_model_len = probe.info.vocab_size, probe.info.max_model_len
    probe.close()
    most = max_model_len - 1  # a token is generated
    check_length(config, most, shared_tokens=config.shared_tokens, user_tokens=config.user_tokens)
    for name in ("repeat_tokens", "mixed_tokens", "turn_tokens"):
        check_length(config, most, **{name: getattr(config, name)})
    make = WorkloadMaker(vocab_size, config.seed)
    shared = config.turn_tokens - config.user_tokens
    families = [make.shared(shared, config.user_tokens, config.num_queued) for _ in range(2)]
    queue = tuple(prompt for pair in zip(*families) for prompt in pair)
    turns = tuple(make.new_prompt(config.turn_tokens) for _ in range(2))
    in_turns = tuple(number % 2 for number in range(max(len(queue), config.num_turns)))
    scenarios = (
        Scenario("shared prompt", SINGLE, make.shared(config.shared_tokens, config.user_tokens, config.num_requests)),
        Scenario("repeats", SINGLE, (make.new_prompt(config.repeat_tokens),) * config.num_repeats),
        Scenario("mixed prefixes", SINGLE, make.mixed(config.mixed_tokens, config.num_mixed)),
        Scenario("twins at once", TWINS, (make.new_prompt(config.repeat_tokens),) * config.num_twins),
        Scenario("two in turns", TURNS, tuple(turns[at] for at in in_turns[: config.num_turns]), in_turns[: config.num_turns]),
        Scenario("queue, as it came", QUEUE, queue, in_turns[: len(queue)]),
        Scenario("queue, lpm", SORTED, queue, in_turns[: len(queue)]),
    )
    return TwoCachesWorkload(scenarios, make.canary(), config.twin_seats, config.turn_tokens)


def _run_cache(
    session: LabSession, workload: TwoCachesWorkload, cache: Cache, forecasts: dict[str, Forecast]
) -> tuple[list[Measurement], bool]:
    """All scenarios through one cache: measurements, and whether each pool was proven cold."""
    scenarios = workload.scenarios
    roomy = [one for one in scenarios if not one.is_tight]
    num_tokens = sum(len(prompt) for one in roomy for prompt in one.prompts)
    # A step admits as many twins as there are seats: the budget must not end it before, nor cut a prompt in two.
    twins = next(one for one in scenarios if one.kind == TWINS)
    budget = max(workload.longest, workload.twin_seats * len(twins.prompts[0]))
    blocks = cache.blocks_for(num_tokens, sum(len(one.prompts) for one in roomy))
    tight_blocks = workload.tight_blocks(cache) + 1  # the null block
    pools: list[tuple[list[Scenario], dict[str, Any]]] = [
        (roomy, {"num_gpu_blocks": blocks, "max_num_seqs": workload.twin_seats}),
        ([one for one in scenarios if one.kind in (TURNS, QUEUE)], {"num_gpu_blocks": tight_blocks, "max_num_seqs": 1}),
        ([one for one in scenarios if one.kind == SORTED], {"num_gpu_blocks": tight_blocks, "max_num_seqs": 1, "policy": "lpm"}),
    ]
    measurements: list[Measurement] = []
    cold = True
    for rows, fields in pools:
        target = session.open_target(**cache.engine_fields, **fields, max_num_batched_tokens=budget)
        try:
            asked = None
            for scenario in rows:
                if asked is None:
                    cold = prove_cold(session, target, workload.canary_ids) and cold
                    target.reset()  # the canary itself would take room
                    if not scenario.is_tight:
                        asked = count_probes(target.engine)
                found = _run_scenario(session, target, workload, cache, scenario, forecasts[scenario.row], asked)
                session.record(*found)
                measurements += found
        finally:
            target.close()
    return measurements, cold


def _run_scenario(
    session: LabSession,
    target: Target,
    workload: TwoCachesWorkload,
    cache: Cache,
    scenario: Scenario,
    forecast: Forecast,
    asked: Any,
) -> list[Measurement]:
    """Send one scenario and measure it. Raises TargetError when requests and counters disagree."""
    probes_before = asked.num_probes if asked is not None else 0
    copies_before = num_duplicates(target.engine) if asked is not None else 0
    completions = _send(session, target, cache, scenario)
    counted = target.counters()
    hits = [completion.num_cached_tokens or 0 for completion in completions]
    if sum(hits) != counted.hits:
        raise TargetError(f"{scenario.row}: requests report {sum(hits)} cached tokens, the counters say {counted.hits}")
    num_requests = len(hits)
    num_exact = sum(found == one.hits for found, one in zip(hits, forecast.losses))
    num_tokens = sum(map(len, scenario.prompts))
    kept = workload.kept(cache, scenario)
    law = Prediction(forecast.total.hits, forecast.total.text + (f"; kept for a turn: {kept.law}" if kept else ""))

    def measure(name: str, unit: str, value: int, predicted: Prediction, **more: Any) -> Measurement:
        return Measurement(name, unit, (value,), cache.title, scenario.row, predicted, **more)

    every = Prediction(num_requests, f"each of {num_requests} finds what its token ids say")
    found = [
        measure("hits", "tokens", counted.hits, law, key=True),
        measure("exact", "requests", num_exact, every, note=COLUMNS_NOTE),
        measure("queries", "tokens", counted.queries, Prediction(num_tokens, f"all {num_tokens:,} prompt tokens")),
    ]
    if asked is not None:
        probes = Prediction(forecast.num_probes, _probe_law(cache, num_requests, forecast.num_probes))
        num_again = forecast.total.last_token
        copies = Prediction(*theory.predict(theory.duplicate_blocks, num_again, cache.unit, int(cache.is_hash)))
        params = {"num_requests": num_requests}
        found.append(measure("probes", "lookups", asked.num_probes - probes_before, probes, params=params))
        found.append(measure("copies", "blocks", num_duplicates(target.engine) - copies_before, copies))
    if scenario.kind in (QUEUE, SORTED):
        times = [completion.ttft_s for completion in completions]
        order = sorted(range(num_requests), key=times.__getitem__)  # one seat: who is admitted earlier answers earlier
        num_right = sum(place == index for place, index in zip(order, scenario.admission))
        text = "family by family" if scenario.kind == SORTED else "first come, first served"
        found.append(measure("in order", "requests", num_right, Prediction(num_requests, f"{text}: all {num_requests}")))
    return found


def _send(session: LabSession, target: Target, cache: Cache, scenario: Scenario) -> list[Completion]:
    label = f"{cache.title}: {scenario.row}"
    if scenario.at_once:
        completions = target.complete_all(scenario.prompts, max_tokens=1)
        session.progress(label, len(completions))
        return completions
    completions = []
    for prompt in scenario.prompts:
        completions.append(target.complete(prompt))
        session.progress(label)
    return completions


def _probe_law(cache: Cache, num_requests: int, total: int) -> str:
    each = f"min(⌊m/{cache.unit}⌋ + 1, ⌊(L − 1)/{cache.unit}⌋)" if cache.is_hash else "nodes on the path, and one in vain"
    return f"{num_requests} lookups, each {each}: {total:,} in all"


def _differences(
    measurements: list[Measurement],
    workload: TwoCachesWorkload,
    hash_plan: tuple[Cache, dict[str, Forecast]],
    radix_plan: tuple[Cache, dict[str, Forecast]],
) -> list[Measurement]:
    """Hits of the hash cache minus those of a radix cache, by scenario and in all, each with what it consists of."""
    (first, ours), (second, theirs) = hash_plan, radix_plan
    group = f"{first.title} − {second.title}"
    found: list[Measurement] = []
    rows = [(scenario.row, (scenario.row,)) for scenario in workload.scenarios]
    for row, parts in [*rows, (WHOLE, tuple(ours))]:
        losses = [sum((plan[part].total for part in parts), HitLosses()) for plan in (ours, theirs)]
        measured = [sum(_value(measurements, cache.title, part, "hits") for part in parts) for cache in (first, second)]
        law = Prediction(losses[0].hits - losses[1].hits, difference_text(*losses))
        found.append(Measurement("hash − radix", "tokens", (measured[0] - measured[1],), group, row, law, key=True))
    return found


def _time_lookups(session: LabSession, config: Config, tested: list[Cache]) -> list[Measurement]:
    found: list[Measurement] = []
    for cache in tested:
        longest = 2_000 + 2_000 // 10  # of cache_cost's own prompts, which are not used here
        settings = cache_cost.Config(block_size=cache.unit, small_pool_blocks=longest + 2, seed=config.seed)
        timed = cache_cost.time_lookups(settings, cache.engine_fields["prefix_cache"], config.lookup_trials, config.lookup_tokens)
        for length, samples in timed:
            row, params = f"{length:,} tokens", {"tokens": length, "cache": cache.title}
            found.append(Measurement(cache.title, "s", samples, "time of one lookup", row, params=params, note=TIMES_NOTE))
        session.record(*found[-len(timed) :])
    return found


def _value(measurements: list[Measurement], group: str, row: str, name: str) -> int:
    return sum(int(one.value) for one in measurements if (one.group, one.row, one.name) == (group, row, name))


def _findings(measurements: list[Measurement], totals: dict[str, HitLosses]) -> tuple[str, ...]:
    first, *others = totals
    findings = [_difference_finding(measurements, totals, first, other) for other in others]

    def by_cache(row: str) -> str:
        return ", ".join(f"{_value(measurements, title, row, 'hits'):,} with {title}" for title in totals)

    findings.append(f"two prompts in turns, in a pool with room for one and a half, found {by_cache('two in turns')}")
    for title in totals:
        came, by_prefix = (_value(measurements, title, row, "hits") for row in ("queue, as it came", "queue, lpm"))
        findings.append(f"{title}: the queue found {came:,} tokens as it came, {by_prefix:,} by longest prefix first")
    for title in totals:
        probed = [one for one in measurements if one.group == title and one.name == "probes"]
        num_probes = sum(int(one.value) for one in probed)
        num_lookups = sum(one.params["num_requests"] for one in probed)
        num_copies = sum(_value(measurements, title, one.row, "copies") for one in probed)
        timed = [one for one in measurements if one.name == title and one.unit == "s"]
        times = ", ".join(f"{Spread.of(one.samples).median * 1e6:,.0f} µs for {one.row}" for one in timed)
        # A tree is asked for tokens as they are.
        named = ", its names made before and not timed: lab 01 times them" if title == first and times else ""
        findings.append(
            f"{title}: {num_probes:,} probes in {num_lookups} lookups, {num_copies} blocks that are second copies; "
            f"one lookup took {times or 'a time that was not measured, because counts above are wrong'}{named}"
        )
    return tuple(findings)


def _difference_finding(measurements: list[Measurement], totals: dict[str, HitLosses], first: str, other: str) -> str:
    """How many tokens more one cache found than the other in all, and what the laws say it consists of."""
    found = _value(measurements, f"{first} − {other}", WHOLE, "hash − radix")
    split = difference_text(totals[first], totals[other])
    lead = f"over the whole workload, {first} − {other}: {signed(found)} tokens found"
    if found == totals[first].hits - totals[other].hits:
        return f"{lead}; by the laws: {split}"
    return f"{lead}, NOT what the laws say: {split}"


def _conclusion(config: Config, measurements: list[Measurement]) -> str:
    largest = max(config.block_size, *config.page_sizes)
    return (
        f"{outcome_line(measurements)} With room for everything and one request at a time, the two caches differ by less than a "
        f"block a request, here {largest} tokens: little with blocks of 16, and not with blocks of hundreds. They part where memory "
        "is short or requests come together. A hash map keeps the heads of what it must give up, so shared starts survive; a tree "
        "drops a leaf whole, and a prompt that shares nothing yet is one leaf. Twins of one step are served at once by the map, and "
        "computed once each where content is found after the step. In production: send one request of a kind ahead of its twins; "
        "where the working set exceeds the pool, order a mixed queue by longest prefix: SGLang does with --schedule-policy lpm (its "
        f"default is fcfs, and lpm falls back to it above {MAX_SORTED_REQUESTS} waiting requests), vLLM has no such policy, so send "
        "related requests together; and compare hit rates of two engines only with equal pools, in tokens."
    )


def _charts(
    measurements: list[Measurement], totals: dict[str, HitLosses], lookups: list[Measurement]
) -> tuple[Chart, ...]:
    found: dict[str, list[tuple[str, float]]] = {}
    for one in measurements:
        if one.name == "hits" and one.group in totals:
            found.setdefault(one.group, []).append((one.row, one.value))
    charts = [bars_of("The same prompts, by scenario: tokens found", found)]
    if not lookups:  # counts are wrong, and the laws do not explain them
        return tuple(charts)
    lost = {title: list(one.by_kind.items()) for title, one in totals.items()}
    series: dict[str, list[tuple[float, float]]] = {}
    for one in lookups:
        series.setdefault(one.name, []).append((one.params["tokens"], one.value))
    lines = tuple(ChartSeries(name, points=tuple(points)) for name, points in series.items())
    title = "One lookup, by the prompt's length; the map's names are made before"
    return (
        *charts,
        bars_of("What each cache does not find of the same offer: by the laws, by kind", lost),
        Chart("lines", title, lines, "s", "prompt length (tokens)", "time of a lookup"),
    )


LAB = Lab(
    number=11,
    name="hash-map-or-tree",
    question="When do the two caches differ?",
    config_type=Config,
    quick=Config(
        shared_tokens=53, user_tokens=16, num_requests=4, repeat_tokens=64, mixed_tokens=64, num_mixed=6, num_twins=4,
        twin_seats=2, turn_tokens=81, num_turns=4, num_queued=2, lookup_tokens=(1_000, 10_000), lookup_trials=5,
    ),
    run=run,
)  # fmt: skip
