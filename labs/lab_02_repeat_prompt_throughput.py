"""Lab 02: what does caching buy when prompts repeat?

Background. The protocol of vLLM's benchmark_prefix_caching: a few prompts, each repeated, shuffled, all sent at once, with
the cache on and off. That script prints one time; this lab predicts the hits first, alternates on and off so that a
drifting machine does not decide, and shows the spread.

Predicted. With L prompt tokens and N repeats in a cache with blocks of B tokens, all but the requests that must compute the
prompt themselves reuse B·⌊(L−1)/B⌋. With the hash cache only the first must (blocks are findable when slots are
allocated); with the radix cache all that share the first step must (content is findable after the step).

How to read it. Hits must equal the law. The time ratio is a ceiling for real traffic: decoding, which no prefix cache
shortens, is part of both times.

On a server the cache cannot be switched off: prompts of that length which all differ take its place, so that as much is
computed as without a cache. Where content is findable only after the step, one request of each prompt is sent ahead: which of
the others share a step nobody knows from outside. Times are those of this client, the way there included.

Sources: vLLM 0.32.0, benchmarks/benchmark_prefix_caching.py; labs/theory.py.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any, Collection

from engine.errors import ConfigError
from labs import theory
from labs.caches import Cache, served_cache
from labs.chart import Chart, times_of
from labs.length_check import check_length
from labs.measure import ratio_of_medians, sim_times_note
from labs.outcome import hits_outcome
from labs.protocol import Lab, LabReport, LabSession, Measurement, Prediction
from labs.series import prove_cold
from labs.served_sizes import fit_sizes
from labs.targets.base import Completion, Target
from labs.witnesses import Doubt, judge_sums, tell_doubts
from labs.workload import TokenIds, repeated_prompts, workload_digest

CONCLUSION = (
    "Repeats cost what is new in them: the last block of the prompt and the tokens generated. The ratio is smaller than "
    "the share of prompt tokens saved, because generated tokens cost the same either way; long prompts with short answers "
    "gain most. Sent at once to a cache that publishes after the step, the first step's twins all compute the prompt: "
    "send one request ahead, or let the scheduler hold twins back."
)


@dataclass(frozen=True)
class Config:
    """The benchmark's sizes; its names where it has one."""

    num_prompts: int = 1
    repeat_count: int = 20  # requests per prompt
    input_tokens: int = 256  # per prompt
    output_len: int = 10  # tokens generated per request
    trials: int = 3  # runs with the cache on, and as many with it off
    block_size: int = 16  # of the hash cache
    page_size: int = 1  # of the radix cache
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = {"repeat_count": 2, "input_tokens": 2, "seed": 0}.get(name, 1)
            if value < least:
                raise ValueError(f"{name} is {value}; accepted: a whole number from {least}")
        for name, most in (("num_prompts", 256), ("block_size", 65_536), ("page_size", 65_536)):
            if getattr(self, name) > most:
                raise ValueError(f"{name} is {getattr(self, name)}; accepted: a whole number from 1 to {most}")


@dataclass(frozen=True)
class Arm:
    """One cache: how it is opened, and which of its requests must compute their prompt themselves."""

    title: str
    unit: int
    engine_fields: dict[str, Any]
    publishes_at_allocation: bool


