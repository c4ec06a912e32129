"""Lab 07: in what order do blocks die, and where is the cliff?

Background. A pool that is too small for all prompts must forget some of them. vLLM hands free blocks out from the front of
one list: blocks without content first, then the least recently freed; a request gives its blocks back tail first, so its
first block, on which all others depend, dies last. SGLang's tree gives up whole leaves, the least recently used first.

Predicted and measured, in tokens (n prompts of L tokens in turn, N usable blocks of B tokens):

    tails first (vLLM)       from the second turn on B·min(⌊(L−1)/B⌋, N − ⌈L/B⌉ − (n−2)·⌊L/B⌋), never below 0
    heads first (a mistake)  all of B·⌊(L−1)/B⌋, or 0 as soon as one block lacks
    whole leaves (SGLang)    the same
    blocks evicted           how many, and how many of them were a prompt's first

Hits follow the formulas; evicted blocks are counted by a small model that moves names in a list
(labs/scenarios/eviction_model.py). Pools are sized in tokens, so that every cache has the same memory.

How to read it. A block survives until its next use if the blocks freed after it, and those at work, fit the pool: its reuse
distance. For block i (from 0) of n prompts in turn that is i + 1 + (n−2)·⌊L/B⌋ + ⌈L/B⌉ blocks, so with tails first hits fade
over the length of one prompt; where a prompt dies as a whole there is a step. Beyond it all is 0: in a cycle the least
recently used is always the one that comes next. The block maps show one line a request: A in use and found by others,
a in use, c kept, x evicted for this request.

On a real model the hash cache runs the first series at full length and everything else is shorter, to spare time. `--full`,
and the simulated target, run everything at full length.

Sources: vLLM 0.32.0, v1/core/block_pool.py and kv_cache_utils.py; SGLang 0.5.23, srt/mem_cache/radix_cache.py and
evict_policy.py; Mattson et al. 1970, doi:10.1147/sj.92.0078 (stack distance).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from engine.errors import ConfigError
from labs import theory
from labs.chart import Chart, bars_of
from labs.field_check import check_numbers
from labs.measure import sim_times_note
from labs.outcome import outcome_line
from labs.protocol import Lab, LabReport, LabSession, Measurement, Prediction
from labs.scenarios.empty_pools import EmptyPools
from labs.scenarios.eviction_reason import reason, reason_counted
from labs.scenarios.eviction_series import LETTERS, Cycle, Order, orders_of
from labs.scenarios.eviction_sweep import EvictionSweep
from labs.targets.base import CacheCounters, Completion, Target, TargetError
from labs.watch.block_map import MAX_ROWS, BlockMap, content_of
from labs.workload import TokenIds, workload_digest


@dataclass(frozen=True)
class Config:
    """Sizes of the experiment; pools and prompts in tokens."""

    prompt_tokens: int = 2001  # of A and of B
    pool_tokens: int = 3200  # 200 blocks of 16: one prompt and a good half of another
    num_requests: int = 20  # A, B, A, B, …
    short_prompt_tokens: int = 201  # the same for what runs short on a real model
    short_pool_tokens: int = 320  # their pool
    sweep_prompt_tokens: int = 97  # of the working sets' prompts
    working_sets: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)  # prompts in turn
    sweep_pool_tokens: int = 448  # for the working sets: four prompts, and a half
    sweep_pools: tuple[int, ...] = (256, 304, 320, 336, 352, 368, 384, 400, 448)  # the pools for them
    sweep_prompts: int = 4  # in turn, in pools of other sizes
    rounds: int = 3  # turns of each prompt in a sweep
    map_prompt_tokens: int = 161  # of A and of B in the block maps
    map_pool_tokens: int = 256  # the width of a map
    map_requests: int = 10  # the lines of a map
    block_size: int = 16  # of the hash cache
    page_sizes: tuple[int, ...] = (1, 16)  # of the radix caches
    full: bool = False  # everything at full length
    seed: int = 0

    def __post_init__(self) -> None:
        most = {
            "working_sets": len(LETTERS), "sweep_prompts": len(LETTERS), "map_requests": MAX_ROWS,
            "num_requests": 10_000, "rounds": 100,
        }  # fmt: skip
        check_numbers(self, least={"num_requests": 3, "rounds": 2, "map_requests": 3}, most=most)
        largest = max(self.block_size, *self.page_sizes)
        for name, length in self.lengths.items():
            if length <= largest:
                accepted = f"a whole number above {largest}: a prompt must fill a block and go on"
                raise ConfigError(name, length, accepted)
        for name, prompt in (
            ("pool_tokens", self.prompt_tokens), ("short_pool_tokens", self.short_prompt_tokens),
            ("sweep_pool_tokens", self.sweep_prompt_tokens), ("sweep_pools", self.sweep_prompt_tokens),
            ("map_pool_tokens", self.map_prompt_tokens),
        ):  # fmt: skip
            # Whole blocks, and a slot for the token that is generated.
            least, value = prompt + largest, getattr(self, name)
            if min(value if isinstance(value, tuple) else (value,)) < least:
                raise ConfigError(name, value, f"whole numbers from {least}: one prompt must fit")

    @property
    def lengths(self) -> dict[str, int]:
        """Prompt lengths by field."""
        names = ("prompt_tokens", "short_prompt_tokens", "sweep_prompt_tokens", "map_prompt_tokens")
        return {name: getattr(self, name) for name in names}


class Bench:
    """Sends cycles of prompts and gathers what the report is made of."""

    def __init__(self, session: LabSession, config: Config) -> None:
        self.pools = EmptyPools(session)
        most = self.pools.info.max_model_len - 1  # a token is generated
        for name, length in config.lengths.items():
            if length > most:
                raise ConfigError(name, length, f"at most {most} with this model")
        self.prompts = self.pools.prompts(len(LETTERS), max(config.lengths.values()), config.seed)
        self.session = session
        self.measurements: list[Measurement] = []

    def open(self, order: Order, pool_tokens: int) -> Target:
        return self.pools.open(order.engine_fields, order.num_usable(pool_tokens))

    def send(self, target: Target, cycle: Cycle, label: str) -> tuple[list[Completion], CacheCounters]:
        """The cycle's requests, one after the other. Raises TargetError when requests and counters tell of other hits."""
        target.counters()  # start from zero
        completions = []
        for letter in cycle.letters:
            completions.append(target.complete(self.prompt(letter, cycle)))
            self.session.progress(label)
        counted, reported = target.counters(), sum(completion.num_cached_tokens or 0 for completion in completions)
        if counted.hits != reported:
            raise TargetError(f"{label}: requests report {reported:,} cached tokens, the counters say {counted.hits:,}")
        return completions, counted

    def prompt(self, letter: str, cycle: Cycle) -> TokenIds:
        return self.prompts[LETTERS.index(letter)][: cycle.prompt_tokens]

    def record(self, *measurements: Measurement) -> None:
        self.session.record(*measurements)
        self.measurements += measurements


