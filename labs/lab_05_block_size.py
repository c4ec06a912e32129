"""Lab 05: what does granularity cost, and when is it everything?

Background. A cache finds whole units only: blocks, pages, or a larger match unit where several layer groups must agree (hybrid
models, whose units of 528, 784, 1,056 or 2,096 tokens no log line names). A match of m tokens loses its last m mod U. With
U = 16 that is 7.5 tokens on average; with U above the shared prefix it is everything, however many requests share it, and the
counters then look as if nothing were shared.

Predicted and measured (P = shared tokens, L = prompt tokens, N requests, U = block, page or match unit):

    N requests share P of L     each later one finds U·⌊min(P, L−1)/U⌋; 0 when P < U
    the next prefix that hits   U·(⌊P/U⌋ + 1) shared tokens, sent where P found nothing
    match unit                  blocks of 16 whose hits come in units of 1,056, from the same law
    mean loss                   (U−1)/2: matches over all remainders, each behind a random number of whole units
    fitted unit                 the only U that explains every hit of a series; it is the one in force
    names                       ⌊L/B⌋ for each prompt: what small blocks cost, in bookkeeping (in nanoseconds: lab 01)
    block > max_model_len       no block can ever fill: said before any traffic

How to read it. `later` is what each request after the first finds; where it is 0, the times are the control: the same prompts
with nothing reused. The findings tell *too short* from *nothing shared*: they compare the prompts' own ids with the unit, and
name the next prefix length that would hit. Where hits come in steps that the block size does not explain, the fitted unit does.
Where the longest prompt can fill a block, its repeat may still find nothing: its last token is always computed, and with it its
block.

All prompts are random token ids. On a real model a series sends `real_requests` requests, and the remainders are asked of the
hash cache alone, to spare time; `--full`, and the simulated target, do it all.

On a server its one block or page is in force: its prefixes are asked, shorter than one unit where the lab can make them so,
and the unit is fitted to what was found: by all remainders, or, where those would be too many requests, by one match of
2·U − 1 tokens, which no other unit explains. Beside a drafter, which costs a unit of each match, nothing is fitted.

Sources: vLLM 0.32.0, v1/core/kv_cache_manager.py and v1/core/kv_cache_utils.py; SGLang 0.5.23, srt/mem_cache/radix_cache.py;
labs/theory.py.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import Iterator, Sequence

from engine.errors import ConfigError
from labs import theory
from labs.cache_laws import CacheLaws
from labs.caches import Cache, caches, hash_cache, radix_cache, served_cache
from labs.chart import Chart, bars_of
from labs.field_check import check_numbers
from labs.length_check import check_length
from labs.measure import sim_times_note
from labs.outcome import hits_outcome
from labs.protocol import Lab, LabReport, LabSession, Measurement
from labs.scenarios.match_sweep import MatchSweep, loss_chart, run_match_sweep
from labs.scenarios.oversized_block import check_oversized_block
from labs.scenarios.shared_arm import SharedArm, SharedSeries
from labs.served_sizes import fit_sizes
from labs.workload import SharedPrefixWorkload, TokenIds

NUM_OWN = 16  # tokens a request has of its own, where only the shared part matters
MOST_SWEPT = 64  # largest unit of a server whose remainders are all asked: each is a request


@dataclass(frozen=True)
class Config:
    """Sizes, in tokens unless said otherwise."""

    shared_tokens: int = 240  # P
    prompt_tokens: int = 900  # L
    num_requests: int = 50  # N
    block_size: int = 16  # of the hash cache
    large_block_size: int = 784  # of a second one
    page_sizes: tuple[int, ...] = (1, 16)  # of the radix caches
    match_unit: int = 1_056  # of a third hash cache: its hits are multiples of it
    match_shared_tokens: tuple[int, ...] = (908, 1_308)  # P of its series
    num_match_requests: int = 8
    block_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)  # blocks and pages of the sweep
    oversized_block: int = 8_320  # a configuration that is checked, not served
    short_model_len: int = 4_096  # its max_model_len
    real_requests: int = 3  # most requests of a series on a real model
    full: bool = False  # everything on a real model too
    seed: int = 0

    def __post_init__(self) -> None:
        two = ("prompt_tokens", "num_requests", "num_match_requests", "real_requests", "short_model_len")
        most = {"block_sizes": 1_024, "large_block_size": 65_536, "oversized_block": 65_536}
        most |= dict.fromkeys(("num_requests", "num_match_requests", "real_requests"), 1_000)
        check_numbers(self, dict.fromkeys(two, 2), most)
        if self.shared_tokens >= self.prompt_tokens:
            accepted = f"a whole number below prompt_tokens, {self.prompt_tokens}"
            raise ValueError(f"shared_tokens is {self.shared_tokens}; accepted: {accepted}")
        if self.match_unit % self.block_size:
            raise ValueError(f"match_unit is {self.match_unit}; accepted: a multiple of block_size, {self.block_size}")


def run(session: LabSession, config: Config) -> LabReport:
    """Shared prefixes on every cache, then the sweep over block sizes, then the configuration that cannot work."""
    served = session.open_target.served
    target = session.open_target(num_gpu_blocks=2)
    vocab_size, limit = target.info.vocab_size, target.info.max_model_len
    target.close()
    findings: list[str] = []
    full = config.full or session.open_target.kind == "sim"
    if served is None:
        arms, swept, workload = _in_process(config, vocab_size, limit, full)
    else:
        config, findings = _fitted(session, config, limit)
        arms, swept, workload = _on_server(config, served_cache(served), vocab_size, limit)
    sweeps = [MatchSweep.of(cache, vocab_size, config.seed) for cache in swept]
    measurements, verdicts, cold = _ask(session, arms, sweeps)
    findings += verdicts
    if served is None:
        model_len = min(config.short_model_len, limit)
        measurement, finding = check_oversized_block(session, config.oversized_block, model_len, vocab_size, config.seed)
        measurements.append(measurement)
        findings += [_sweep_finding(measurements, config), finding, *_scope(session, config, full)]
    else:
        findings += _served_findings(arms[0], sweeps, measurements, limit)
    charts = [_bars(arms, measurements)]
    if any(one.name == "mean_loss" for one in measurements):
        charts.append(loss_chart(sweeps, measurements))
    state = "cold" if cold else "uncontrolled"
    details = {"workload": workload.digest}
    return LabReport(tuple(measurements), state, tuple(findings), _conclusion(measurements), details, tuple(charts))


def _ask(
    session: LabSession, arms: Sequence[SharedArm], sweeps: Sequence[MatchSweep]
) -> tuple[list[Measurement], list[str], bool]:
    """Measurements of all arms and sweeps, verdicts on the arms, and whether all of them started cold."""
    session.expect(sum(arm.num_requests for arm in arms) + sum(len(sweep.prompts) for sweep in sweeps))
    measurements: list[Measurement] = []
    verdicts: list[str] = []
    states: list[bool] = []
    for arm in arms:
        found, told, cold = arm.run(session)
        measurements += found
        verdicts += told
        states.append(cold)
    for sweep in sweeps:
        found, cold = run_match_sweep(session, sweep, arms[0].series[0].prompts[0])
        measurements += found
        states.append(cold)
    return measurements, verdicts, all(states)


def _fitted(session: LabSession, config: Config, limit: int) -> tuple[Config, list[str]]:
    """The configuration that fits a server, and a finding if it is another; ConfigError where what was typed does not."""
    shared = max(1, min(config.shared_tokens, limit - 1 - NUM_OWN))
    sizes = {"prompt_tokens": max(2, min(config.prompt_tokens, limit - 1)), "shared_tokens": shared}
    config, findings = fit_sizes(session, config, sizes)
    check_length(config, limit - 1, "on this server", prompt_tokens=config.prompt_tokens)
    return config, findings


def _on_server(
    config: Config, cache: Cache, vocab_size: int, limit: int
) -> tuple[list[SharedArm], list[Cache], SharedPrefixWorkload]:
    """The one cache with the lab's prefix, one too short to hit and one that just hits; whether all remainders are asked of it.

    Where they are too many, a match of 2·U − 1 tokens tells the unit.
    """
    unit, num_own, count = cache.unit, config.prompt_tokens - config.shared_tokens, config.num_requests
    count = count if config.full else min(count, config.real_requests)
    fewest = (1 + cache.laws.num_dropped) * unit  # tokens of a match that hits
    others = [fewest - 1, fewest] if config.shared_tokens + cache.num_front >= fewest else [fewest]
    if unit > MOST_SWEPT and not cache.has_drafter:
        others.append(2 * unit - 1)
    lengths = [(config.shared_tokens, num_own, count), *((match - cache.num_front, NUM_OWN, 2) for match in others)]
    lengths = [(shared, own, number) for shared, own, number in lengths if 1 <= shared and shared + own < limit]
    workload = SharedPrefixWorkload.from_token_ids(
        vocab_size,
        config.seed,
        num_shared=max(shared for shared, _, _ in lengths),
        num_tail=max(num_own, NUM_OWN),
        num_requests=count,
        num_unrelated=len(lengths),
    )
    series = _series(lengths, iter(workload.unrelated_ids), workload, cache.laws)
    can_sweep = unit <= MOST_SWEPT and not cache.has_drafter and 4 * unit < limit
    arm = SharedArm(cache.title, cache, series, workload.canary_ids, is_fitted=unit > MOST_SWEPT)
    return [arm], [cache] if can_sweep else [], workload


def _in_process(
    config: Config, vocab_size: int, limit: int, full: bool
) -> tuple[list[SharedArm], list[Cache], SharedPrefixWorkload]:
    """The four caches and the one with a match unit, and the caches that are asked all remainders; with all prompts made."""
    # Unrelated prompts are the beginnings that a series shares, tails what its requests have of their own.
    workload = SharedPrefixWorkload.from_token_ids(
        vocab_size,
        config.seed,
        num_shared=_longest(config, limit),
        num_tail=max(config.prompt_tokens - config.shared_tokens, NUM_OWN),
        num_requests=max(config.num_requests, config.num_match_requests),
        num_unrelated=2 * (2 + len(config.page_sizes)) + len(config.match_shared_tokens),
    )
    num_requests, num_match = (
        count if full else min(count, config.real_requests) for count in (config.num_requests, config.num_match_requests)
    )
    beginnings = iter(workload.unrelated_ids)
    plain, *pages = caches(config.block_size, config.page_sizes)
    arms = []
    for cache in (plain, hash_cache(config.large_block_size), *pages):
        lengths = [(config.shared_tokens, config.prompt_tokens - config.shared_tokens, num_requests)]
        if config.shared_tokens < cache.unit:
            lengths.append((theory.next_longer_match(config.shared_tokens, cache.unit), NUM_OWN, 2))
        series = _series(lengths, beginnings, workload, cache.laws)
        arms.append(SharedArm(cache.title, cache, series, _canary(workload, cache.unit)))
    unit = config.match_unit
    by_unit = replace(plain, engine_fields={**plain.engine_fields, "prefix_match_unit": unit})
    series = _series([(num, NUM_OWN, num_match) for num in config.match_shared_tokens], beginnings, workload, CacheLaws(unit))
    arms.append(SharedArm(f"{plain.title}, match unit {unit:,}", by_unit, series, _canary(workload, unit), is_fitted=True))
    swept = [cache(size) for cache in ((hash_cache, radix_cache) if full else (hash_cache,)) for size in config.block_sizes]
    return arms, swept, workload


def _series(
    lengths: Sequence[tuple[int, int, int]], beginnings: Iterator[TokenIds], workload: SharedPrefixWorkload, laws: CacheLaws
) -> tuple[SharedSeries, ...]:
    """One for each (shared tokens, own tokens, requests), each with the next beginning."""
    return tuple(
        SharedSeries(tuple(beginning[:num_shared] + tail[:num_own] for tail in workload.tail_ids[:count]), laws)
        for (num_shared, num_own, count), beginning in zip(lengths, beginnings)
    )


def _canary(workload: SharedPrefixWorkload, unit: int) -> TokenIds:
    """Longer than the unit, or it never could be warm."""
    num_tokens = max(len(workload.canary_ids), unit + 1)
    return (workload.canary_ids * -(-num_tokens // len(workload.canary_ids)))[:num_tokens]


def _longest(config: Config, max_model_len: int) -> int:
    """Tokens of the longest prompt. Raises ConfigError, naming the field to change, if it does not fit the model."""
    lengths = {
        "prompt_tokens": config.prompt_tokens,
        "block_size": theory.next_longer_match(config.shared_tokens, config.block_size) + NUM_OWN,
        "large_block_size": theory.next_longer_match(config.shared_tokens, config.large_block_size) + NUM_OWN,
        "page_sizes": theory.next_longer_match(config.shared_tokens, max(config.page_sizes)) + NUM_OWN,
        "match_shared_tokens": max(config.match_shared_tokens) + NUM_OWN,
        "match_unit": config.match_unit + NUM_OWN,  # the canary's
        "block_sizes": 4 * max(config.block_sizes) + 1,
    }
    for name, num_tokens in lengths.items():
        if num_tokens >= max_model_len:
            accepted = f"less: it asks for a prompt of {num_tokens} tokens and one more, this model allows {max_model_len}"
            raise ConfigError(name, getattr(config, name), accepted)
    return max(lengths.values())


def _scope(session: LabSession, config: Config, full: bool) -> list[str]:
    """What was left out on a real model, and what simulated times are worth."""
    note = sim_times_note(session.open_target.kind)
    if full:
        return [note] if note else []
    return [
        f"shortened on a real model: at most {config.real_requests} requests a series (num_requests is {config.num_requests}, "
        f"num_match_requests {config.num_match_requests}), remainders on the hash cache alone; --full runs all"
    ]


def _served_findings(
    arm: SharedArm, sweeps: Sequence[MatchSweep], measurements: Sequence[Measurement], limit: int
) -> list[str]:
    """What all remainders tell of a server's cache, and what keeps its unit from being seen."""
    cache, findings = arm.cache, []
    for sweep in sweeps:
        told = {one.name: f"{one.value:g}" for one in measurements if one.group == sweep.group}
        if "mean_loss" in told:
            loss, fitted = told["mean_loss"], told["fitted_unit"]
            findings.append(f"{cache.title}: all remainders: mean loss {loss} tokens, hits in units of {fitted}")
    if cache.unit >= limit + cache.num_front:
        findings.append(
            f"{cache.title}: no prompt of at most {limit - 1:,} tokens can fill a {arm.unit_name} of {cache.unit:,}, so nothing "
            "can ever be reused"
        )
    if cache.has_drafter:
        findings.append(
            f"{cache.title}: a drafter costs one {arm.unit_name} of each match, so the unit is not fitted: lab 03 shows both"
        )
    return findings