def run(session: LabSession, config: Config) -> LabReport:
    """Alternate the cache on and off, for both caches."""
    if session.open_target.served is not None:
        return _run_on_server(session, config, served_cache(session.open_target.served))
    probe = session.open_target(num_gpu_blocks=2)
    vocab_size, engine_config = probe.info.vocab_size, probe.info.config
    probe.close()
    # The last id begins the canary: no measured prompt may begin with it.
    prompts = repeated_prompts(vocab_size - 1, config.seed, config.num_prompts, config.input_tokens, config.repeat_count)
    canary = (vocab_size - 1,) * 48
    arms = [
        Arm(f"hash cache, block {config.block_size}", config.block_size, {"prefix_cache": "hash", "block_size": config.block_size}, True),
        Arm(f"radix cache, page {config.page_size}", config.page_size, {"prefix_cache": "radix", "page_size": config.page_size}, False),
    ]
    session.expect(len(arms) * 2 * config.trials * len(prompts))
    measurements: list[Measurement] = []
    findings: list[str] = []
    cold = True
    for arm in arms:
        hits = _predict_hits(config, arm, prompts, engine_config)
        found, finding, started_cold = _run_arm(session, config, arm, prompts, canary, hits)
        measurements += found
        findings.append(finding)
        cold = cold and started_cold
    if note := sim_times_note(session.open_target.kind):
        findings.append(note)
    return LabReport(
        tuple(measurements),
        "cold" if cold else "uncontrolled",
        tuple(findings),
        CONCLUSION,
        {"workload": workload_digest([prompts])},
        (_chart(measurements),),
    )


def _run_on_server(session: LabSession, config: Config, cache: Cache) -> LabReport:
    """Repeats, and prompts that all differ, in turns, on the one cache there is."""
    count = config.num_prompts * config.repeat_count
    tokens = 2 * count * (config.input_tokens + config.output_len)
    target = session.open_target(num_gpu_blocks=cache.blocks_for(tokens, 2 * count))
    limit, vocab_size = target.info.max_model_len, target.info.vocab_size
    fewest = (2 if cache.has_drafter else 1) * cache.unit + 1
    sizes = {"input_tokens": max(2, min(max(config.input_tokens, fewest), limit - config.output_len))}
    sizes |= _fitting_numbers(config, vocab_size, _most_kept(config, target, cache), session.typed)
    config, findings = fit_sizes(session, config, sizes)
    lengths = {"input_tokens": config.input_tokens, "output_len": config.output_len}
    check_length(config, limit, "on this server", session.typed, **lengths)
    _check_numbers(config, vocab_size, _most_kept(config, target, cache), session.typed)
    prompts, others = _repeats_and_others(config, vocab_size)
    session.expect(config.trials * 2 * len(prompts))
    times: dict[str, list[float]] = {"on": [], "off": []}
    measurements: list[Measurement] = []
    doubts, cold = [], True
    try:
        for trial in range(config.trials):
            cold = prove_cold(session, target, (vocab_size - 1,) * 48) and cold
            for name, sent in (("on", prompts), ("off", others)):
                completions, seconds = _send_to_server(session, target, cache, sent, config.output_len)
                times[name].append(seconds)
                found, more = _judge_served(cache, config, name, trial, completions, target)
                session.record(*found)
                measurements += found
                doubts += more
    finally:
        target.close()
    row = _row(config)
    timed = [
        Measurement("time_on", "s", tuple(times["on"]), cache.title, row),
        Measurement("time_off", "s", tuple(times["off"]), cache.title, row, note="time_off: prompts that all differ"),
    ]
    session.record(*timed)
    ratio = ratio_of_medians(times["off"], times["on"])
    findings.append(
        f"{cache.title}: {ratio.value:.2f} times as fast as prompts that all differ [{ratio.low:.2f}–{ratio.high:.2f}, "
        f"{config.trials} trials each], from this client"
    )
    return LabReport(
        (*measurements, *timed),
        "cold" if cold else "uncontrolled",
        (*findings, *tell_doubts(doubts)),
        f"{hits_outcome(measurements)} {CONCLUSION}",
        {"workload": workload_digest([prompts, others])},
        (_chart(timed),),
    )


