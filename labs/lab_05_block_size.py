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
from typing import Sequence

from engine.errors import ConfigError
from labs import theory
from labs.cache_laws import CacheLaws
from labs.caches import Cache, caches, hash_cache, radix_cache, served_cache
from labs.chart import Chart, ChartSeries, bars_of
from labs.field_check import check_numbers
from labs.length_check import check_length
from labs.measure import sim_times_note
from labs.outcome import hits_outcome
from labs.protocol import Lab, LabReport, LabSession, Measurement, Prediction
from labs.scenarios.match_sweep import MatchSweep, fitted_unit, run_match_sweep
from labs.series import Series, SeriesRequest, prove_cold, run_series
from labs.served_sizes import fit_sizes
from labs.targets.base import ServedCache
from labs.witnesses import Doubt, tell_doubts
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


@dataclass(frozen=True)
class SharedSeries:
    """Requests that share their first tokens, sent to a cache that follows `laws`."""

    prompts: tuple[TokenIds, ...]
    laws: CacheLaws

    @property
    def unit(self) -> int:
        return self.laws.unit

    @property
    def shared(self) -> int:
        """Tokens they share, by their ids."""
        return theory.longest_match(self.prompts[1], self.prompts[:1])

    @property
    def length(self) -> int:
        return len(self.prompts[0])

    @property
    def series(self) -> Series:
        """With every request's prediction."""
        count, sizes = len(self.prompts), (self.shared, self.length)
        first = self.laws.predict(theory.reuse, 0, self.length)
        later = self.laws.predict(theory.reuse, *sizes)
        each = [first, *[later] * (count - 1)]
        requests = tuple(SeriesRequest(prompt, law) for prompt, law in zip(self.prompts, each))
        total = self.laws.total(each, theory.shared_prefix_hits, count, *sizes)
        queries = self.laws.predict(theory.queries, count, self.length)
        row = f"{count} share {self.shared:,} of {self.length:,}"
        return Series(row, requests, total, queries, front_hits=self.laws.front_hits(self.length))


@dataclass(frozen=True)
class SharedArm:
    """One cache, and the series it serves, none of which begins like another."""

    title: str
    cache: Cache
    series: tuple[SharedSeries, ...]
    canary_ids: TokenIds  # longer than the unit, or it never could be warm
    is_fitted: bool = False  # its series tell the unit

    @property
    def unit_name(self) -> str:
        own_unit = self.series[0].unit == self.cache.unit
        return ("block" if self.cache.is_hash else "page") if own_unit else "match unit"


def run(session: LabSession, config: Config) -> LabReport:
    """Shared prefixes on every cache, then the sweep over block sizes, then the configuration that cannot work."""
    if (served := session.open_target.served) is not None:
        return _run_on_server(session, config, served)
    target = session.open_target(num_gpu_blocks=2)
    vocab_size, max_model_len = target.info.vocab_size, target.info.max_model_len
    target.close()
    full = config.full or session.open_target.kind == "sim"
    workload = _workload(config, vocab_size, _longest(config, max_model_len))
    arms = _arms(config, workload, full)
    swept = [cache(size) for cache in ((hash_cache, radix_cache) if full else (hash_cache,)) for size in config.block_sizes]
    sweeps = [MatchSweep.of(cache, vocab_size, config.seed) for cache in swept]
    session.expect(sum(len(one.prompts) for one in (*(series for arm in arms for series in arm.series), *sweeps)))
    measurements: list[Measurement] = []
    findings: list[str] = []
    cold = True
    for arm in arms:
        found, verdicts, started_cold = _run_shared(session, arm)
        measurements += found
        findings += verdicts
        cold = cold and started_cold
    for sweep in sweeps:
        found, started_cold = run_match_sweep(session, sweep, arms[0].series[0].prompts[0])
        measurements += found
        cold = cold and started_cold
    measurement, finding = _check_oversized(session, config, vocab_size, max_model_len)
    measurements.append(measurement)
    findings += [_sweep_finding(measurements, config), finding, *_scope(session, config, full)]
    return LabReport(
        tuple(measurements),
        "cold" if cold else "uncontrolled",
        tuple(findings),
        _conclusion(measurements),
        {"workload": workload.digest},
        (_bars(arms, measurements), _lines(sweeps, measurements)),
    )


