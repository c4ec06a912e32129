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

Sources: vLLM 0.32.0, v1/core/kv_cache_manager.py; SGLang 0.5.23, srt/mem_cache/radix_cache.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from engine.config import DEFAULT_POOL_TOKENS
from engine.errors import ConfigError
from labs.chart import Chart, bars_of, times_of
from labs.diagnose.diagnosis import SentRequest, compare
from labs.field_check import check_numbers
from labs.measure import Spread, ratio_of_medians, sim_times_note
from labs.outcome import outcome_line
from labs.output_check import compare_cold_and_warm, num_unexplained, output_law
from labs.protocol import Lab, LabReport, LabSession, Measurement
from labs.scenarios.prefix_series import PrefixSeries
from labs.series import Series, SeriesResult, prove_cold, run_series
from labs.targets.base import Target
from labs.workload import SharedPrefixWorkload, TokenIds


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


@dataclass(frozen=True)
class CachePlan:
    """What one cache is asked, in order, with all predictions made; nothing has been sent yet."""

    title: str
    unit: int
    engine_fields: dict[str, Any]
    phases: tuple[Phase, ...]

    @property
    def num_requests(self) -> int:
        return sum(len(series.requests) for phase in self.phases for series in phase.series)

    @property
    def num_pool_blocks(self) -> int:
        """Blocks for the largest phase: a lab that is not about eviction must not evict."""
        per_request = 2 * self.unit  # a partial block, and room for the tokens sampled
        tokens = max(
            len(phase.prime) + sum(series.pool_tokens + per_request * len(series.requests) for series in phase.series)
            for phase in self.phases
        )
        canary = 1024 + 4 * self.unit
        return -(-max(tokens + canary, DEFAULT_POOL_TOKENS) // self.unit) + 1


def run(session: LabSession, config: Config) -> LabReport:
    """Ask every cache everything; see the module's text."""
    full = config.full or session.open_target.kind == "sim"
    long, short = _workloads(session, config, full)
    plans = _plans(config, long, short, full)
    session.expect(sum(plan.num_requests + 3 for plan in plans))
    measurements: list[Measurement] = []
    findings: list[str] = []
    details: dict[str, Any] = {"workloads": {"long": long.digest, "short": short.digest}, "requests": {}}
    cold = True
    for plan in plans:
        num_blocks = plan.num_pool_blocks
        if config.pool_tokens is not None:
            num_blocks = max(2, -(-config.pool_tokens // plan.unit) + 1)  # one of them the null block
        target = session.open_target(**plan.engine_fields, num_gpu_blocks=num_blocks)
        try:
            results, started_cold = _run_plan(session, target, plan)
            output, finding, compared_cold = _compare_outputs(session, target, plan, short, config.output_tokens)
            findings += [*_findings(target, plan, results), finding]
            if num_blocks < plan.num_pool_blocks:
                findings.append(
                    f"{plan.title}: the pool holds {num_blocks - 1:,} blocks; {plan.num_pool_blocks - 1:,} keep everything. "
                    "The predictions assume that nothing is evicted: counts below them were evicted"
                )
        finally:
            target.close()
        cold = cold and started_cold and compared_cold
        measurements += [one for result in results.values() for one in result.measurements] + [output]
        details["requests"][plan.title] = {row: result.by_request() for row, result in results.items()}
    if note := sim_times_note(session.open_target.kind):
        findings.append(note)
    state = "cold" if cold else "uncontrolled"
    conclusion, charts = _conclusion(plans[0], measurements), _charts(plans[0], measurements)
    return LabReport(tuple(measurements), state, tuple(findings), conclusion, details, charts)


def _workloads(session: LabSession, config: Config, full: bool) -> tuple[SharedPrefixWorkload, SharedPrefixWorkload]:
    """The long and the short prompts: real text where the model has a chat template, else random ids."""
    target = session.open_target(num_gpu_blocks=2)
    tokenizer, vocab_size, max_model_len = target.tokenizer(), target.info.vocab_size, target.info.max_model_len
    target.close()
    _check_lengths(config, full, max_model_len)
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
    return long, long if full else make("short_shared_tokens", "short_user_tokens")


def _check_lengths(config: Config, full: bool, max_model_len: int) -> None:
    """Every prompt must fit the model and the pool. Raises ConfigError naming the field to change."""
    shift = config.max_shift if full else 1
    longest = config.shared_tokens + config.user_tokens + shift + 1  # a token is generated
    if longest > max_model_len:
        most = max_model_len - config.user_tokens - shift - 1
        raise ConfigError("shared_tokens", config.shared_tokens, f"at most {most} with this model and these user_tokens")
    if config.pool_tokens is not None and config.pool_tokens < longest:
        raise ConfigError("pool_tokens", config.pool_tokens, f"at least {longest}: one request must fit")


def _plans(config: Config, long: SharedPrefixWorkload, short: SharedPrefixWorkload, full: bool) -> list[CachePlan]:
    plans = [
        CachePlan(
            f"hash cache, block {config.block_size}",
            config.block_size,
            {"prefix_cache": "hash", "block_size": config.block_size},
            _phases(config, config.block_size, long, long, short, config.num_controls),
        )
    ]
    for page_size in config.page_sizes:
        plans.append(
            CachePlan(
                f"radix cache, page {page_size}",
                page_size,
                {"prefix_cache": "radix", "page_size": page_size},
                _phases(config, page_size, long, short, short, config.num_controls if full else 1),
            )
        )
    return plans


def _phases(
    config: Config,
    unit: int,
    long: SharedPrefixWorkload,
    failing: SharedPrefixWorkload,
    sweep: SharedPrefixWorkload,
    num_controls: int,
) -> tuple[Phase, ...]:
    """Which workload serves what: `long` the main series, `failing` salts and markers, `sweep` the shifts."""
    main, broken, count = PrefixSeries(long, unit, config.seed), PrefixSeries(failing, unit, config.seed), config.num_failing
    shared = (main.shared(config.num_requests), main.unrelated(num_controls, long.prompts[: config.num_requests]))
    failures = (
        broken.fresh_salts(count),
        broken.fixed_salt(count),
        broken.unique_prepended(count),
        broken.shared_prepended(count),
        broken.unique_appended(count),
        broken.shared_appended(count),
    )
    # The failures start from a cache that holds the plain prompt: the shared series leaves it, or it is sent first.
    if failing is long:
        start = (Phase(shared + failures, long.canary_ids),)
    else:
        start = (Phase(shared, long.canary_ids), Phase(failures, failing.canary_ids, prime=failing.prompts[0]))
    shifted = PrefixSeries(sweep, unit, config.seed).shifted(config.max_shift)
    return (*start, Phase((main.repeated(),), long.canary_ids), Phase((shifted,), sweep.canary_ids, prime=sweep.prompts[0]))


def _run_plan(session: LabSession, target: Target, plan: CachePlan) -> tuple[dict[str, SeriesResult], bool]:
    """Results by scenario, and whether every phase started from a proven cold cache."""
    results: dict[str, SeriesResult] = {}
    cold = True
    for phase in plan.phases:
        cold = prove_cold(session, target, phase.canary_ids) and cold
        if phase.prime:
            target.complete(phase.prime)
        for series in phase.series:
            results[series.row] = run_series(session, target, series, plan.title)
    return results, cold


def _compare_outputs(
    session: LabSession, target: Target, plan: CachePlan, workload: SharedPrefixWorkload, num_tokens: int
) -> tuple[Measurement, str, bool]:
    """Greedy output cold, cold again (the control) and warm: its measurement, a finding, and whether cold was proven."""
    check, cold = compare_cold_and_warm(session, target, plan.title, workload.prompts[0], workload.canary_ids, num_tokens)
    proof, text = None, check.text
    if not check.equal and target.info.dtype != "float32":
        session.expect(3)
        exact = session.open_target(**plan.engine_fields, dtype="float32")
        try:
            title = f"{plan.title}, float32"
            proof, _ = compare_cold_and_warm(session, exact, title, workload.prompts[0], workload.canary_ids, num_tokens)
        finally:
            exact.close()
        text += f"; in float32: {proof.text}"
    unexplained = num_unexplained(check, target.info.dtype, proof)
    if not check.equal:
        text += ". A near tie, decided by rounding" if not unexplained else ". NOT a near tie: wrong K/V"
    row = f"greedy output, {num_tokens} tokens, cold = warm"
    law, note = output_law(session.open_target.kind), "counts outputs that differ beyond a near tie"
    if law is None:
        note += "; simulated tokens do not depend on K/V, so it cannot fail here"
        text += ". Simulated tokens do not depend on K/V: it shows nothing"
    measurement = Measurement("total", "tokens", (unexplained,), plan.title, row, law, note=note)
    session.record(measurement)
    return measurement, f"{plan.title}: {text}", cold


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
    for row in ("fresh salt per request", "unique token prepended"):
        findings.append(f"{plan.title}: {row}: {_verdict(target, rows[row].series, plan.unit)}")
    return findings


def _verdict(target: Target, series: Series, unit: int) -> str:
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
    pair = compare(sent[0], sent[1], unit)
    readings = {
        "identity": f"a salt, not the text: {pair.lost_tokens:,} tokens would be reused if the identities were equal",
        "front": f"something in front: {pair.lost_tokens:,} equal tokens behind it are lost with their blocks",
        "too short": f"what they share is shorter than one block of {unit}",
    }
    return f"{readings.get(pair.cause, pair.cause)}. {pair.evidence}"


def _charts(plan: CachePlan, measurements: Sequence[Measurement]) -> tuple[Chart, Chart]:
    """Of the first cache: the hit rate of each scenario, predicted and measured, and the times of misses, hits and the control."""
    found = {(one.row, one.name): one for one in measurements if one.group == plan.title}
    rows = [row for row, name in found if name == "queries"]
    rates: dict[str, list[tuple[str, float]]] = {"predicted": [], "measured": []}
    for row in rows:
        total, queries = found[row, "total"], found[row, "queries"]
        assert total.predicted is not None and queries.predicted is not None
        rates["predicted"].append((row, 100 * total.predicted.value / queries.predicted.value))
        rates["measured"].append((row, 100 * total.value / queries.value))
    shared = plan.phases[0].series[0].row
    control = [row for row, name in found if name == "ttft_control"]
    samples = {"first request (cold)": found[shared, "ttft_cold"].samples, "later requests (warm)": found[shared, "ttft_warm"].samples}
    samples["unrelated prompt (control)"] = found[control[0], "ttft_control"].samples
    return (
        bars_of(f"Hit rate by scenario, {plan.title}: one token in front costs every block", rates, unit="%"),
        times_of(f"Time to first token, {plan.title}", samples),
    )


def _conclusion(plan: CachePlan, measurements: Sequence[Measurement]) -> str:
    """What happened and what to do about it, for the reader who skips the tables."""
    found = {one.name: one for one in measurements if one.row == plan.phases[0].series[0].row and one.group == plan.title}
    hits, looked_up, later = found["total"].value, found["queries"].value, found["later"]
    return (
        f"{outcome_line(measurements)} With the {plan.title}, {1 + len(later.samples)} requests took {hits:,} of "
        f"{looked_up:,} tokens ({hits / looked_up:.2%}) from the cache: the first pays, each later one reuses {later.value:,}. "
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
)
