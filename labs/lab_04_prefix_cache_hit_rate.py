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
from typing import Any, Collection, Mapping, Sequence

from engine.config import DEFAULT_POOL_TOKENS
from engine.errors import ConfigError
from labs.caches import Cache, caches
from labs.chart import Chart, bars_of, times_of
from labs.diagnose.diagnosis import SentRequest, compare
from labs.field_check import check_numbers
from labs.length_check import check_length
from labs.measure import Spread, ratio_of_medians, sim_times_note
from labs.outcome import hits_outcome
from labs.output_check import compare_cold_and_warm, compare_on_server, judge_on_server, num_unexplained, output_law
from labs.protocol import Lab, LabReport, LabSession, Measurement
from labs.scenarios.prefix_series import PrefixSeries
from labs.series import Series, SeriesResult, prove_cold, run_series
from labs.served_sizes import fit_sizes
from labs.targets.base import Target
from labs.timing_witness import TimingWitness
from labs.witnesses import TRAFFIC, are_witnessed, tell_doubts
from labs.workload import SharedPrefixWorkload, TokenIds

NUM_REPEATED = 125  # whole blocks of the repeat that shows the last-token rule
MOST_REPEATED = 8_192  # tokens of it: prompts of more take a small server minutes


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


@dataclass(frozen=True)
class Phase:
    """Series that share one cold start."""

    series: tuple[Series, ...]
    canary_ids: TokenIds  # of the same workload: another's may begin like one of these prompts
    prime: TokenIds = ()  # a prompt sent before the series, uncounted, that they start from

    def all_tokens(self, unit: int) -> int:
        """Tokens of a cache that keeps everything."""
        return len(self.prime) + sum(_stored_tokens(series, unit) for series in self.series)

    def tokens_in_reach(self, unit: int) -> int:
        """Tokens of a cache that drops what was used longest ago, and still finds what is due: a series that finds its own
        keeps itself, one that finds what came before keeps that too."""
        return max(self.reaches(unit))

    def reaches(self, unit: int) -> list[int]:
        """The same of each series."""
        before, reaches = len(self.prime), []
        for series in self.series:
            before += _stored_tokens(series, unit)
            first, *later = (request.hits.value > series.front_hits for request in series.requests)
            longest = max(len(request.token_ids) for request in series.requests) + 2 * unit
            reaches.append(before if first else _stored_tokens(series, unit) if any(later) else longest)
        return reaches


