"""Lab 13: what empties or skips the cache?

Background. Cached K/V are valid for the weights they were computed with, and a block's name says nothing of weights: it is
made of tokens and identity. So some requests must not read the cache, and some events must empty it; nobody does that by
looking at what is cached.

Predicted, in tokens (B = block or page size, L = prompt tokens):

    prompt_logprobs    0 hits: logits of cached tokens are not kept, so nothing is read; and 0 queries, as vLLM counts
    plain, behind it   B·⌊(L−1)/B⌋: what does not read still writes
    told not to read   as prompt_logprobs, by a request's own choice
    another salt       0: content under other names is out of reach, though it stays in the pool
    reset, refused     while a request holds blocks; nothing is lost
    reset, accepted    everything misses, under every salt; followers of the KV events learn of it
    new weights        without a reset B·⌊(L−1)/B⌋ tokens of stale K/V, and other outputs than the new weights give
    … after a reset    0 hits, and the outputs of an engine that never had the old weights

How to read it. Queries are vLLM's counters, for both caches: a request that does not look up enters neither hits nor queries.
SGLang's own metrics count such a prompt's tokens as input, so its rate falls. With vLLM over HTTP, `echo` together with
`logprobs` asks for prompt_logprobs, and passes the cache by without a word. `wrong` counts output tokens, greedy, that
differ from those of a fresh engine with the same weights. The update is one that training could give: noise on every weight
matrix, from the seed. No K/V are kept on the simulated target, which shows what a cache can know: the hits are counted as
before.

On a server the first half is asked: prompt_logprobs where it takes them, another salt, and a reset where it has one; where it
has none, prompts get other ids instead, and nothing is said about resets. Weights and running requests are out of reach.

Sources: vLLM 0.32.0, v1/request.py, v1/core/kv_cache_manager.py and v1/core/block_pool.py (reset_prefix_cache names weight
updates in RLHF); SGLang 0.5.23, flush_cache and managers/schedule_batch.py (a match ends where log-probabilities begin).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from engine.errors import ConfigError
from labs.caches import Cache, caches, served_cache
from labs.chart import Chart, bars_of
from labs.field_check import check_numbers
from labs.length_check import check_length
from labs.outcome import hits_outcome
from labs.protocol import Lab, LabReport, LabSession, Measurement
from labs.salts import salts
from labs.scenarios.invalidation_series import NUM_REQUESTS, NUM_SIMULATED_REQUESTS, InvalidationSeries
from labs.series import prove_cold
from labs.served_sizes import fit_sizes
from labs.targets.base import FieldRefused, Target
from labs.witnesses import TRAFFIC, Doubt, tell_doubts
from labs.workload import SharedPrefixWorkload, TokenIds

# Whether a request with prompt_logprobs, which does not read the cache, counts as looked up: vLLM leaves it out, SGLang
# counts its tokens as input.
SKIPS_COUNTED = {"vllm": False, "sglang": True}
ANSWERS_WRONGLY = "and the model answers with other tokens than it should"


@dataclass(frozen=True)
class Config:
    """Sizes; in tokens unless said otherwise."""

    prompt_tokens: int = 160  # of the one prompt that all requests send
    output_tokens: int = 8  # compared between weights
    weight_change: float = 0.3  # of each weight matrix, in its own standard deviations; real models only
    block_size: int = 16  # of the hash cache
    page_sizes: tuple[int, ...] = (1, 16)  # of the radix caches
    seed: int = 0

    def __post_init__(self) -> None:
        # A smaller update may leave every greedy token as it was.
        check_numbers(self, {"prompt_tokens": 3, "weight_change": 0.1}, {"weight_change": 10.0})


def run(session: LabSession, config: Config) -> LabReport:
    """Skip, reset and update, on every cache."""
    if (served := session.open_target.served) is not None:
        return _run_on_server(session, config, served_cache(served))
    workload = _workload(session, config)
    plans = caches(config.block_size, config.page_sizes)
    is_sim = session.open_target.kind == "sim"
    session.expect(len(plans) * (NUM_SIMULATED_REQUESTS if is_sim else NUM_REQUESTS))
    measurements: list[Measurement] = []
    updated, cold, salt = None, True, next(salts(config.seed))
    for cache in plans:
        # Prompts under two salts, and what skips reading is stored a second time.
        num_blocks = cache.blocks_for(5 * (config.prompt_tokens + config.output_tokens), 8)
        fields = {**cache.engine_fields, "num_gpu_blocks": num_blocks}
        target = session.open_target(**fields, enable_kv_cache_events=True)
        try:
            series = InvalidationSeries(session, target, cache, workload.prompts[0], salt, config.output_tokens)
            cold = prove_cold(session, target, workload.canary_ids) and cold
            series.ask_skips()
            series.ask_resets()
            cold = prove_cold(session, target, workload.canary_ids) and cold
            if is_sim:
                series.ask_hits_alone()
            else:
                updated = updated or _updated(target, config)
                series.ask_weights(updated, lambda: session.open_target(**fields))
        finally:
            target.close()
        measurements += series.measurements
    return LabReport(
        tuple(measurements),
        "cold" if cold else "uncontrolled",
        tuple(_findings(config, plans, measurements, is_sim)),
        _conclusion(measurements, "from which a real model answers wrongly" if is_sim else ANSWERS_WRONGLY),
        {"workload": workload.digest},
        _charts(plans, measurements, is_sim),
    )


def _run_on_server(session: LabSession, config: Config, cache: Cache) -> LabReport:
    """What a client can see: requests that skip the cache, salts, and a reset if there is one."""
    target = session.open_target(num_gpu_blocks=cache.blocks_for(5 * config.prompt_tokens, 8))
    limit, unit = target.info.max_model_len, cache.unit
    whole = (2 if cache.has_drafter else 1) * unit + 1
    sizes = {"prompt_tokens": max(3, min(max(config.prompt_tokens, whole), limit - 1))}
    config, findings = fit_sizes(session, config, sizes)
    check_length(config, limit - 1, "on this server", prompt_tokens=config.prompt_tokens)
    workload = SharedPrefixWorkload.from_token_ids(
        target.info.vocab_size, config.seed, config.prompt_tokens - 1, 1, 1, num_unrelated=0
    )
    series = InvalidationSeries(session, target, cache, workload.prompts[0], next(salts(config.seed)), 1)
    try:
        skips = SKIPS_COUNTED.get(target.info.kind) if _takes_prompt_logprobs(target, workload.canary_ids) else None
        cold = prove_cold(session, target, workload.canary_ids)
        series.ask_served_skips(skips)
        if skips is None:
            findings.append(
                f"{cache.title}: prompt_logprobs are not asked: this server refuses them, or is not known to skip its cache"
            )
        if target.info.config.get("isolation") == "reset":
            series.ask_served_reset()
            if target.last_reset == "renamed":
                findings.append(
                    f"{cache.title}: a reset was refused, although none of the lab's requests was running: what it leaves is not "
                    "judged; prompts were given other token ids instead"
                )
        else:
            findings.append(
                f"{cache.title}: it has no reset that a client may use, or refused it, so nothing is said of resets; prompts were "
                "given other token ids instead"
            )
    finally:
        target.close()
    measurements = series.measurements
    findings += _served_findings(cache, measurements, series.doubts) + tell_doubts(series.doubts)
    return LabReport(
        tuple(measurements),
        "cold" if cold else "uncontrolled",
        tuple(findings),
        _conclusion(measurements, "from which a model answers wrongly (not asked of this server)"),
        {"workload": workload.digest},
        (bars_of("What skips the cache: tokens found", _served_bars(cache, measurements)),),
    )


def _takes_prompt_logprobs(target: Target, canary_ids: TokenIds) -> bool:
    """Whether the server answers a request for them. Raises TargetError for any other failure."""
    try:
        target.complete(canary_ids, prompt_logprobs=True)
    except FieldRefused:
        return False
    return True


def _served_findings(cache: Cache, measurements: Sequence[Measurement], doubts: Sequence[Doubt]) -> list[str]:
    found = {(one.row, one.name): int(one.value) for one in measurements if one.predicted is not None}
    lines, is_shared = [], any(doubt.kind == TRAFFIC for doubt in doubts)
    if (hits := found.get(("prompt_logprobs, warm cache", "hits"))) is not None:
        queries = found.get(("prompt_logprobs, warm cache", "queries"))
        looked_up = "its counters do not tell what was looked up" if queries is None else f"{queries:,} counted as looked up"
        lines.append(f"{cache.title}: prompt_logprobs on a warm cache: {hits:,} tokens found, {looked_up}")
    salted, again = (found.get((row, "hits")) for row in ("another salt", "that salt again"))
    if salted is not None and again is not None:
        not_isolated = "cannot tell, others use this server" if is_shared else "NOT isolated"
        verdict = "isolated" if salted == 0 < again else not_isolated if salted else "nothing reused, so nothing shown"
        lines.append(f"{cache.title}: a new salt finds {salted:,} tokens and the same salt again {again:,}: {verdict}")
    return lines


def _served_bars(cache: Cache, measurements: Sequence[Measurement]) -> dict[str, list[tuple[str, float]]]:
    return {cache.title: [(one.row, float(one.value)) for one in measurements if one.name == "hits"]}


def _workload(session: LabSession, config: Config) -> SharedPrefixWorkload:
    """One prompt: real text where the model has a chat template, so that its answers mean something."""
    target = session.open_target(num_gpu_blocks=2)
    tokenizer, vocab_size, max_model_len = target.tokenizer(), target.info.vocab_size, target.info.max_model_len
    target.close()
    check_length(config, max_model_len, prompt_tokens=config.prompt_tokens, output_tokens=config.output_tokens)
    is_text = tokenizer is not None and tokenizer.has_chat_template
    num_tail = max(16, config.prompt_tokens // 4) if is_text else 1
    sizes = {"seed": config.seed, "num_shared": config.prompt_tokens - num_tail, "num_tail": num_tail, "num_requests": 1}
    try:
        if is_text:
            return SharedPrefixWorkload.from_text(tokenizer, **sizes, num_unrelated=0)
        return SharedPrefixWorkload.from_token_ids(vocab_size, **sizes, num_unrelated=0)
    except ConfigError as error:
        raise ConfigError("prompt_tokens", config.prompt_tokens, "another number: no text of this model has that many") from error


def _updated(target: Target, config: Config) -> Any:
    from engine.model.weight_update import updated_weights

    return updated_weights(target.engine.runner.loaded, config.seed, config.weight_change)


def _value(measurements: Sequence[Measurement], cache: Cache, row: str, name: str) -> int:
    mine = (one for one in measurements if one.group.startswith(f"{cache.title}:"))
    return next(int(one.value) for one in mine if (one.row, one.name) == (row, name))


def _findings(config: Config, plans: Sequence[Cache], measurements: Sequence[Measurement], is_sim: bool) -> list[str]:
    found = []
    for cache in plans:
        hits, queries = (_value(measurements, cache, "prompt_logprobs, warm cache", name) for name in ("hits", "queries"))
        accepted, told = (_value(measurements, cache, "reset, a request is running", name) for name in ("accepted", "cleared"))
        answer = "was accepted, with K/V in use" if accepted else "was refused"
        found += [
            f"{cache.title}: prompt_logprobs on a warm cache: {hits} tokens found, {queries} counted as looked up",
            f"{cache.title}: a reset during a request {answer}; {told} KV events said that all blocks are cleared",
        ]
        if is_sim:
            continue
        stale, wrong = (_value(measurements, cache, "new weights, no reset", name) for name in ("hits", "wrong"))
        clean = _value(measurements, cache, "new weights, after a reset", "wrong")
        changed = _value(measurements, cache, "old against new weights", "wrong")
        found.append(
            f"{cache.title}: after the update {stale} tokens of old K/V were served, and {wrong} of {config.output_tokens} "
            f"output tokens differ from a fresh engine's, silently; after a reset {clean} do. (The update changes {changed}.)"
        )
    if is_sim:
        found.append("simulated: no K/V are kept, so stale ones cannot show in the output; run it with --target engine for that")
    return found


def _conclusion(measurements: Sequence[Measurement], shown: str) -> str:
    """What happened and what to do; `shown`: what old K/V do, as far as this run showed it."""
    return (
        f"{hits_outcome(measurements, 'Every prediction was met.')} A request with prompt_logprobs passes the cache by and leaves its "
        "blocks for others; leave such requests out when you compare prompt tokens with looked-up ones (with vLLM also those with "
        "echo and logprobs). A reset asks that no request holds blocks, and says whether it was done: vLLM's /reset_prefix_cache "
        "always answers 200, so read `success` in its body; SGLang's /flush_cache answers 400 when it was not. After a weight update "
        f"the cache serves old K/V as before, {shown}: no key holds the weights. In production: let requests end, abort them, or "
        "have the reset preempt them (vLLM: reset_running_requests=true); a request that is only paused holds its blocks, and the "
        "reset is refused. Then update, reset, check that it was done, and go on. Where engines share an outer store of K/V, empty "
        "that too. A salt for each version of the weights keeps new requests from old K/V without a reset; those that run during "
        "the update go on over theirs, so end them first all the same."
    )


def _charts(plans: Sequence[Cache], measurements: Sequence[Measurement], is_sim: bool) -> tuple[Chart, ...]:
    skips = ("prompt_logprobs, cold cache", "plain, behind it", "prompt_logprobs, warm cache", "told not to read", "another salt")
    updates = ("old weights, warm", "new weights, no reset", "new weights, after a reset")

    def chart(title: str, name: str, rows: Sequence[str]) -> Chart:
        return bars_of(title, {cache.title: [(row, _value(measurements, cache, row, name)) for row in rows] for cache in plans})

    found = [
        chart("What skips the cache: tokens found", "hits", skips),
        chart("Before and after the weights changed: tokens found", "hits", updates),
    ]
    if not is_sim:
        found.append(chart("Before and after the weights changed: output tokens unlike a fresh engine's", "wrong", updates))
    return tuple(found)


LAB = Lab(
    number=13,
    name="invalidation",
    question="What empties or skips the cache?",
    config_type=Config,
    quick=Config(prompt_tokens=64, page_sizes=(1,)),
    full=Config(prompt_tokens=2200, output_tokens=32),
    run=run,
    targets=("engine", "sim", "server"),
    in_process_fields=("output_tokens", "weight_change", "block_size", "page_sizes"),
)
