"""Lab 10: what can a neighbour learn, and what do salts cost?

Background. A prefix cache answers sooner when somebody sent the same start before. Whoever shares it can therefore ask
whether a prompt was sent: the time to the first token answers, and so does a server that reports cached tokens. A salt in
the first block's name (or the tree's name space) gives each trust domain a cache of its own.

Predicted, in tokens (B = block or page size, L = prompt tokens, N requests, G different salts):

    right guess, no salts    B·⌊(L−1)/B⌋ hits, and answered sooner than a control: AUC 1
    first token wrong        0 hits: what follows is worth nothing without what comes before
    a salt per user          0 hits for every guess, right or wrong, and AUC 1/2; the victim's own repeat still hits
    guessing one by one      pages of one token answer to each right token: n tokens of A candidates fall to n·A guesses
    guessing by blocks       a block answers only when all of its tokens are right: A^B guesses for each
    what salts cost          (N − G)·B·⌊min(P, L−1)/B⌋ hits, and the shared prompt's blocks are stored G times

The AUC is the chance that a right guess is answered sooner than a control, ties counted half: 1 tells them apart surely, 1/2
not at all. The control is an unrelated prompt of the same length, sent in between, in random order.

How to read it. Hits decide. On a real clock the AUC is judged as a range: three standard deviations of chance around 1/2, or
above that. An AUC near 1/2 says that this attacker saw nothing in so many trials, not that nothing can be seen. On the
simulated target equal work takes equal time: its AUC checks the accounting, not physics.

On a server the neighbour is a second client of its one cache, and salts go into the requests (`cache_salt`). Hits are judged;
the AUC is told and not judged, because the server's load and the way there are part of each time. How many blocks it keeps no
server tells.

Sources: vLLM 0.32.0, docs/design/prefix_caching.md (cache_salt) and v1/core/kv_cache_utils.py; SGLang 0.5.23,
mem_cache/radix_cache.py; Song et al. 2024, arXiv:2409.20002 (timing side channels of LLM serving).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Sequence

from engine.errors import ConfigError
from labs import theory
from labs.caches import Cache, caches
from labs.chart import Chart, bars_of, times_of
from labs.field_check import check_numbers
from labs.length_check import check_length
from labs.measure import Spread
from labs.outcome import hits_outcome
from labs.protocol import Lab, LabReport, LabSession, Measurement
from labs.salts import salts
from labs.scenarios.guess_series import CONTROL, FEWEST_TRIALS, RIGHT, measure_next_tokens, measure_prompts, measure_recovery
from labs.scenarios.prompt_guesses import Arm, PromptGuesses, WholeGuesses
from labs.scenarios.salt_series import SCOPES, SaltSeries, measure_salts
from labs.series import prove_cold
from labs.served_sizes import fit_sizes
from labs.targets.base import ServedCache, TargetUnavailable
from labs.witnesses import tell_doubts
from labs.workload import SharedPrefixWorkload, workload_digest


@dataclass(frozen=True)
class Config:
    """Sizes; in tokens unless said otherwise."""

    prompt_tokens: int = 160  # of the prompts that are guessed whole
    num_trials: int = 12  # prompts guessed, with and without salts; from 7 on chance can be told from certainty
    known_tokens: int = 48  # what the neighbour knows of a prompt before guessing on; cut to whole blocks
    secret_tokens: int = 16  # what he does not know
    num_candidates: int = 4  # tokens that each secret one may be
    system_tokens: int = 128  # shared by all requests when salts are paid for
    user_tokens: int = 16  # what each has of its own
    num_requests: int = 12  # that share it
    num_users: int = 4  # whose requests they are, in turns
    num_tenants: int = 2  # whose users they are
    block_size: int = 16  # of the hash cache
    page_sizes: tuple[int, ...] = (1, 16)  # of the radix caches
    full: bool = False  # all trials on every cache
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"prompt_tokens": 2, "num_trials": FEWEST_TRIALS, "num_candidates": 2, "num_requests": 2}
        # More would take hours, and say the same.
        most = {"num_trials": 1_000, "num_candidates": 128, "secret_tokens": 1_024, "num_requests": 1_000}
        check_numbers(self, least, most)
        if self.num_users > self.num_requests:
            raise ConfigError("num_users", self.num_users, f"a whole number from 1 to num_requests, {self.num_requests}")
        if self.num_tenants > self.num_users:
            raise ConfigError("num_tenants", self.num_tenants, f"a whole number from 1 to num_users, {self.num_users}")

    @property
    def salt_series(self) -> list[SaltSeries]:
        return [SaltSeries(scope, self.num_requests, self.num_users, self.num_tenants) for scope in SCOPES]

    def num_messages(self, unit: int, num_trials: int) -> int:
        """Requests that one cache gets, canaries aside."""
        found = theory.tokens_guessed_singly(self.secret_tokens, unit)
        single = (theory.single_token_guesses(self.num_candidates, tokens, self.secret_tokens) for tokens in (found, 0))
        whole_block = 1 < unit <= self.secret_tokens
        return 8 * num_trials + 2 + 3 + whole_block + 2 + sum(single) + 4 * self.num_requests


@dataclass(frozen=True)
class _Found:
    """What one cache showed."""

    cache: Cache
    measurements: list[Measurement]
    guesses: dict[str, WholeGuesses]  # by arm
    cold: bool
    bytes_per_token: int | None  # of K/V; None: a server does not tell


def run(session: LabSession, config: Config) -> LabReport:
    """Guess prompts, guess tokens, and pay for salts, on every cache."""
    config, fitted, guesses, workload, canary_ids = _prompts(session, config)
    plans = caches(config.block_size, config.page_sizes, session.open_target.served)
    # Trials are for the clock. How soon a hit answers is the same for every cache, and counts need one trial.
    full = config.full or session.open_target.kind == "sim"
    trials = {cache.title: config.num_trials if full or cache is plans[0] else 1 for cache in plans}
    session.expect(sum(config.num_messages(cache.unit, trials[cache.title]) for cache in plans))
    found = [_ask(session, config, cache, guesses.first(trials[cache.title]), workload, canary_ids) for cache in plans]
    measurements = tuple(one for each in found for one in each.measurements)
    return LabReport(
        measurements,
        "cold" if all(each.cold for each in found) else "uncontrolled",
        (*fitted, *(line for each in found for line in _findings(config, each, session.open_target.kind))),
        _conclusion(config, found, measurements),
        {
            "workload": workload_digest([*guesses.prompts, workload.prompts]),
            "ttft_s": {each.cache.title: _times(each) for each in found},
        },
        _charts(found),
    )


def _prompts(
    session: LabSession, config: Config
) -> tuple[Config, list[str], PromptGuesses, SharedPrefixWorkload, tuple[int, ...]]:
    """Random ids: a text's head would be shared by right and wrong guesses alike. The sizes they have, and how those were fitted."""
    target = session.open_target(num_gpu_blocks=2)
    vocab_size, max_model_len = target.info.vocab_size, target.info.max_model_len
    pool = None if target.info.num_blocks is None else target.info.num_blocks * target.info.unit_size
    target.close()
    fitted: list[str] = []
    if (served := session.open_target.served) is not None:
        if served.num_front >= served.unit_size:
            raise TargetUnavailable(
                f"the server puts {served.num_front} token(s) in front of every prompt, which fill a page: a wrong guess finds them "
                "too; accepted: a server that takes token ids"
            )
        config, fitted = fit_sizes(session, config, _fitting_sizes(config, served, max_model_len, pool))
        _check_pool(config, served, pool)
    most = max_model_len - 1  # a token is generated
    check_length(config, most, prompt_tokens=config.prompt_tokens)
    # One token more follows what is secret.
    check_length(config, most - 1, known_tokens=config.known_tokens, secret_tokens=config.secret_tokens)
    check_length(config, most, system_tokens=config.system_tokens, user_tokens=config.user_tokens)
    guesses = PromptGuesses.from_seed(
        config.seed,
        vocab_size,
        num_trials=config.num_trials,
        prompt_tokens=config.prompt_tokens,
        num_candidates=config.num_candidates,
        num_known=config.known_tokens,
        num_secret=config.secret_tokens,
    )
    try:
        workload = SharedPrefixWorkload.from_token_ids(
            vocab_size - 1, config.seed, config.system_tokens, config.user_tokens, config.num_requests, num_unrelated=0
        )
    except ConfigError as error:
        raise ConfigError("num_requests", config.num_requests, "fewer: their tokens must differ in this vocabulary") from error
    return config, fitted, guesses, workload, (vocab_size - 1,) * 48