def _sweep_finding(measurements: Sequence[Measurement], config: Config) -> str:
    losses = [
        f"{one.row}: {one.value:g}" for one in measurements if one.name == "mean_loss" and one.group.endswith("hash cache")
    ]
    names = [one for one in measurements if one.name == "names" and one.group.endswith("hash cache")]
    small, large = (pick(names, key=lambda one: one.value) for pick in (max, min))
    return (
        f"mean loss of a match, in tokens: {', '.join(losses)}. What small blocks cost is names: {small.value:,} for each prompt "
        f"of {config.prompt_tokens:,} tokens with {small.row}, {large.value:,} with {large.row}; lab 01 has their price"
    )


def _bars(arms: Sequence[SharedArm], measurements: Sequence[Measurement]) -> Chart:
    rows = {(one.group, one.row): one for one in measurements if one.name == "later"}
    bars: dict[str, list[tuple[str, float]]] = {"predicted": [], "measured": []}
    for arm in arms:
        for shared in arm.series:
            one = rows.get((arm.title, shared.row))
            if one is None:
                continue  # a server that does not tell
            label = f"{arm.title}: share {shared.shared:,}"
            bars["predicted"].append((label, one.predicted.value))
            # A drawn value may lie between two counts; a count in a table may not.
            bars["measured"].append((label, statistics.median(one.samples)))
    return bars_of("A shared prefix shorter than one unit finds nothing", bars)


