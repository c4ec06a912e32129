"""Lab 04: does the hit rate equal the shared fraction, and how does it break?

Background. Requests that start with the same tokens can share the K/V of those tokens. A cache finds them by name
(a chained hash of whole blocks) or in a tree; either way a match starts at token 0 and ends at the first difference.

Predicted and measured, for each cache, in tokens (B = block or page size, P = shared tokens, L = prompt tokens):

    shared system prompt     the first request pays, each later one reuses B·⌊min(P, L−1)/B⌋
    unrelated control        only the chat template's head is shared; its time is the cost of a miss
    fresh salt per request   0: equal tokens, another identity
    one fixed new salt       one cold miss, then as above
    unique token prepended   0: all blocks are lost, not one
    shared token prepended   one cold miss, then B·⌊(P+1)/B⌋
    unique token appended    what was shared stays shared
    shared token appended    the same for all: it joins the shared part
    repeat                   B·⌊(P−1)/B⌋: the last token is always recomputed, and with it its whole block
    shift by k               0 for every k = 1…32 unique tokens in front, whole blocks or not
    greedy output            the same cold and warm

How to read it. Columns are the hits of the first and of each later request, their total, and the tokens looked up;
times stand beside them with their spread. Counts decide, times illustrate. The findings compare the first two requests
of the failing scenarios: *equal ids and another identity* is a salt; *ids that differ at position 0* is something in
front.

On a real model the hash cache runs its series at full length and the radix caches their main ones; the rest is shorter,
to spare time. `--full`, and the simulated target, run everything at full length.

On a server its one cache is asked, as it is, with random token ids, and every prediction is made for its own block or page:
one token less beside a drafter's block, one more where the server puts a BOS in front. What replies report (`total`) and what
the server's counters say (`counted`) are two witnesses, each judged; the clock, with its control, is a third. Where the block
does not divide the prompt, the repeat of 125 whole blocks (as many as fit) is asked beside it.

Sources: vLLM 0.32.0, v1/core/kv_cache_manager.py; SGLang 0.5.23, srt/mem_cache/radix_cache.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from labs.caches import Cache, caches
from labs.chart import Chart, bars_of, times_of
from labs.diagnose.diagnosis import SentRequest, compare
from labs.field_check import check_numbers
from labs.judged_output import judge_output
from labs.measure import Spread, ratio_of_medians, sim_times_note
from labs.outcome import hits_outcome
from labs.protocol import Lab, LabReport, LabSession, Measurement
from labs.scenarios.cache_plan import CachePlan, Phase
from labs.scenarios.prefix_series import PrefixSeries
from labs.scenarios.prefix_workloads import PrefixWorkloads, fitted_workloads
from labs.series import Series, SeriesResult
from labs.targets.base import Target
from labs.timing_witness import TimingWitness
from labs.witnesses import TRAFFIC, are_witnessed, tell_doubts
from labs.workload import SharedPrefixWorkload


@dataclass(frozen=True)
class Config:
    """Sizes of the experiment; in tokens unless said otherwise."""

    shared_tokens: int = 2000  # what all requests have in common, chat template included
    user_tokens: int = 200  # what each has of its own
    short_shared_tokens: int = 320  # the same for the short series
    short_user_tokens: int = 16
    num_requests: int = 10  # of the shared series
    num_failing: int = 3  # requests of each salt, prepend and append series
    num_controls: int = 2  # unrelated prompts of the same length
    max_shift: int = 32  # most tokens prepended in the sweep
    output_tokens: int = 8  # compared between cold and warm
    block_size: int = 16  # of the hash cache
    page_sizes: tuple[int, ...] = (1, 16)  # of the radix caches
    full: bool = False  # every series at full length
    pool_tokens: int | None = None  # tokens the K/V pool holds; None: enough for the lab never to evict
    seed: int = 0

    def __post_init__(self) -> None:
        # At least two requests, or nothing is reused; two tokens, or nothing can be shared and differ.
        two = ("shared_tokens", "user_tokens", "short_shared_tokens", "short_user_tokens", "num_requests", "num_failing")
        check_numbers(self, dict.fromkeys((*two, "pool_tokens"), 2), {"max_shift": 512})


def run(session: LabSession, config: Config) -> LabReport:
    """Ask every cache everything; see the module's text."""
    config, workloads, findings = fitted_workloads(session, config, config.full or session.open_target.kind == "sim")
    first, *others = caches(config.block_size, config.page_sizes, session.open_target.served)
    plans = [_plan(config, first, workloads, workloads.long)]
    plans += [_plan(config, cache, workloads, workloads.short) for cache in others]
    session.expect(sum(plan.num_requests + 3 for plan in plans))
    measurements: list[Measurement] = []
    requests: dict[str, Any] = {}
    cold = True
    for plan in plans:
        num_blocks = _pool_blocks(config, plan)
        target = session.open_target(**plan.cache.engine_fields, num_gpu_blocks=num_blocks)
        try:
            results, started_cold = plan.run(session, target)
            prompt, canary_ids = workloads.short.prompts[0], workloads.short.canary_ids
            output = judge_output(session, target, plan.cache, prompt, canary_ids, config.output_tokens)
            findings += [*_findings(target, plan, results), output.finding]
        finally:
            target.close()
        if num_blocks < plan.num_pool_blocks:
            findings.append(
                f"{plan.title}: the pool holds {num_blocks - 1:,} blocks; {plan.num_pool_blocks - 1:,} keep everything. "
                "The predictions assume that nothing is evicted: counts below them were evicted"
            )
        cold = cold and started_cold and output.is_cold
        measurements += [*(one for result in results.values() for one in result.measurements), *output.measurements]
        requests[plan.title] = {row: result.by_request() for row, result in results.items()}
    if note := sim_times_note(session.open_target.kind):
        findings.append(note)
    return LabReport(
        tuple(measurements),
        "cold" if cold else "uncontrolled",
        tuple(findings),
        _conclusion(plans[0], measurements),
        {"workloads": workloads.digests, "requests": requests},
        _charts(plans[0], measurements),
    )


