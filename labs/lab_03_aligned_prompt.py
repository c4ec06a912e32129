"""Lab 03: why does a perfectly cached prompt report 124/125?

Background. A request's first output token is chosen from the logits of its last prompt token, and logits are not cached: only
keys and values are. So at least the last token is computed again, however warm the cache. The hash cache finds whole blocks
or nothing, so the last token takes its block along: a prompt of exactly n blocks finds n − 1. People meet this as a hit rate
that never reaches 100 %, or, with blocks of 1,024, as prompts of 1,024 tokens that find nothing while 1,025 find nearly all.

Predicted and measured, for each cache, in tokens and in blocks (B = block or page size, L = prompt tokens):

    repeat of L tokens       B·⌊(L−1)/B⌋; a page of one token loses that token alone: L−1
    with a drafter (EAGLE)   one block less again, max(0, ⌊(L−1)/B⌋−1)·B: it needs the last matched block's hidden states
    blocks of 1,024          the same law, coarser: L = B finds 0, B+1 finds B, 2B−1 finds B, 4B finds 3B
    staircase                every L over two blocks, as beginnings of one cached prompt: such a beginning finds what its own
                             repeat would find, because everything it consists of is there
    greedy first token       the same cold and warm, near ties apart (not on sim, whose tokens do not depend on K/V)

How to read it. `hits` are tokens that the repeat found, `blocks` the same in blocks, `full_blocks` how many blocks the prompt
fills. 124 of 125 is expected, not a fault: L + 1 shows all blocks. The staircase tells the last-token rule from the drafter's
tax: of prompts longer than a block the rule computes between 1 and B tokens again, the drafter between B + 1 and 2B, at every
such length. This lab counts; it shows no times.

The drafter stands beside the hash cache only, since the law is vLLM's. On a real model the drafter and the radix caches are
asked shorter prompts and the blocks of 1,024 are left out, to spare time; `--full`, and the simulated target, have all.

On a server its one cache is asked, and the lengths are those around 125 of its own blocks or pages (as many as fit), unless
2,000 tokens are whole blocks already. Its drafter, if it has one, is part of the law. Replies and the server's counters are
two witnesses: `counted` is what the counters say of the same repeats. `full_blocks` needs the blocks' names, which no server
tells.

Sources: vLLM 0.32.0, v1/core/kv_cache_manager.py and v1/core/single_type_kv_cache_manager.py; SGLang 0.5.23,
srt/managers/schedule_batch.py; labs/theory.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

from engine.errors import ConfigError
from labs import theory
from labs.caches import Cache, caches, hash_cache, served_cache
from labs.chart import Chart, ChartSeries
from labs.counted_request import send_counted
from labs.field_check import check_numbers
from labs.outcome import hits_outcome
from labs.output_check import check_outputs, compare_cold_and_warm, judge_on_server, num_unexplained, output_law
from labs.protocol import Lab, LabReport, LabSession, Measurement, Prediction
from labs.series import prove_cold
from labs.served_sizes import fit_sizes
from labs.targets.base import Completion, ServedCache, Target
from labs.witnesses import Doubt, counted_beside, disagreements, tell_doubts
from labs.workload import SharedPrefixWorkload, TokenIds, workload_digest

NOT_JUDGED = "the server does not tell the ids it generated or how close the two best tokens were, or the repeat found nothing"
CHECKS = "staircase (every length over two blocks), and greedy first token"
NUM_THINNED = 32  # lengths a block, when it is larger
NUM_BLOCKS = 125  # of a prompt of whole blocks, on a server
MOST_TOKENS = 8_192  # of it: prompts of more take a small server minutes


@dataclass(frozen=True)
class Config:
    """Lengths and blocks, in tokens."""

    prompt_tokens: tuple[int, ...] = (1_999, 2_000, 2_001, 2_200)  # each sent twice
    short_prompt_tokens: tuple[int, ...] = (255, 256, 257, 320)  # on a real model, for all but the hash cache
    block_size: int = 16  # of the hash cache, and of the staircase
    page_sizes: tuple[int, ...] = (1, 16)  # of the radix caches
    large_block_size: int = 1_024  # of a second hash cache, asked with lengths around its multiples
    full: bool = False  # the long prompts and the large blocks everywhere, on a real model too
    seed: int = 0

    def __post_init__(self) -> None:
        least = dict.fromkeys(("prompt_tokens", "short_prompt_tokens", "large_block_size"), 2)
        check_numbers(self, least, {"large_block_size": 65_536})


@dataclass(frozen=True)
class Arm:
    """One cache, and what it is asked."""

    cache: Cache
    prompts: tuple[TokenIds, ...]  # each sent twice
    stairs: tuple[TokenIds, ...] = ()  # beginnings of the prompt that follows
    stairs_prompt: TokenIds = ()

    @property
    def has_drafter(self) -> bool:
        return self.cache.has_drafter

    def hits(self, prompt_tokens: int) -> Prediction:
        """What a repeat of so many tokens finds."""
        return self.cache.laws.predict(theory.repeat, prompt_tokens)

    @property
    def num_requests(self) -> int:
        return 2 * len(self.prompts) + len(self.stairs)

    @property
    def num_blocks(self) -> int:
        tokens = sum(map(len, self.prompts)) + len(self.stairs_prompt) + sum(map(len, self.stairs))
        return self.cache.blocks_for(tokens, self.num_requests)


@dataclass(frozen=True)
class ArmResult:
    """Tokens found, by prompt length; no entry where a server does not tell."""

    arm: Arm
    repeats: dict[int, int]
    stairs: dict[int, int]
    measurements: tuple[Measurement, ...]
    findings: tuple[str, ...] = ()  # of a server: doubts, and why an output is not judged

    @property
    def computed_again(self) -> tuple[int, int] | None:
        """Fewest and most tokens that a beginning longer than a block computed again; None without a staircase."""
        front = self.arm.cache.num_front
        computed = [length + front - hits for length, hits in self.stairs.items() if length + front > self.arm.cache.unit]
        return (min(computed), max(computed)) if computed else None


def run(session: LabSession, config: Config) -> LabReport:
    """Send every prompt twice to every cache, then the staircase."""
    target = session.open_target(num_gpu_blocks=2)
    vocab_size, limit = target.info.vocab_size, target.info.max_model_len
    target.close()
    full = config.full or session.open_target.kind == "sim"
    findings: list[str] = []
    if (served := session.open_target.served) is not None:
        config, findings = fit_sizes(session, config, {"prompt_tokens": _fitting_lengths(config, served, limit)})
        arms, canary_ids = _served_arms(config, served_cache(served), vocab_size, limit)
    else:
        arms, canary_ids = _arms(config, vocab_size, limit, full)
    session.expect(sum(arm.num_requests for arm in arms))
    results, cold = [], True
    for arm in arms:
        target = session.open_target(**arm.cache.engine_fields, num_gpu_blocks=arm.num_blocks)
        try:
            # Beside a drafter a prompt hits from its third block on, and so does the canary.
            canary = canary_ids * (-(-(2 * arm.cache.unit + 1) // len(canary_ids)) if arm.has_drafter else 1)
            cold = prove_cold(session, target, canary) and cold
            results.append(_run_arm(session, target, arm, canary_ids))
        finally:
            target.close()
    return LabReport(
        tuple(one for result in results for one in result.measurements),
        "cold" if cold else "uncontrolled",
        (*findings, *(_finding(result) for result in results), *(line for result in results for line in result.findings)),
        _conclusion(results),
        {
            "workload": workload_digest([arm.prompts for arm in arms]),
            "staircases": {result.arm.cache.title: list(result.stairs.items()) for result in results if result.stairs},
        },
        (_chart(results),),
    )


def _fitting_lengths(config: Config, served: ServedCache, limit: int) -> tuple[int, ...]:
    """Prompt lengths that show a server's rule: the lab's own where one is of whole blocks, else those around 125 of them."""
    unit, front = served.unit_size, served.num_front
    if any((length + front) % unit == 0 for length in config.prompt_tokens) and max(config.prompt_tokens) < limit:
        return config.prompt_tokens
    num_blocks = max(1, min(NUM_BLOCKS, (limit + front - 2) // unit, max(2, MOST_TOKENS // unit)))
    whole = num_blocks * unit - front  # what the server puts in front is part of the first block
    return tuple(length for length in (whole - 1, whole, whole + 1) if 2 <= length < limit) or (max(2, limit - 1),)


def _served_arms(config: Config, cache: Cache, vocab_size: int, limit: int) -> tuple[list[Arm], TokenIds]:
    """What a server's cache is asked. Raises ConfigError for a typed length that cannot fit."""
    _check_longest({"prompt_tokens": max(config.prompt_tokens)}, config, limit)
    stairs_tokens = 2 * cache.unit + 1
    count, longest = len(config.prompt_tokens), max(*config.prompt_tokens, stairs_tokens)
    workload = SharedPrefixWorkload.from_token_ids(vocab_size, config.seed, longest, 1, 1, num_unrelated=count + 1)
    stairs_ids, *own = workload.unrelated_ids
    prompts = tuple(ids[:length] for ids, length in zip(own, config.prompt_tokens))
    if stairs_tokens >= limit:  # two blocks do not fit into its longest prompt
        return [Arm(cache, prompts)], workload.canary_ids
    stairs = tuple(stairs_ids[:length] for length in _stair_lengths(cache.unit))
    return [Arm(cache, prompts, stairs, stairs_ids[:stairs_tokens])], workload.canary_ids