def _conclusion(measurements: Sequence[Measurement]) -> str:
    return (
        f"{hits_outcome(measurements)} A unit of U tokens costs (U − 1)/2 tokens of each match: with 16 nothing beside a prompt "
        "of hundreds, with hundreds perhaps the whole prefix. Below one unit the loss is total, and then 0 hits says nothing "
        "about what the requests share. In production: find the unit in force (the block or page size, or the match unit of a "
        "hybrid model: fit it to hits at two prefix lengths), compare it with the shared prefix in tokens, and make the prefix "
        "reach the next multiple or the block smaller. A block that no prompt can fill is a mistake in the configuration: check "
        "it before any traffic. Smaller blocks cost names and table entries, not K/V memory."
    )


LAB = Lab(
    number=5,
    name="block-size",
    question="What does granularity cost, and when is it everything?",
    config_type=Config,
    quick=Config(
        shared_tokens=48, prompt_tokens=120, num_requests=4, large_block_size=112, match_unit=96, match_shared_tokens=(80, 120),
        num_match_requests=3, block_sizes=(1, 4, 16), oversized_block=520, short_model_len=256,
    ),
    full=Config(full=True),
    run=run,
    targets=("engine", "sim", "server"),
    in_process_fields=(
        "block_size", "large_block_size", "page_sizes", "match_unit", "match_shared_tokens", "num_match_requests", "block_sizes",
        "oversized_block", "short_model_len",
    ),
)  # fmt: skip