def _fitting_sizes(config: Config, served: ServedCache, limit: int, pool: int | None) -> dict[str, int]:
    """Prompts that fill two blocks of a server (three beside a drafter), and a known prefix of one, where they fit.

    pool  tokens that it keeps; None: it does not tell
    """
    whole, most = (3 if served.has_drafter else 2) * served.unit_size, limit - 2
    most_whole, most_system = most, most
    if pool is not None:
        most_whole, most_system = (min(most, pool // number - 2 * served.unit_size) for number in (2, config.num_users))
    known, secret = max(config.known_tokens, whole - served.unit_size), config.secret_tokens
    return {
        "prompt_tokens": max(2, min(max(config.prompt_tokens, whole), most_whole)),
        "known_tokens": known if known + secret < most else max(1, min(config.known_tokens, most - secret - 1)),
        "system_tokens": max(1, min(max(config.system_tokens, whole), most_system - config.user_tokens)),
    }


def _tokens_in_reach(config: Config, unit: int) -> int:
    """Tokens that a cache must keep to find what is due: each user's copy until his next request, a victim's prompt until he
    sends it again, and what is known of one while the next token is guessed."""
    copies = config.num_users * (config.system_tokens + config.user_tokens + 2 * unit)
    guessed = 2 * (config.prompt_tokens + 2 * unit)
    num_guesses = config.num_candidates * (config.secret_tokens if unit == 1 else 1)
    return max(copies, guessed, config.known_tokens + config.secret_tokens + 2 * unit * num_guesses)


def _check_pool(config: Config, served: ServedCache, pool: int | None) -> None:
    """A pool that is known to drop what should be found shows nothing. Raises ConfigError naming the field."""
    unit = served.unit_size
    if pool is None or _tokens_in_reach(config, unit) <= pool:
        return
    copies = config.num_users * (config.system_tokens + config.user_tokens + 2 * unit)
    most = pool // config.num_users - config.user_tokens - 2 * unit
    if copies > pool and most >= 1:
        why = f"the pool of {pool:,} tokens must keep it for {config.num_users} users"
        raise ConfigError("system_tokens", config.system_tokens, f"at most {most} on this server: {why}")
    if copies > pool:
        accepted = f"fewer on this server, whose pool of {pool:,} tokens must keep a copy for each"
        raise ConfigError("num_users", config.num_users, accepted)
    if 2 * (config.prompt_tokens + 2 * unit) > pool:
        accepted = f"at most {pool // 2 - 2 * unit} on this server: its pool of {pool:,} tokens must keep two"
        raise ConfigError("prompt_tokens", config.prompt_tokens, accepted)
    raise ConfigError("num_candidates", config.num_candidates, f"fewer on this server, whose pool keeps {pool:,} tokens")


def _ask(
    session: LabSession,
    config: Config,
    cache: Cache,
    guesses: PromptGuesses,
    workload: SharedPrefixWorkload,
    canary_ids: Sequence[int],
) -> _Found:
    fresh = salts(config.seed)
    victim, neighbour = next(fresh), next(fresh)
    arms = (Arm("no salts", None, None), Arm("a salt per user", victim, neighbour))
    whole_tokens = 4 * config.num_trials * config.prompt_tokens
    scope_tokens = config.num_requests * (config.system_tokens + config.user_tokens)
    blocks = cache.blocks_for(max(whole_tokens, scope_tokens), max(4 * config.num_trials, config.num_requests))
    if session.open_target.served is not None:  # its pool is as large as it is: what may be dropped is not asked for
        blocks = -(-_tokens_in_reach(config, cache.unit) // cache.unit) + 1
    target = session.open_target(**cache.engine_fields, num_gpu_blocks=blocks)
    found = _Found(cache, [], {}, True, None if target.engine is None else target.engine.runner.bytes_per_token())
    cold = True
    try:
        for arm in arms:
            cold = prove_cold(session, target, canary_ids) and cold
            found.guesses[arm.title], judged = measure_prompts(session, target, cache, arm, guesses, config.seed)
            found.measurements.extend(judged)
        cold = prove_cold(session, target, canary_ids) and cold
        found.measurements.extend(measure_next_tokens(session, target, cache, arms[0], guesses))
        for arm in arms:
            cold = prove_cold(session, target, canary_ids) and cold
            found.measurements.extend(measure_recovery(session, target, cache, arm, guesses))
        for series in config.salt_series:
            cold = prove_cold(session, target, canary_ids) and cold
            found.measurements.extend(measure_salts(session, target, cache, series, workload, config.seed))
    finally:
        target.close()
    return replace(found, cold=cold)


def _value(measurements: Sequence[Measurement], title: str, row: str, name: str) -> float | int | None:
    """A cache's measured value; None where a server does not tell."""
    mine = (one.value for one in measurements if one.group.startswith(f"{title}:") and (one.row, one.name) == (row, name))
    return next(mine, None)


def _findings(config: Config, found: _Found, kind: str) -> list[str]:
    title, unit, lines = found.cache.title, found.cache.unit, []
    clock = "simulated time to first token" if kind == "sim" else "time to first token"
    for arm, answers in found.guesses.items():
        if len(answers.firsts) < FEWEST_TRIALS:
            continue
        area = _value(found.measurements, title, f"{arm}: {RIGHT}", "auc")
        right, control = (_shown([one.ttft_s for one in answers.answers[guess]]) for guess in (RIGHT, CONTROL))
        lines.append(f"{title}, {arm}: AUC {area:.2f}; {clock}: {right} for a right guess, {control} for a control")
        hits = _value(found.measurements, title, f"{arm}: {RIGHT}", "hits")
        if kind == "sim" and hits and area == 0.5:
            lines.append(
                f"{title}, {arm}: {int(hits):,} tokens found, and no time saved: reading the weights takes longer than computing "
                f"{config.prompt_tokens:,} tokens; prompt_tokens must be larger for a clock to see hits on this GPU"
            )
    lines.append(f"{title}: {_granularity(config, found)}")
    costs = []
    for series in config.salt_series:
        rate, blocks = (_value(found.measurements, title, series.row, name) for name in ("hit_rate", "blocks"))
        if rate is not None:
            kept = "" if blocks is None else f" and {blocks * unit * found.bytes_per_token / 2**20:,.1f} MiB"
            costs.append(f"{series.row} {rate:.1%}{kept}")
    what = "hit rate" if found.bytes_per_token is None else "hit rate and K/V kept"
    lines.append(f"{title}: {what} of {config.num_requests} requests: {'; '.join(costs) or 'the server does not tell'}")
    return lines + tell_doubts(doubt for answers in found.guesses.values() for doubt in answers.doubts)


def _granularity(config: Config, found: _Found) -> str:
    """What it took to read on behind a known prefix, one token after the other."""
    title, unit, candidates = found.cache.title, found.cache.unit, config.num_candidates
    num_read, sent = (_value(found.measurements, title, "one by one: no salts", name) for name in ("found", "sent"))
    read = f"{num_read} of {config.secret_tokens} secret tokens of {candidates} candidates fell to {sent:,} guesses"
    if num_read:
        return f"each right token is one more hit: {read}, one token after the other"
    silent = f"{read}, one token after the other: no right token answers alone"
    if unit == 1:
        return silent
    block = [one for one in found.measurements if one.row == f"next {unit} tokens right"]
    if not block or block[0].value <= _value(found.measurements, title, "next token wrong", "hits"):
        return silent
    shown = f" = {theory.guesses_to_extend(candidates, unit, unit):,}" if unit <= 32 else ""
    return f"only whole blocks answer: {read}; all {unit} of a block at once would take up to {candidates}^{unit}{shown} guesses"


def _shown(times_s: Sequence[float]) -> str:
    spread = Spread.of(times_s)
    return f"{spread.median * 1e3:,.1f} ms [{spread.minimum * 1e3:,.1f}–{spread.maximum * 1e3:,.1f}]"


def _conclusion(config: Config, found: Sequence[_Found], measurements: Sequence[Measurement]) -> str:
    num_read = {each.cache.title: _value(measurements, each.cache.title, "one by one: no salts", "found") for each in found}
    read = [title for title, count in num_read.items() if count == config.secret_tokens]
    how = f"and reads on token by token ({'; '.join(read)})" if read else "and has to guess whole blocks to read on"
    return (
        f"{hits_outcome(measurements, 'Every prediction was met.')} Without salts a neighbour learns which prompts were sent, {how}; "
        "the cached-token count of an API tells him without a clock. With a salt per user his right guess finds nothing, while "
        "the user's own repeats still do. The price is the shared prompt, computed and stored once for each salt: with "
        f"{config.num_users} users and {config.num_tenants} tenants, a salt per tenant pays it {config.num_tenants} times, "
        f"one per user {config.num_users} times, and one per request turns the cache off. In production: one salt for each trust "
        "domain, no wider and no narrower, derived from who asks and never from what the client sends; do not show cached-token "
        "counts across domains; and test it in pairs: the same salt hits, another one misses."
    )


def _times(found: _Found) -> dict[str, Any]:
    return {
        arm: {guess: [one.ttft_s for one in completions] for guess, completions in answers.answers.items()}
        for arm, answers in found.guesses.items()
    }


def _charts(found: Sequence[_Found]) -> tuple[Chart, ...]:
    first = found[0]
    samples = {f"{arm}: {guess}": times for arm, by_guess in _times(first).items() for guess, times in by_guess.items()}
    rates: dict[str, list[tuple[str, float]]] = {}
    stored: dict[str, list[tuple[str, float]]] = {}
    for each in found:
        for one in each.measurements:
            if one.name == "hit_rate":
                rates.setdefault(each.cache.title, []).append((one.row, 100 * one.value))
            if one.name == "blocks":
                stored.setdefault(each.cache.title, []).append((one.row, one.value * each.cache.unit))
    return (
        times_of(f"Was it sent? Time to the neighbour's first token, with and without salts, {first.cache.title}", samples),
        *([bars_of("What salts cost: hit rate by who shares one", rates, unit="%")] if rates else []),
        *([bars_of("… and tokens whose K/V are kept", stored)] if stored else []),
    )


LAB = Lab(
    number=10,
    name="isolation-and-timing",
    question="What can a neighbour learn, and what do salts cost?",
    config_type=Config,
    quick=Config(
        prompt_tokens=144, num_trials=7, known_tokens=16, num_candidates=2,
        system_tokens=48, num_requests=6, num_users=3, page_sizes=(1,),
    ),  # fmt: skip
    full=Config(
        prompt_tokens=512, num_trials=50, system_tokens=2000, user_tokens=200, num_requests=24, num_users=8, full=True
    ),
    run=run,
    targets=("engine", "sim", "server"),
    in_process_fields=("block_size", "page_sizes"),
)