def _plan(config: Config, cache: Cache, workloads: PrefixWorkloads, failing: SharedPrefixWorkload) -> CachePlan:
    """Which workload serves what: the long one the main series, the short one the shifts, `failing` salts and markers."""
    long, short, laws, seed, count = workloads.long, workloads.short, cache.laws, config.seed, config.num_failing
    main, broken = PrefixSeries(long, laws, seed), PrefixSeries(failing, laws, seed)
    num_controls = config.num_controls if failing is long else 1
    shared = (main.shared(config.num_requests), main.unrelated(num_controls, long.prompts[: config.num_requests]))
    failures = (
        broken.fresh_salts(count),
        broken.fixed_salt(count),
        broken.unique_prepended(count),
        broken.shared_prepended(count),
        broken.unique_appended(count),
        broken.shared_appended(count),
    )
    if not cache.engine_fields:  # what finds the plain prompt comes first: in a server's small pool it may be gone afterwards
        failures = failures[4:] + failures[:4]
    # The failures start from a cache that holds the plain prompt: the shared series leaves it, or it is sent first.
    if failing is long:
        phases = [Phase(shared + failures, long.canary_ids)]
    else:
        phases = [Phase(shared, long.canary_ids), Phase(failures, failing.canary_ids, prime=failing.prompts[0])]
    phases.append(Phase((main.repeated(),), long.canary_ids))
    if workloads.aligned is not None:
        phases.append(Phase((PrefixSeries(workloads.aligned, laws, seed).repeated(),), workloads.aligned.canary_ids))
    shifted = PrefixSeries(short, laws, seed).shifted(config.max_shift)
    return CachePlan(cache, (*phases, Phase((shifted,), short.canary_ids, prime=short.prompts[0])))