def _check_longest(longest: dict[str, int], config: Config, max_model_len: int) -> None:
    """Every prompt, by the field that asks for it, must fit the model. Raises ConfigError."""
    for name, num_tokens in longest.items():
        if num_tokens >= max_model_len:  # a token is generated
            accepted = f"at most so many that prompts stay below {max_model_len} tokens, which this model allows"
            raise ConfigError(name, getattr(config, name), accepted)


def _arms(config: Config, vocab_size: int, max_model_len: int, full: bool) -> tuple[list[Arm], TokenIds]:
    """What each cache is asked, and a canary that begins like none of it. Raises ConfigError for what cannot fit."""
    unit, large = config.block_size, config.large_block_size
    large_lengths = (large, large + 1, 2 * large - 1, 4 * large) if full else ()
    other_lengths = config.prompt_tokens if full else config.short_prompt_tokens
    longest = {
        "prompt_tokens": max(config.prompt_tokens),
        "short_prompt_tokens": max(other_lengths),
        "block_size": 2 * unit + 1,
        "large_block_size": max(large_lengths, default=0),
    }
    _check_longest(longest, config, max_model_len)
    count = max(map(len, (config.prompt_tokens, other_lengths, large_lengths)))
    workload = SharedPrefixWorkload.from_token_ids(vocab_size, config.seed, max(longest.values()), 1, 1, num_unrelated=count + 1)
    stairs_ids, *own = workload.unrelated_ids

    def prompts(lengths: Sequence[int]) -> tuple[TokenIds, ...]:
        return tuple(ids[:length] for ids, length in zip(own, lengths))

    stairs_prompt = stairs_ids[: 2 * unit + 1]
    stairs = tuple(stairs_prompt[:length] for length in _stair_lengths(unit))
    plain, *others = caches(unit, config.page_sizes)
    fields = {**plain.engine_fields, "use_eagle": True}
    drafter = replace(plain, title=f"{plain.title}, with a drafter", engine_fields=fields, has_drafter=True)
    arms = [
        Arm(plain, prompts(config.prompt_tokens), stairs, stairs_prompt),
        Arm(drafter, prompts(other_lengths), stairs, stairs_prompt),
        *(Arm(cache, prompts(other_lengths), stairs, stairs_prompt) for cache in others),
    ]
    if large_lengths:
        arms.append(Arm(hash_cache(large), prompts(large_lengths)))
    return arms, workload.canary_ids