@dataclass(frozen=True)
class CachePlan:
    """What one cache is asked, in order, with all predictions made; nothing has been sent yet."""

    cache: Cache
    phases: tuple[Phase, ...]

    @property
    def title(self) -> str:
        return self.cache.title

    @property
    def unit(self) -> int:
        return self.cache.unit

    @property
    def series(self) -> list[Series]:
        return [series for phase in self.phases for series in phase.series]

    @property
    def num_requests(self) -> int:
        return sum(len(series.requests) for series in self.series)

    @property
    def num_pool_blocks(self) -> int:
        """Blocks for the phase that needs most: a lab that is not about eviction must not evict."""
        canary, least = 1024 + 4 * self.unit, DEFAULT_POOL_TOKENS
        tokens = max(phase.all_tokens(self.unit) for phase in self.phases)
        if not self.cache.engine_fields:  # a server's pool is as large as it is: what may be dropped is not asked for
            tokens, least = max(phase.tokens_in_reach(self.unit) for phase in self.phases), 0
        return -(-max(tokens + canary, least) // self.unit) + 1


@dataclass(frozen=True)
class Workloads:
    """The prompts of all series; the same object where one serves several purposes."""

    long: SharedPrefixWorkload
    short: SharedPrefixWorkload
    aligned: SharedPrefixWorkload | None  # its shared part is whole blocks; None where the long one's is, and in process
    findings: tuple[str, ...] = ()  # how sizes were fitted to a server

    @property
    def digests(self) -> dict[str, str]:
        made = {"long": self.long, "short": self.short, "aligned": self.aligned}
        return {name: workload.digest for name, workload in made.items() if workload is not None}


def _stored_tokens(series: Series, unit: int) -> int:
    # For each request a partial block, and room for the tokens sampled.
    return series.pool_tokens + 2 * unit * len(series.requests)


def run(session: LabSession, config: Config) -> LabReport:
    """Ask every cache everything; see the module's text."""
    full = config.full or session.open_target.kind == "sim"
    config, workloads = _workloads(session, config, full)
    plans = _plans(session, config, workloads, full)
    session.expect(sum(plan.num_requests + 3 for plan in plans))
    measurements: list[Measurement] = []
    findings: list[str] = [*workloads.findings]
    details: dict[str, Any] = {"workloads": workloads.digests, "requests": {}}
    cold = True
    for plan in plans:
        num_blocks = plan.num_pool_blocks
        if config.pool_tokens is not None:
            num_blocks = max(2, -(-config.pool_tokens // plan.unit) + 1)  # one of them the null block
        target = session.open_target(**plan.cache.engine_fields, num_gpu_blocks=num_blocks)
        try:
            results, started_cold = _run_plan(session, target, plan)
            output, finding, compared_cold = _compare_outputs(session, target, plan, workloads.short, config.output_tokens)
            findings += [*_findings(target, plan, results), *finding]
            if num_blocks < plan.num_pool_blocks:
                findings.append(
                    f"{plan.title}: the pool holds {num_blocks - 1:,} blocks; {plan.num_pool_blocks - 1:,} keep everything. "
                    "The predictions assume that nothing is evicted: counts below them were evicted"
                )
        finally:
            target.close()
        cold = cold and started_cold and compared_cold
        measurements += [one for result in results.values() for one in result.measurements] + output
        details["requests"][plan.title] = {row: result.by_request() for row, result in results.items()}
    if note := sim_times_note(session.open_target.kind):
        findings.append(note)
    state = "cold" if cold else "uncontrolled"
    conclusion, charts = _conclusion(plans[0], measurements), _charts(plans[0], measurements)
    return LabReport(tuple(measurements), state, tuple(findings), conclusion, details, charts)


def _workloads(session: LabSession, config: Config, full: bool) -> tuple[Config, Workloads]:
    """The long and the short prompts: real text where the model has a chat template, else random ids; sizes fitted first."""
    target = session.open_target(num_gpu_blocks=2)
    tokenizer, vocab_size, limit = target.tokenizer(), target.info.vocab_size, target.info.max_model_len
    target.close()
    served, findings, num_aligned = session.open_target.served, [], 0
    if served is not None:
        config, findings = fit_sizes(session, config, _fitting_sizes(config, full, limit, served.unit_size, session.typed))
        num_aligned, finding = _aligned_tokens(config, limit, served.unit_size)
        findings += finding
    _check_lengths(config, full, limit, session.typed if served is not None else ())
    counts = {
        "num_requests": max(config.num_requests, config.num_failing),
        "num_unrelated": config.num_controls,
        "num_markers": max(2 * config.num_failing + 2, config.max_shift + 1),
    }

    def make(shared_field: str, user_field: str) -> SharedPrefixWorkload:
        sizes = {"seed": config.seed, "num_shared": getattr(config, shared_field), "num_tail": getattr(config, user_field)}
        try:
            if tokenizer is not None and tokenizer.has_chat_template:
                return SharedPrefixWorkload.from_text(tokenizer, **sizes, **counts)
            return SharedPrefixWorkload.from_token_ids(vocab_size, **sizes, **counts)
        except ConfigError as error:
            # The workload knows its own names; people set the lab's.
            names = {"num_shared": shared_field, "num_tail": user_field, "num_unrelated": "num_controls", "num_markers": "max_shift"}
            raise ConfigError(names.get(error.field, error.field), error.value, error.accepted) from error

    long = make("shared_tokens", "user_tokens")
    short = long if full else make("short_shared_tokens", "short_user_tokens")
    aligned = SharedPrefixWorkload.from_token_ids(vocab_size, config.seed, num_aligned, 1, 1) if num_aligned else None
    return config, Workloads(long, short, aligned, tuple(findings))


def _fitting_sizes(config: Config, full: bool, limit: int, unit: int, typed: Collection[str]) -> Mapping[str, int]:
    """Sizes that fit a server, beside those that were typed: two blocks are shared where they can be, and every prompt ends
    below its limit."""

    def fitted(name: str, most: int) -> int:
        size = getattr(config, name)
        return size if name in typed else min(size, most)

    shift = fitted("max_shift", max(1, limit // 4))
    spare = max(shift if full else 1, config.output_tokens) + 2  # behind or in front of a prompt
    user, short_user = (fitted(name, max(2, limit // 8)) for name in ("user_tokens", "short_user_tokens"))
    shared = max(2, min(max(config.shared_tokens, 2 * unit), limit - user - spare))
    short_shared = max(2, min(config.short_shared_tokens, limit - short_user - max(shift, config.output_tokens) - 2))
    return {
        "user_tokens": user, "shared_tokens": shared, "short_user_tokens": short_user,
        "short_shared_tokens": short_shared, "max_shift": shift,
    }  # fmt: skip


def _aligned_tokens(config: Config, limit: int, unit: int) -> tuple[int, list[str]]:
    """Tokens of the repeat of whole blocks, 0 where the shared prompt is one already; a finding when it is not 125 blocks."""
    num_units = min(NUM_REPEATED, (limit - 1) // unit, max(2, MOST_REPEATED // unit))
    if config.shared_tokens % unit == 0 or num_units < 2:
        return 0, []
    if num_units == NUM_REPEATED:
        return num_units * unit, []
    return num_units * unit, [
        f"the repeat of whole blocks has {num_units} of them, {num_units * unit:,} tokens, not {NUM_REPEATED}: the longest prompt "
        f"here is {limit - 1:,} tokens, and the lab sends none of more than {max(2 * unit, MOST_REPEATED):,}"
    ]


def _check_lengths(config: Config, full: bool, max_model_len: int, typed: Collection[str]) -> None:
    """Every prompt must fit the model and the pool. Raises ConfigError naming the field to change."""
    shift = config.max_shift if full else 1
    longest = config.shared_tokens + config.user_tokens + shift + 1  # a token is generated
    main, short = ({name: getattr(config, name) for name in names} for names in (
        ("shared_tokens", "user_tokens"), ("short_shared_tokens", "short_user_tokens"),
    ))  # fmt: skip
    if full:
        check_length(config, max_model_len - 1, typed=typed, **main, max_shift=shift)
    else:
        check_length(config, max_model_len - 2, typed=typed, **main)  # a token in front, and one generated
        check_length(config, max_model_len - 1, typed=typed, **short, max_shift=config.max_shift)
    check_length(config, max_model_len, typed=typed, **(main if full else short), output_tokens=config.output_tokens)
    if config.pool_tokens is not None and config.pool_tokens < longest:
        raise ConfigError("pool_tokens", config.pool_tokens, f"at least {longest}: one request must fit")


def _plans(session: LabSession, config: Config, workloads: Workloads, full: bool) -> list[CachePlan]:
    long, short = workloads.long, workloads.short
    first, *others = caches(config.block_size, config.page_sizes, session.open_target.served)
    plans = [CachePlan(first, _phases(config, first, long, long, short, config.num_controls, workloads.aligned))]
    num_controls = config.num_controls if full else 1
    return plans + [CachePlan(cache, _phases(config, cache, long, short, short, num_controls)) for cache in others]


def _phases(
    config: Config,
    cache: Cache,
    long: SharedPrefixWorkload,
    failing: SharedPrefixWorkload,
    sweep: SharedPrefixWorkload,
    num_controls: int,
    aligned: SharedPrefixWorkload | None = None,
) -> tuple[Phase, ...]:
    """Which workload serves what: `long` the main series, `failing` salts and markers, `sweep` the shifts."""
    laws, seed, count = cache.laws, config.seed, config.num_failing
    main, broken = PrefixSeries(long, laws, seed), PrefixSeries(failing, laws, seed)
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
        start = (Phase(shared + failures, long.canary_ids),)
    else:
        start = (Phase(shared, long.canary_ids), Phase(failures, failing.canary_ids, prime=failing.prompts[0]))
    repeats = [Phase((main.repeated(),), long.canary_ids)]
    if aligned is not None:
        repeats.append(Phase((PrefixSeries(aligned, laws, seed).repeated(),), aligned.canary_ids))
    shifted = PrefixSeries(sweep, laws, seed).shifted(config.max_shift)
    return (*start, *repeats, Phase((shifted,), sweep.canary_ids, prime=sweep.prompts[0]))


def _run_plan(session: LabSession, target: Target, plan: CachePlan) -> tuple[dict[str, SeriesResult], bool]:
    """Results by scenario, and whether every phase started from a proven cold cache."""
    results: dict[str, SeriesResult] = {}
    # In this process a pool is the lab's choice, and what it evicts is shown. A server's cannot be helped.
    is_served = session.open_target.served is not None and target.info.num_blocks is not None
    pool = target.info.num_blocks * plan.unit if is_served else None
    cold = True
    for phase in plan.phases:
        cold = prove_cold(session, target, phase.canary_ids) and cold
        if phase.prime:
            target.complete(phase.prime)
        for series, reach in zip(phase.series, phase.reaches(plan.unit)):
            unjudged = "" if pool is None or reach <= pool else f"the pool keeps {pool:,} tokens, and these finds need {reach:,}"
            results[series.row] = run_series(session, target, series, plan.title, unjudged=unjudged)
    return results, cold


def _compare_outputs(
    session: LabSession, target: Target, plan: CachePlan, workload: SharedPrefixWorkload, num_tokens: int
) -> tuple[list[Measurement], list[str], bool]:
    """Greedy output cold, cold again (the control) and warm: its measurement, findings, and whether cold was proven."""
    row = f"greedy output, {num_tokens} tokens, cold = warm"
    prompt, canary_ids = workload.prompts[0], workload.canary_ids
    note = "counts outputs that differ beyond a near tie"
    law = output_law(session.open_target.kind)
    if session.open_target.served is not None:
        answer, cold = compare_on_server(session, target, plan.title, prompt, canary_ids, num_tokens)
        if answer is None:
            return [], [f"{plan.title}: greedy output is not compared: this server does not tell the ids it generated"], cold
        unexplained, why = judge_on_server(answer)
        text = answer.text + why
        if unexplained is None:
            return [], [f"{plan.title}: {text}"], cold
    else:
        check, cold = compare_cold_and_warm(session, target, plan.title, prompt, canary_ids, num_tokens)
        proof, text = None, check.text
        if not check.equal and target.info.dtype != "float32":
            session.expect(3)
            exact = session.open_target(**plan.cache.engine_fields, dtype="float32")
            try:
                proof, _ = compare_cold_and_warm(session, exact, f"{plan.title}, float32", prompt, canary_ids, num_tokens)
            finally:
                exact.close()
            text += f"; in float32: {proof.text}"
        unexplained = num_unexplained(check, target.info.dtype, proof)
        if not check.equal:
            text += ". A near tie, decided by rounding" if not unexplained else ". NOT a near tie: wrong K/V"
        if law is None:
            note += "; simulated tokens do not depend on K/V, so it cannot fail here"
            text += ". Simulated tokens do not depend on K/V: it shows nothing"
    unit = "tokens" if session.open_target.served is None else "outputs"
    measurement = Measurement("total", unit, (unexplained,), plan.title, row, law, note=note)
    session.record(measurement)
    return [measurement], [f"{plan.title}: {text}"], cold


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
    """Of the first cache: the hit rate of each scenario, predicted and measured, and the times of misses, hits and the control."""
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