def _pool_blocks(config: Config, plan: CachePlan) -> int:
    """As many as the plan wants, or what was typed; one of them is the null block."""
    if config.pool_tokens is None:
        return plan.num_pool_blocks
    return -(-config.pool_tokens // plan.cache.unit) + 1


def _findings(target: Target, plan: CachePlan, results: dict[str, SeriesResult]) -> list[str]:
    rows = {result.series.row: result for result in results.values()}
    shared, control = next(iter(rows.values())), rows["unrelated control"]
    warm, ratio = Spread.of(shared.ttfts_s[1:]), ratio_of_medians(control.ttfts_s, shared.ttfts_s[1:])
    findings = [
        f"{plan.title}: time to first token, median {warm.median * 1e3:,.1f} ms for later requests "
        f"[{warm.minimum * 1e3:,.1f}–{warm.maximum * 1e3:,.1f}], {shared.ttfts_s[0] * 1e3:,.1f} ms for the first, "
        f"{Spread.of(control.ttfts_s).median * 1e3:,.1f} ms for an unrelated prompt of that length, sent when all was warmed "
        f"up: reuse alone is {ratio.value:.1f} times as fast"
    ]
    if are_witnessed(shared.completions):
        found = [completion.num_cached_tokens for completion in shared.completions[1:]]
        witness = TimingWitness.of(None if None in found else sum(found), shared.ttfts_s[1:], control.ttfts_s)
        findings.append(f"{plan.title}: {witness.text}")
        if found and all(one == 0 for one in found) and shared.series.requests[-1].hits.value:
            findings.append(
                f"{plan.title}: NOTHING is reused, although prompts share what should be: caching is off, each request gets an "
                "identity or a beginning of its own on the way, or what is found is not told; `labcli probe` with this address "
                "tells which"
            )
    for row in ("fresh salt per request", "unique token prepended"):
        findings.append(f"{plan.title}: {row}: {_verdict(target, rows[row].series, plan.cache)}")
    doubts = [doubt for result in results.values() for doubt in result.doubts]
    if any(one.num_cached_tokens for one in rows["fresh salt per request"].completions):
        cause = "NOT isolated: requests under salts of their own found tokens; this server ignores cache_salt"
        if any(doubt.kind == TRAFFIC for doubt in doubts):
            cause = (
                "requests under salts of their own found tokens while others used this server: whether it ignores cache_salt "
                "cannot be told"
            )
        findings.append(f"{plan.title}: {cause}")
    return findings + tell_doubts(doubts)


def _verdict(target: Target, series: Series, cache: Cache) -> str:
    """Why the second request of a series found nothing, from the two requests alone."""
    sent = [
        SentRequest(
            f"request {number}",
            request.token_ids,
            request.cache_salt,
            block_hashes=target.block_hashes(request.token_ids, cache_salt=request.cache_salt),
        )
        for number, request in enumerate(series.requests[:2], start=1)
    ]
    pair = compare(sent[0], sent[1], cache.unit, drafter=cache.has_drafter)
    readings = {
        "identity": f"a salt, not the text: {pair.lost_tokens:,} tokens would be reused if the identities were equal",
        "front": f"something in front: {pair.lost_tokens:,} equal tokens behind it are lost with their blocks",
        "too short": f"what they share is shorter than one block of {cache.unit}",
    }
    return f"{readings.get(pair.cause, pair.cause)}. {pair.evidence}"


def _charts(plan: CachePlan, measurements: Sequence[Measurement]) -> tuple[Chart, ...]:
    """Of the first cache: the hit rate of each scenario, predicted and measured; times of misses, hits and the control."""
    found = {(one.row, one.name): one for one in measurements if one.group == plan.title}
    rates: dict[str, list[tuple[str, float]]] = {"predicted": [], "measured": []}
    for series in plan.series:
        hits = _found_hits(found, series.row)
        if hits is not None:
            rates["predicted"].append((series.row, 100 * series.total.value / series.queries.value))
            rates["measured"].append((series.row, 100 * hits / _looked_up(found, series)))
    shared = plan.phases[0].series[0].row
    control = next((row for row, name in found if name == "ttft_control"), "")
    labels = {
        "first request (cold)": (shared, "ttft_cold"), "later requests (warm)": (shared, "ttft_warm"),
        "unrelated prompt (control)": (control, "ttft_control"),
    }  # fmt: skip
    samples = {label: found[key].samples for label, key in labels.items() if key in found}
    return (
        bars_of(f"Hit rate by scenario, {plan.title}: one token in front costs every block", rates, unit="%"),
        times_of(f"Time to first token, {plan.title}", samples),
    )


def _found_hits(found: Mapping[tuple[str, str], Measurement], row: str) -> int | None:
    """Tokens a scenario found, by its requests' own account, else by the counters; None where neither speaks."""
    one = found.get((row, "total")) or found.get((row, "counted"))
    return None if one is None else int(one.value)


def _looked_up(found: Mapping[tuple[str, str], Measurement], series: Series) -> int:
    """Tokens looked up; where a server does not count them, or not these alone, those that were sent."""
    one = found.get((series.row, "queries"))
    return int(one.value if one is not None and one.agrees else series.queries.value) or 1


def _conclusion(plan: CachePlan, measurements: Sequence[Measurement]) -> str:
    """What happened and what to do about it, for the reader who skips the tables."""
    found = {(one.row, one.name): one for one in measurements if one.group == plan.title}
    shared = plan.phases[0].series[0]
    hits, looked_up, later = _found_hits(found, shared.row), _looked_up(found, shared), found.get((shared.row, "later"))
    seen = ""
    if hits is not None and later is not None:
        where = "With the" if plan.cache.engine_fields else "On"  # a server's title is a name
        seen = (
            f"{where} {plan.title}, {1 + len(later.samples)} requests took {hits:,} of {looked_up:,} tokens "
            f"({hits / looked_up:.2%}) from the cache: the first pays, each later one reuses {later.value:,}. "
        )
    return (
        f"{hits_outcome(measurements)} {seen}"
        "A salt of its own for each request, or one token of its own in front, brings that to nothing: a match starts at token "
        "0, so what differs there costs everything behind it, and moving it by whole blocks does not help. What differs behind "
        "the shared part costs nothing. A prompt of whole blocks repeats with one block less, because its last token is always "
        "computed again: expected, not a fault. In production: put what varies (time, user, request id) behind the stable text; "
        "give a salt to each trust domain (tenant or user), not to each request; and when the hit rate is 0, compare two "
        "requests: equal token ids mean that a salt or an adapter differs, ids that differ at position 0 mean that something "
        "writes in front of your prompt."
    )


LAB = Lab(
    number=4,
    name="prefix-cache-hit-rate",
    question="Does the hit rate equal the shared fraction, and how does it break?",
    config_type=Config,
    quick=Config(
        shared_tokens=256, user_tokens=32, short_shared_tokens=96, num_requests=4, num_failing=2, num_controls=1, max_shift=4
    ),
    full=Config(full=True),
    run=run,
    targets=("engine", "sim", "server"),
    in_process_fields=("block_size", "page_sizes", "pool_tokens"),
)