def _stair_lengths(unit: int) -> list[int]:
    """Every length from 2 to 2·unit + 1; of large blocks some, with both steps among them."""
    step = max(1, unit // NUM_THINNED)
    return sorted({*range(2, 2 * unit + 2, step), *(length for length in (unit, unit + 1, 2 * unit, 2 * unit + 1) if length > 1)})


def _run_arm(session: LabSession, target: Target, arm: Arm, canary_ids: TokenIds) -> ArmResult:
    title, measurements, others = arm.cache.title, [], []
    repeats: dict[int, int] = {}
    doubts: list[Doubt] = []

    def record(*found: Measurement) -> None:
        session.record(*found)
        measurements.extend(found)

    for prompt in arm.prompts:
        row = f"repeat of {len(prompt):,} tokens"
        cold = send_counted(session, target, prompt, f"{title}: {len(prompt):,} tokens, cold", logprob_gaps=True)
        warm = send_counted(session, target, prompt, f"{title}: {len(prompt):,} tokens, warm")
        if warm.num_cached_tokens is not None:
            repeats[len(prompt)] = warm.num_cached_tokens
            record(*_repeat_measurements(arm, prompt, row, warm, target))
        doubts += disagreements(f"{title}: {row}", (cold, warm))
        others.append(_other_token(session, target, arm, prompt, canary_ids, cold, warm))
    stairs: dict[int, int] = {}
    if arm.stairs:
        target.complete(arm.stairs_prompt)
        steps = [send_counted(session, target, prompt, f"{title}: staircase") for prompt in arm.stairs]
        found = {len(prompt): step.num_cached_tokens for prompt, step in zip(arm.stairs, steps)}
        stairs = {length: hits for length, hits in found.items() if hits is not None}
        record(*(_stairs_measurements(arm, stairs) if stairs else ()))
        doubts += disagreements(f"{title}: staircase", steps)
    findings = tell_doubts(doubts)
    judged = [other for other in others if other is not None]
    if len(judged) < len(others):
        findings.append(f"{title}: {len(others) - len(judged)} of {len(others)} first tokens are not judged: {NOT_JUDGED}")
    if judged:
        law = output_law(session.open_target.kind)
        note = "other_token: prompts whose first output token is not the same cold and warm, near ties apart"
        if law is None:
            note += "; simulated tokens do not depend on K/V, so it cannot fail here"
        record(Measurement("other_token", "prompts", (sum(judged),), CHECKS, title, law, note=note))
    return ArmResult(arm, repeats, stairs, tuple(measurements), tuple(findings))


def _repeat_measurements(arm: Arm, prompt: TokenIds, row: str, warm: Completion, target: Target) -> list[Measurement]:
    unit, law = arm.cache.unit, arm.hits(len(prompt))
    in_blocks = Prediction(theory.full_blocks(int(law.value), unit), f"{law.law}, in blocks of {unit}")
    found = [
        Measurement("hits", "tokens", (warm.num_cached_tokens,), arm.cache.title, row, law, key=True),
        Measurement("blocks", "blocks", (warm.num_cached_tokens // unit,), arm.cache.title, row, in_blocks),
    ]
    names = target.block_hashes(prompt)
    found += counted_beside(arm.cache.title, row, (warm,), law)
    if arm.cache.is_hash and names:
        full = Prediction(*theory.predict(theory.full_blocks, len(prompt), unit))
        found.append(Measurement("full_blocks", "blocks", (len(names),), arm.cache.title, row, full))
    return found


def _other_token(
    session: LabSession, target: Target, arm: Arm, prompt: TokenIds, canary_ids: TokenIds, cold: Completion, warm: Completion
) -> int | None:
    """1 when the warm output begins with another token than the cold one, near ties apart; else 0; None: not to be judged."""
    if not cold.output_token_ids or not warm.output_token_ids:
        return None
    check = check_outputs(cold, cold, warm)
    if session.open_target.served is not None:
        return judge_on_server(replace(check, was_warm=warm.num_cached_tokens != 0))[0]
    proof = None
    if not check.equal and target.info.dtype != "float32":
        session.expect(3)
        exact = session.open_target(**arm.cache.engine_fields, dtype="float32")
        try:
            proof, _ = compare_cold_and_warm(session, exact, f"{arm.cache.title}, float32", prompt, canary_ids, 1)
        finally:
            exact.close()
    return num_unexplained(check, target.info.dtype, proof)


def _stairs_measurements(arm: Arm, stairs: dict[int, int]) -> list[Measurement]:
    laws = {length: arm.hits(length) for length in stairs}
    as_predicted = sum(hits == laws[length].value for length, hits in stairs.items())
    lengths = Prediction(len(stairs), f"each of {len(stairs)} lengths finds what its law says")
    total = Prediction(sum(law.value for law in laws.values()), f"the sum over L = {min(stairs)}…{max(stairs)}")
    return [
        Measurement("lengths", "prompts", (as_predicted,), CHECKS, arm.cache.title, lengths),
        Measurement("hits", "tokens", (sum(stairs.values()),), CHECKS, arm.cache.title, total),
    ]


def _finding(result: ArmResult) -> str:
    """The repeats of whole blocks, and what the staircase says about the rule."""
    arm, unit, parts = result.arm, result.arm.cache.unit, []
    for length, hits in result.repeats.items():
        if unit > 1 and (length + arm.cache.num_front) % unit == 0:
            due = int(arm.hits(length).value)
            verdict = "expected, not a fault" if hits == due else f"NOT as predicted, {due // unit:,} block(s)"
            parts.append(f"{_in_blocks(length, hits, arm.cache)}: {verdict}; {_one_more(result, length + 1)}")
    if unit == 1:
        parts.append(_of_one_token(result))
    if result.computed_again is not None:
        parts.append(_rule(arm, *result.computed_again))
    return f"{arm.cache.title}: {'; '.join(parts) or 'no prompt of whole blocks among these'}"


def _of_one_token(result: ArmResult) -> str:
    """Blocks or pages of one token: no rounding hides what is lost."""
    arm, what = result.arm, "block" if result.arm.cache.is_hash else "page"
    if any(hits != arm.hits(length).value for length, hits in result.repeats.items()):
        return f"NOT what a {what} of one token would lose"
    lost = "its last token, and one more for the drafter" if arm.has_drafter else "its last token alone"
    return f"a {what} of one token: a repeat loses {lost}, whatever its length"


def _rule(arm: Arm, fewest: int, most: int) -> str:
    """Which rule explains how many tokens of a staircase were computed again, and whether it is this cache's."""
    unit, what = arm.cache.unit, "block" if arm.cache.is_hash else "page"
    rule, drafter = (1, unit), (unit + 1, 2 * unit)
    reading = {
        rule: "the last-token rule and nothing else",
        drafter: f"the last-token rule, and a drafter's {what} more at every such length",
    }.get((fewest, most), "NOT what the last-token rule or a drafter would do")
    if (fewest, most) in (rule, drafter) and (fewest, most) != (drafter if arm.has_drafter else rule):
        reading += ", NOT what this cache should do"
    span = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    return f"prompts longer than a {what} compute {span} of their tokens again: {reading}"


def _in_blocks(length: int, hits: int, cache: Cache) -> str:
    unit, length = cache.unit, length + cache.num_front
    return f"{length:,} tokens find {hits // unit:,} of their {length // unit:,} full block(s), {hits / length:.1%} of the tokens"


def _one_more(result: ArmResult, length: int) -> str:
    """What one token more shows: measured if it was sent."""
    cache = result.arm.cache
    if length in result.repeats:
        return _in_blocks(length, result.repeats[length], cache)
    return f"by the law {_in_blocks(length, int(result.arm.hits(length).value), cache)}"


def _chart(results: Sequence[ArmResult]) -> Chart:
    series = tuple(
        ChartSeries(result.arm.cache.title, points=tuple((float(length), float(hits)) for length, hits in result.stairs.items()))
        for result in results
        if result.stairs
    )
    title = "A repeat finds whole blocks and never its last token"
    return Chart("lines", title, series, x_label="prompt length L, tokens", y_label="hits of a repeat, tokens")


def _conclusion(results: Sequence[ArmResult]) -> str:
    outcome = hits_outcome([one for result in results for one in result.measurements], "Every repeat found what the law says.")
    return (
        f"{outcome} A warm prompt computes at least one token, because the logits of its last token choose the next one and "
        "only keys and values are kept; a cache of blocks computes that token's whole block. So a prompt of exactly n blocks "
        "reports n − 1 of n: expected, not a fault, and one token more shows all n. With blocks of 16 that is under one per "
        "cent of a long prompt; with blocks of a thousand it is the difference between no hits and nearly all, so look at the "
        "block size before you look for a bug. A speculative drafter gives up one block more of every prompt longer than a "
        "block, aligned or not: a staircase over two blocks tells the two apart. Do not pad prompts to whole blocks."
    )


LAB = Lab(
    number=3,
    name="aligned-prompt",
    question="Why does a perfectly cached prompt report 124/125?",
    config_type=Config,
    quick=Config(prompt_tokens=(63, 64, 65, 80), short_prompt_tokens=(63, 64, 65), large_block_size=64),
    full=Config(full=True),
    run=run,
    targets=("engine", "sim", "server"),
    in_process_fields=("short_prompt_tokens", "block_size", "page_sizes", "large_block_size", "full"),
)