def run(session: LabSession, config: Config) -> LabReport:
    """A and B in turn, then working sets and pools, then the maps."""
    full = config.full or session.open_target.kind == "sim"
    bench, orders = Bench(session, config), orders_of(config.block_size, config.page_sizes)
    alternating = _alternating(config, orders, full)
    sweeps = _sweeps(config, full)
    drawn = Cycle(2, config.map_requests, config.map_prompt_tokens, config.map_pool_tokens)
    map_orders = orders_of(config.block_size, (config.block_size,))  # blocks of one size: the pictures can be compared
    session.expect(
        sum(cycle.num_requests for _, cycle in alternating)
        + len(orders) * sum(sweep.num_requests for sweep in sweeps)
        + len(map_orders) * drawn.num_requests
    )
    findings = [_alternate(bench, order, cycle) for order, cycle in alternating]
    charts = [_alternating_chart(bench, alternating[-1][1])]
    for sweep in sweeps:
        rates = _run_sweep(bench, orders, sweep)
        findings += sweep.findings(rates)
        charts.append(sweep.chart(rates))
    for order in map_orders:
        finding, chart = _draw_map(bench, order, drawn)
        findings.append(finding)
        charts.append(chart)
    findings += _scope(bench, config, full)
    return LabReport(
        tuple(bench.measurements),
        "cold" if bench.pools.cold else "uncontrolled",
        tuple(findings),
        _conclusion(bench, *alternating[0]),
        {"workload": workload_digest([bench.prompts])},
        tuple(charts),
    )