def _run_on_server(session: LabSession, config: Config, served: ServedCache) -> LabReport:
    """Shared prefixes on the server's cache, and the unit that its hits tell."""
    cache = served_cache(served)
    target = session.open_target(num_gpu_blocks=2)
    vocab_size, limit = target.info.vocab_size, target.info.max_model_len
    target.close()
    shared = max(1, min(config.shared_tokens, limit - 1 - NUM_OWN))
    sizes = {"prompt_tokens": max(2, min(config.prompt_tokens, limit - 1)), "shared_tokens": shared}
    config, findings = fit_sizes(session, config, sizes)
    check_length(config, limit - 1, "on this server", prompt_tokens=config.prompt_tokens)
    arm, workload = _served_arm(config, cache, vocab_size, limit)
    can_sweep = cache.unit <= MOST_SWEPT and not cache.has_drafter and 4 * cache.unit < limit
    sweeps = [MatchSweep.of(cache, vocab_size, config.seed)] if can_sweep else []
    session.expect(sum(len(one.prompts) for one in (*arm.series, *sweeps)))
    measurements, verdicts, cold = _run_shared(session, arm)
    findings += verdicts
    for sweep in sweeps:
        found, started_cold = run_match_sweep(session, sweep, arm.series[0].prompts[0])
        measurements += found
        cold = cold and started_cold
        told = {one.name: f"{one.value:g}" for one in found if one.name in ("mean_loss", "fitted_unit")}
        if told:
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
    charts = [_bars([arm], measurements)]
    if any(one.name == "mean_loss" for one in measurements):
        charts.append(_lines(sweeps, measurements))
    state = "cold" if cold else "uncontrolled"
    details = {"workload": workload.digest}
    return LabReport(tuple(measurements), state, tuple(findings), _conclusion(measurements), details, tuple(charts))


def _served_arm(config: Config, cache: Cache, vocab_size: int, limit: int) -> tuple[SharedArm, SharedPrefixWorkload]:
    """The lab's prefix, one that is too short to hit and one that just hits, and a match that no other unit explains."""
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
    series = [
        SharedSeries(tuple(beginning[:shared] + tail[:own] for tail in workload.tail_ids[:number]), cache.laws)
        for beginning, (shared, own, number) in zip(workload.unrelated_ids, lengths)
    ]
    return SharedArm(cache.title, cache, tuple(series), workload.canary_ids, is_fitted=unit > MOST_SWEPT), workload


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


def _workload(config: Config, vocab_size: int, longest: int) -> SharedPrefixWorkload:
    """Unrelated prompts are the beginnings that a series shares, tails what its requests have of their own."""
    return SharedPrefixWorkload.from_token_ids(
        vocab_size,
        config.seed,
        num_shared=longest,
        num_tail=max(config.prompt_tokens - config.shared_tokens, NUM_OWN),
        num_requests=max(config.num_requests, config.num_match_requests),
        num_unrelated=2 * (2 + len(config.page_sizes)) + len(config.match_shared_tokens),
    )