def _most_kept(config: Config, target: Target, cache: Cache) -> int | None:
    """Prompts that a server keeps at once; None: it does not tell its pool."""
    if target.info.num_blocks is None:
        return None
    length = config.input_tokens + config.output_len + 2 * cache.unit
    return max(1, target.info.num_blocks * cache.unit // length - 1)


def _fitting_numbers(config: Config, vocab_size: int, most_kept: int | None, typed: Collection[str]) -> dict[str, int]:
    """Prompts and repeats, beside what was typed: each prompt begins with a token of its own, those that all differ too."""
    repeats, prompts = config.repeat_count, config.num_prompts
    if "num_prompts" not in typed:
        prompts = max(1, min(prompts, (vocab_size - 1) // (repeats + 1), most_kept or prompts))
    if "repeat_count" not in typed:
        repeats = max(2, min(repeats, (vocab_size - 1) // prompts - 1))
    return {"num_prompts": prompts, "repeat_count": repeats}


def _check_numbers(config: Config, vocab_size: int, most_kept: int | None, typed: Collection[str]) -> None:
    """Raises ConfigError naming what was typed."""
    prompts, repeats, num_ids = config.num_prompts, config.repeat_count, vocab_size - 1
    if prompts * (repeats + 1) > num_ids:
        why = f"each of {prompts} prompts, and each of as many as are sent that all differ, begins with one of {num_ids:,} tokens"
        if "repeat_count" in typed or "num_prompts" not in typed:
            raise ConfigError("repeat_count", repeats, f"at most {num_ids // prompts - 1} on this server: {why}")
        raise ConfigError("num_prompts", prompts, f"at most {num_ids // (repeats + 1)} on this server: {why}")
    if most_kept is not None and prompts > most_kept:
        raise ConfigError("num_prompts", prompts, f"at most {most_kept} on this server, whose pool must hold them all")


def _row(config: Config) -> str:
    return f"{config.num_prompts} × {config.repeat_count} prompts of {config.input_tokens} tokens"


def _repeats_and_others(config: Config, vocab_size: int) -> tuple[tuple[TokenIds, ...], tuple[TokenIds, ...]]:
    """The repeated prompts, shuffled, and as many that all differ; no prompt begins like another, or like the canary."""
    count = config.num_prompts * config.repeat_count
    distinct = repeated_prompts(vocab_size - 1, config.seed, config.num_prompts + count, config.input_tokens, 1)
    repeats = list(distinct[: config.num_prompts]) * config.repeat_count
    random.Random(config.seed).shuffle(repeats)
    return tuple(repeats), distinct[config.num_prompts :]


def _send_to_server(
    session: LabSession, target: Target, cache: Cache, prompts: tuple[TokenIds, ...], output_len: int
) -> tuple[list[Completion], float]:
    """All requests' completions, and this client's seconds for them, from the first one sent to the last token."""
    target.counters()
    start_s = time.perf_counter()
    ahead: list[TokenIds] = [] if cache.publishes_at_allocation else list(dict.fromkeys(prompts))
    if len(ahead) == len(prompts):  # nothing repeats, so nothing is waited for
        ahead = []
    rest = list(prompts)
    for prompt in ahead:
        rest.remove(prompt)
    completions = target.complete_all(ahead, max_tokens=output_len) if ahead else []
    completions += target.complete_all(rest, max_tokens=output_len)
    seconds = time.perf_counter() - start_s
    session.progress(f"{cache.title}: {len(prompts)} requests", len(prompts))
    return completions, seconds


def _judge_served(
    cache: Cache, config: Config, name: str, trial: int, completions: list[Completion], target: Target
) -> tuple[list[Measurement], list[Doubt]]:
    """One trial's hits by both witnesses."""
    counted, count = target.counters(), len(completions)
    num_paying = config.num_prompts if name == "on" else count
    first, later = (cache.laws.predict(theory.reuse, match, config.input_tokens) for match in (0, config.input_tokens))
    value = num_paying * first.value + (count - num_paying) * later.value
    text = f"({count} − {num_paying})·({later.law}) = {value:,}" if num_paying < count else f"{count}·({first.law}) = {value:,}"
    queries = cache.laws.predict(theory.queries, count, config.input_tokens)
    what = _row(config) if name == "on" else f"{count} prompts that all differ"
    return judge_sums(cache.title, f"{what}, trial {trial + 1}", completions, counted, Prediction(value, text), queries)


def _chart(measurements: list[Measurement]) -> Chart:
    """All trials' times, cache on and off."""
    names = {"time_on": "cache on", "time_off": "cache off"}
    samples = {f"{one.group}: {names[one.name]}": one.samples for one in measurements if one.name in names}
    return times_of("All repeats sent at once: time to the last token", samples)


def _predict_hits(
    config: Config, arm: Arm, prompts: tuple[TokenIds, ...], engine_config: dict[str, Any]
) -> Prediction | None:
    """Hits of all requests; None where they depend on which steps the shuffled prompts share."""
    length, num_prompts = config.input_tokens, config.num_prompts
    if arm.publishes_at_allocation:
        # Each prompt pays once; its later requests find it, in whatever step they come.
        value = num_prompts * theory.concurrent_repeat_hits(config.repeat_count, 1, length, arm.unit)
        text = theory.predict(theory.concurrent_repeat_hits, config.repeat_count, 1, length, arm.unit).law
        return Prediction(value, text if num_prompts == 1 else f"{num_prompts} × {text}")
    budget, seats = engine_config["max_num_batched_tokens"], engine_config["max_num_seqs"]
    first_step = theory.first_step_requests(len(prompts), length, budget, seats)
    if length > budget or (num_prompts > 1 and first_step < len(prompts)):
        return None  # a prompt of several chunks is findable chunk by chunk; other prompts follow in unknown steps
    return Prediction(*theory.predict(theory.concurrent_repeat_hits, len(prompts), first_step, length, arm.unit))


def _run_arm(
    session: LabSession, config: Config, arm: Arm, prompts: tuple[TokenIds, ...], canary: TokenIds, hits: Prediction | None
) -> tuple[list[Measurement], str, bool]:
    row = _row(config)
    pool = -(-(len(prompts) * (config.input_tokens + config.output_len + arm.unit) + 1024) // arm.unit) + 4
    on = session.open_target(**arm.engine_fields, num_gpu_blocks=pool)
    off = session.open_target(**arm.engine_fields, num_gpu_blocks=pool, enable_prefix_caching=False)
    cold, found_hits, looked_up = True, [], []
    times: dict[str, list[float]] = {"on": [], "off": []}
    try:
        for _ in range(config.trials):
            cold = prove_cold(session, on, canary) and cold
            times["on"].append(_send(session, on, arm.title, prompts, config.output_len))
            counted = on.counters()
            found_hits.append(counted.hits)
            looked_up.append(counted.queries)
            off.complete(canary)
            times["off"].append(_send(session, off, arm.title, prompts, config.output_len))
    finally:
        on.close()
        off.close()
    queries = Prediction(*theory.predict(theory.queries, len(prompts), config.input_tokens))
    measurements = [
        Measurement("hits", "tokens", tuple(found_hits), arm.title, row, hits, key=True),
        Measurement("queries", "tokens", tuple(looked_up), arm.title, row, queries),
        Measurement("time_on", "s", tuple(times["on"]), arm.title, row),
        Measurement("time_off", "s", tuple(times["off"]), arm.title, row),
    ]
    session.record(*measurements)
    ratio = ratio_of_medians(times["off"], times["on"])
    finding = (
        f"{arm.title}: {found_hits[0] / looked_up[0]:.1%} of the prompt tokens from the cache; "
        f"{ratio.value:.2f} times as fast as with the cache off [{ratio.low:.2f}–{ratio.high:.2f}, {config.trials} trials each]"
    )
    return measurements, finding, cold


def _send(session: LabSession, target: Target, title: str, prompts: tuple[TokenIds, ...], output_len: int) -> float:
    """Seconds from sending all prompts at once to the last token."""
    completions = target.complete_all(prompts, max_tokens=output_len)
    session.progress(f"{title}: {len(prompts)} requests", len(prompts))
    return max(completion.e2e_s for completion in completions)


LAB = Lab(
    number=2,
    name="repeat-prompt-throughput",
    question="What does caching buy when prompts repeat?",
    config_type=Config,
    quick=Config(repeat_count=5, input_tokens=128, trials=2),
    run=run,
    targets=("engine", "sim", "server"),
    in_process_fields=("block_size", "page_size"),
)