def _alternating(config: Config, orders: list[Order], full: bool) -> list[tuple[Order, Cycle]]:
    """Who sends A and B in turn, and how long they are; the last cycle is what all orders share."""
    long = Cycle(2, config.num_requests, config.prompt_tokens, config.pool_tokens)
    short = Cycle(2, config.num_requests, config.short_prompt_tokens, config.short_pool_tokens)
    if full or short == long:
        return [(order, long) for order in orders]
    return [(orders[0], long), *((order, short) for order in orders)]


def _alternate(bench: Bench, order: Order, cycle: Cycle) -> str:
    """Send A and B in turn, record what each request found, and say why."""
    target = bench.open(order, cycle.pool_tokens)
    try:
        completions, counted = bench.send(target, cycle, f"{order.title}: A and B in turn")
    finally:
        target.close()
    found = [completion.num_cached_tokens for completion in completions]
    group, first = _group("A and B in turn", cycle), cycle.num_prompts

    def add(name: str, samples: Sequence[float], law: Prediction | None, unit: str = "tokens") -> None:
        bench.record(Measurement(name, unit, tuple(samples), group, order.title, law, key=name == "later"))

    add("first", found[:first], Prediction(*theory.predict(theory.reuse, 0, cycle.prompt_tokens, order.cache.unit)))
    add("later", found[first:], cycle.per_turn(order))
    add("total", [counted.hits], cycle.total(order))
    add("queries", [counted.queries], cycle.queries)
    add("ttft_first", [completion.ttft_s for completion in completions[:first]], None, "s")
    add("ttft_later", [completion.ttft_s for completion in completions[first:]], None, "s")
    share, due = counted.hits / counted.queries, cycle.total(order)
    verdict = "" if due is None or counted.hits == due.value else f", NOT the {due.value:,} that follow from the sizes"
    return f"{order.title}: {counted.hits:,} of {counted.queries:,} tokens found ({share:.1%}){verdict}. {reason(order, cycle)}"