def _arms(config: Config, workload: SharedPrefixWorkload, full: bool) -> list[SharedArm]:
    """The four caches and the one with a match unit, with all prompts made."""
    num_requests, num_match = (
        count if full else min(count, config.real_requests) for count in (config.num_requests, config.num_match_requests)
    )
    beginnings = iter(workload.unrelated_ids)

    def shared(unit: int, num_shared: int, num_own: int, count: int) -> SharedSeries:
        beginning = next(beginnings)[:num_shared]
        return SharedSeries(tuple(beginning + tail[:num_own] for tail in workload.tail_ids[:count]), CacheLaws(unit))

    def arm(title: str, cache: Cache, series: list[SharedSeries], is_fitted: bool = False) -> SharedArm:
        canary_ids = workload.canary_ids * (1 + series[0].unit // len(workload.canary_ids))
        return SharedArm(title, cache, tuple(series), canary_ids[: max(len(workload.canary_ids), series[0].unit + 1)], is_fitted)

    plain, *pages = caches(config.block_size, config.page_sizes)
    arms = []
    for cache in (plain, hash_cache(config.large_block_size), *pages):
        series = [shared(cache.unit, config.shared_tokens, config.prompt_tokens - config.shared_tokens, num_requests)]
        if config.shared_tokens < cache.unit:
            series.append(shared(cache.unit, theory.next_longer_match(config.shared_tokens, cache.unit), NUM_OWN, 2))
        arms.append(arm(cache.title, cache, series))
    unit = config.match_unit
    by_unit = replace(plain, engine_fields={**plain.engine_fields, "prefix_match_unit": unit})
    series = [shared(unit, num_shared, NUM_OWN, num_match) for num_shared in config.match_shared_tokens]
    return [*arms, arm(f"{plain.title}, match unit {unit:,}", by_unit, series, is_fitted=True)]


def _run_shared(session: LabSession, arm: SharedArm) -> tuple[list[Measurement], list[str], bool]:
    """All series of a cache: measurements, findings with a verdict on each, whether they started cold."""
    series = [one.series for one in arm.series]
    tokens = sum(one.pool_tokens for one in series) + len(arm.canary_ids)
    blocks = arm.cache.blocks_for(tokens, sum(len(one.requests) for one in series))
    target = session.open_target(**arm.cache.engine_fields, num_gpu_blocks=blocks)
    measurements: list[Measurement] = []
    observed: list[tuple[int, int, int]] = []
    verdicts: list[str] = []
    doubts: list[Doubt] = []
    try:
        cold = prove_cold(session, target, arm.canary_ids)
        for shared, one in zip(arm.series, series):
            result = run_series(session, target, one, arm.title)
            measurements += result.measurements
            doubts += result.doubts
            found_by = [completion.num_cached_tokens for completion in result.completions[1:]]
            hits = [found for found in found_by if found is not None]
            front = arm.cache.num_front
            observed += [(shared.shared + front, shared.length + front, found) for found in hits]
            verdicts.append(_verdict(shared, arm.unit_name, hits) if hits else "the server does not tell what was reused")
    finally:
        target.close()
    own_unit = arm.series[0].unit == arm.cache.unit
    if arm.is_fitted and observed:
        steps = "; ".join(f"{match:,} shared tokens find {hits:,}" for match, _, hits in dict.fromkeys(observed))
        fitted = fitted_unit(observed, arm.series[0].unit, arm.title, "all series")
        if fitted is None:
            advice = "" if own_unit else ": set match_shared_tokens to lengths on both sides of a multiple"
            fit = f"several units would explain that{advice}"
        else:
            session.record(fitted)
            measurements.append(fitted)
            fit = f"hits come in units of {fitted.value:,}" if fitted.agrees else "NOT what the match unit would do"
        verdicts.insert(0, f"{steps}: {fit}" if own_unit else f"blocks of {arm.cache.unit}, yet {steps}: {fit}")
    return measurements, [f"{arm.title}: {'; '.join(verdicts)}", *tell_doubts(doubts)], cold


def _verdict(shared: SharedSeries, unit_name: str, hits: Sequence[int]) -> str:
    """What a unit does to a shared prefix, by the prompts' ids and the unit, if the later requests' hits say the same."""
    laws, prefix, unit = shared.laws, shared.shared, shared.unit
    longer = theory.next_longer_match(prefix + laws.num_front, unit, laws.num_dropped) - laws.num_front
    reused = int(laws.predict(theory.reuse, prefix, shared.length).value)
    deviating = next((found for found in hits if found != reused), None)
    if deviating is not None:
        due = f"{reused:,} are due with a {unit_name} of {unit:,}"
        return f"NOT as predicted: of {prefix:,} shared tokens {deviating:,} are reused, {due}"
    if not reused:
        needed = f"one {unit_name} ({unit:,})"
        if laws.has_drafter:
            needed = f"two {unit_name}s of {unit:,}, of which the drafter gives up one"
        return (
            f"shared prefix ({prefix:,}) is shorter than {needed}: nothing can be reused, although "
            f"{len(hits)} later request(s) share it; the next prefix length that would hit is {longer:,}"
        )
    lost = prefix + laws.num_front - reused
    also = " and to the drafter" if laws.has_drafter else ""
    return f"of {prefix:,} shared tokens {reused:,} are reused and {lost:,} lost to {unit_name}s of {unit:,}{also}"


def _check_oversized(session: LabSession, config: Config, vocab_size: int, max_model_len: int) -> tuple[Measurement, str]:
    """Names of the longest prompt under blocks that may be too large for any; nothing is sent."""
    block, model_len = config.oversized_block, min(config.short_model_len, max_model_len)
    law = Prediction(*theory.predict(theory.full_blocks, model_len - 1, block))
    target = session.open_target(prefix_cache="hash", block_size=block, max_model_len=model_len, num_gpu_blocks=2)
    try:
        longest = SharedPrefixWorkload.from_token_ids(vocab_size, config.seed, model_len - 1, 1, 1).shared_ids
        num_names = len(target.block_hashes(longest))
    finally:
        target.close()
    row = f"block {block:,}, max_model_len {model_len:,}"
    measurement = Measurement("names", "blocks", (num_names,), "the longest prompt, before any traffic", row, law, key=True)
    session.record(measurement)
    # What is filled is not what is found: the longest prompt's last token takes its block along.
    reused = theory.repeat(model_len - 1, block)
    if not measurement.agrees:
        verdict = f"NOT as predicted: {num_names:,} block(s) of the longest prompt fill, {law.value:,} by the law"
    elif reused:
        verdict = f"{num_names:,} block(s) of the longest prompt can fill; by the law its repeat finds {reused:,} tokens"
    elif num_names:
        verdict = (
            "the longest prompt fills a block exactly, and its last token is always computed, so by the law nothing can ever be "
            f"reused; take blocks below {model_len - 1:,}"
        )
    else:
        verdict = f"no prompt can ever fill a block, so nothing can ever be reused; take blocks below {model_len - 1:,}"
    return measurement, f"{row}: {verdict}"


def _scope(session: LabSession, config: Config, full: bool) -> list[str]:
    """What was left out on a real model, and what simulated times are worth."""
    note = sim_times_note(session.open_target.kind)
    if full:
        return [note] if note else []
    return [
        f"shortened on a real model: at most {config.real_requests} requests a series (num_requests is {config.num_requests}, "
        f"num_match_requests {config.num_match_requests}), remainders on the hash cache alone; --full runs all"
    ]


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
            one = rows.get((arm.title, shared.series.row))
            if one is None:
                continue  # a server that does not tell
            label = f"{arm.title}: share {shared.shared:,}"
            bars["predicted"].append((label, one.predicted.value))
            # A drawn value may lie between two counts; a count in a table may not.
            bars["measured"].append((label, statistics.median(one.samples)))
    return bars_of("A shared prefix shorter than one unit finds nothing", bars)


def _lines(sweeps: Sequence[MatchSweep], measurements: Sequence[Measurement]) -> Chart:
    found = {(one.group, one.row): one for one in measurements if one.name == "mean_loss"}
    lines: dict[str, list[tuple[float, float]]] = {}
    for sweep in sweeps:
        one = found[sweep.group, sweep.row]
        lines.setdefault("(U − 1)/2", []).append((sweep.cache.unit, one.predicted.value))
        lines.setdefault("hash cache" if sweep.cache.is_hash else "radix cache", []).append((sweep.cache.unit, one.value))
    series = tuple(ChartSeries(name, points=tuple(sorted(set(points)))) for name, points in lines.items())
    labels = {"x_label": "block or page, tokens", "y_label": "mean loss, tokens"}
    return Chart("lines", "A match loses half a unit on average", series, log_x=True, **labels)


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