def _sweeps(config: Config, full: bool) -> list[EvictionSweep]:
    """More prompts in one pool, and other pools; unless full with fewer points and turns."""
    length, sweep_pool = config.sweep_prompt_tokens, config.sweep_pool_tokens
    sizes, pools, rounds = config.working_sets, config.sweep_pools, config.rounds
    if not full:
        # Around the cliff: the most that fit, and the next two.
        sizes = tuple(size for size in sizes if sweep_pool / length - 1 <= size <= sweep_pool / length + 2) or sizes
        every = max(1, len(pools) // 3)
        pools, rounds = pools[every - 1 :: every], min(rounds, 2)
    return [
        EvictionSweep.over_working_sets(sizes, length, sweep_pool, rounds),
        EvictionSweep.over_pools(pools, length, config.sweep_prompts, rounds),
    ]


def _run_sweep(bench: Bench, orders: list[Order], sweep: EvictionSweep) -> dict[str, list[float]]:
    """Every cycle with every order; hit rates after the first turn, by order."""
    rates: dict[str, list[float]] = {order.title: [] for order in orders}
    for x, cycle in sweep.cycles.items():
        row = sweep.row.format(x)
        for order in orders:
            target = bench.open(order, cycle.pool_tokens)
            try:
                hits = bench.send(target, cycle, f"{row}, {order.title}")[1].hits
            finally:
                target.close()
            bench.record(Measurement(order.column, "tokens", (hits,), sweep.group, row, cycle.total(order)))
            rates[order.title].append(cycle.later_rate(hits))
    return rates


def _draw_map(bench: Bench, order: Order, cycle: Cycle) -> tuple[str, Chart]:
    """A and B in turn in a small pool, one line a request, and what was evicted."""
    target = bench.open(order, cycle.pool_tokens)
    try:
        names = {
            name: (letter, index)
            for letter in LETTERS[: cycle.num_prompts]
            for index, name in enumerate(content_of(target, bench.prompt(letter, cycle)))
        }
        block_map = BlockMap(target.engine, labels=[f"{number} {letter}" for number, letter in enumerate(cycle.letters, start=1)])
        with block_map.watching():
            found = bench.send(target, cycle, f"{order.title}: block map")[1].hits
    finally:
        target.close()
    # A canary that could not be reset away has no place in a prompt.
    evicted = [names.get(name, ("", None)) for name in block_map.evicted]
    num_first, group = sum(index == 0 for _, index in evicted), _group("Block maps of A and B in turn", cycle)
    served = cycle.served(order)
    gone = [index for one in served for _, index in one.evicted]

    def add(name: str, unit: str, value: int, by_the_model: int) -> None:
        law = Prediction(by_the_model, f"names moved in a list by the model: {by_the_model:,}")
        bench.record(Measurement(name, unit, (value,), group, order.title, law))

    add("total", "tokens", found, sum(one.hits for one in served))
    add("evicted", "blocks", len(evicted), len(gone))
    add("first_evicted", "blocks", num_first, gone.count(0))
    title = f"{order.title}: {reason_counted(order, len(evicted), found)}"
    depth = sorted(index for _, index in evicted if index is not None)
    shallowest = f"; the shallowest was block {depth[0]} (from 0)" if depth else ""
    finding = f"{order.title}, block map: {len(evicted):,} blocks evicted, {num_first:,} of them a prompt's first{shallowest}"
    return finding, block_map.chart(title, "request")


def _scope(bench: Bench, config: Config, full: bool) -> list[str]:
    """What was left out on a real model, and what simulated times are worth."""
    note = sim_times_note(bench.session.open_target.kind)
    if full:
        return [note] if note else []
    return [
        f"shortened on a real model: A and B in turn have {config.short_prompt_tokens:,} tokens and a pool for "
        f"{config.short_pool_tokens:,} with all but the {config.prompt_tokens:,} tokens on the first cache, and the sweeps fewer "
        "points and turns; --full runs all"
    ]


def _alternating_chart(bench: Bench, cycle: Cycle) -> Chart:
    """Share of tokens found, predicted beside measured."""
    groups: dict[str, list[tuple[str, float]]] = {"predicted": [], "measured": []}
    for one in bench.measurements:
        if (one.group, one.name) == (_group("A and B in turn", cycle), "total"):
            if one.predicted is not None:
                groups["predicted"].append((one.row, one.predicted.value / cycle.queries.value))
            groups["measured"].append((one.row, one.value / cycle.queries.value))
    return bars_of("The order of eviction decides what A and B in turn find", groups, "ratio")


def _group(title: str, cycle: Cycle) -> str:
    return f"{title}, {cycle.prompt_tokens:,} tokens each, pool for {cycle.pool_tokens:,}"


def _conclusion(bench: Bench, order: Order, cycle: Cycle) -> str:
    """What happened and what to do about it."""
    total = next(one for one in bench.measurements if one.name == "total")
    why = (
        "both fit, and only the first turn of each finds nothing."
        if cycle.fits(order)
        else "it evicts tails before heads, and a head is worth more than what hangs on it."
    )
    return (
        f"{outcome_line(bench.measurements)} Two prompts of {cycle.prompt_tokens:,} tokens in turn want "
        f"{2 * cycle.prompt_tokens:,} tokens; in a pool for {cycle.pool_tokens:,} the {order.title}, found "
        f"{total.value / cycle.queries.value:.1%}: {why} Freed heads first, or given up in whole leaves, the same memory holds "
        "nothing of use as soon as the prompts do not all fit. In a cycle the least recently used prompt "
        "is the one that comes next, so one prompt too many can cost every hit, and not its share. In production: add up "
        "the tokens that pass between two turns of one conversation (its reuse distance) and compare them with the pool, "
        "whose size the engine logs at its start. If they do not fit: more memory for the cache, fewer contexts on one "
        "replica, or a router that sends a conversation back to the replica that has it. To tell eviction from a changed "
        "key, send one prompt twice in a row: eviction finds the second."
    )


LAB = Lab(
    number=7,
    name="eviction",
    question="In what order do blocks die, and where is the cliff?",
    config_type=Config,
    quick=Config(
        prompt_tokens=97, pool_tokens=160, num_requests=6, short_prompt_tokens=97, short_pool_tokens=160, sweep_prompt_tokens=33,
        working_sets=(2, 3), sweep_pool_tokens=96, sweep_pools=(96, 112), sweep_prompts=3, rounds=2,
        map_prompt_tokens=97, map_pool_tokens=160, map_requests=4, page_sizes=(16,),
    ),  # fmt: skip
    full=Config(full=True),
    run=run,
)
