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
from labs.first_token import FirstTokens
from labs.outcome import hits_outcome
from labs.protocol import Lab, LabReport, LabSession, Measurement, Prediction
from labs.scenarios.staircase import Staircase, StaircaseResult, run_staircase
from labs.series import prove_cold
from labs.served_sizes import fit_sizes
from labs.targets.base import Completion, ServedCache, Target
from labs.witnesses import Doubt, counted_beside, disagreements, tell_doubts
from labs.workload import SharedPrefixWorkload, TokenIds, workload_digest

CHECKS = "staircase (every length over two blocks), and greedy first token"
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
    lengths: tuple[int, ...]  # of prompts that are sent twice
    staircase: Staircase | None = None

    def hits(self, prompt_tokens: int) -> Prediction:
        """What a repeat of so many tokens finds."""
        return self.cache.laws.predict(theory.repeat, prompt_tokens)

    def prompts(self, workload: SharedPrefixWorkload) -> list[TokenIds]:
        """Its own prompts; the first unrelated one is the staircase's."""
        return [ids[:length] for ids, length in zip(workload.unrelated_ids[1:], self.lengths)]

    @property
    def num_requests(self) -> int:
        return 2 * len(self.lengths) + (len(self.staircase.lengths) if self.staircase else 0)

    @property
    def num_blocks(self) -> int:
        tokens = sum(self.lengths) + (self.staircase.num_tokens if self.staircase else 0)
        return self.cache.blocks_for(tokens, self.num_requests)


@dataclass(frozen=True)
class ArmResult:
    """What one cache brought."""

    arm: Arm
    repeats: dict[int, int]  # tokens found, by prompt length; no entry where a server does not tell
    stairs: StaircaseResult | None
    measurements: tuple[Measurement, ...]
    findings: tuple[str, ...] = ()  # of a server: doubts, and why an output is not judged


def run(session: LabSession, config: Config) -> LabReport:
    """Send every prompt twice to every cache, then the staircase."""
    target = session.open_target(num_gpu_blocks=2)
    vocab_size, limit = target.info.vocab_size, target.info.max_model_len
    target.close()
    findings: list[str] = []
    if (served := session.open_target.served) is not None:
        config, findings = fit_sizes(session, config, {"prompt_tokens": _fitting_lengths(config, served, limit)})
        arms = [_served_arm(config, served_cache(served), limit)]
    else:
        arms = _arms(config, limit, config.full or session.open_target.kind == "sim")
    workload = _workload(config, arms, vocab_size)
    session.expect(sum(arm.num_requests for arm in arms))
    results, cold = [], True
    for arm in arms:
        target = session.open_target(**arm.cache.engine_fields, num_gpu_blocks=arm.num_blocks)
        try:
            # Beside a drafter a prompt hits from its third block on, and so does the canary.
            num_canaries = -(-(2 * arm.cache.unit + 1) // len(workload.canary_ids)) if arm.cache.has_drafter else 1
            cold = prove_cold(session, target, workload.canary_ids * num_canaries) and cold
            results.append(_run_arm(session, target, arm, workload))
        finally:
            target.close()
    stairs = {result.arm.cache.title: result.stairs.hits for result in results if result.stairs and result.stairs.hits}
    return LabReport(
        tuple(one for result in results for one in result.measurements),
        "cold" if cold else "uncontrolled",
        (*findings, *(_finding(result) for result in results), *(line for result in results for line in result.findings)),
        _conclusion(results),
        {
            "workload": workload_digest([arm.prompts(workload) for arm in arms]),
            "staircases": {title: list(hits.items()) for title, hits in stairs.items()},
        },
        (_chart(stairs),),
    )


def _fitting_lengths(config: Config, served: ServedCache, limit: int) -> tuple[int, ...]:
    """Prompt lengths that show a server's rule: the lab's own where one is of whole blocks, else those around 125 of them."""
    unit, front = served.unit_size, served.num_front
    if any((length + front) % unit == 0 for length in config.prompt_tokens) and max(config.prompt_tokens) < limit:
        return config.prompt_tokens
    num_blocks = max(1, min(NUM_BLOCKS, (limit + front - 2) // unit, max(2, MOST_TOKENS // unit)))
    whole = num_blocks * unit - front  # what the server puts in front is part of the first block
    return tuple(length for length in (whole - 1, whole, whole + 1) if 2 <= length < limit) or (max(2, limit - 1),)


def _served_arm(config: Config, cache: Cache, limit: int) -> Arm:
    """What a server's cache is asked. Raises ConfigError for a typed length that cannot fit."""
    _check_longest({"prompt_tokens": max(config.prompt_tokens)}, config, limit)
    staircase = Staircase(cache.unit)
    # Two blocks may not fit into its longest prompt.
    return Arm(cache, config.prompt_tokens, staircase if staircase.prompt_tokens < limit else None)


def _arms(config: Config, limit: int, full: bool) -> list[Arm]:
    """What the caches of this process are asked. Raises ConfigError for what cannot fit."""
    staircase, large = Staircase(config.block_size), config.large_block_size
    other_lengths = config.prompt_tokens if full else config.short_prompt_tokens
    large_lengths = (large, large + 1, 2 * large - 1, 4 * large) if full else ()
    longest = {
        "prompt_tokens": max(config.prompt_tokens),
        "short_prompt_tokens": max(other_lengths),
        "block_size": staircase.prompt_tokens,
        "large_block_size": max(large_lengths, default=0),
    }
    _check_longest(longest, config, limit)
    plain, *trees = caches(config.block_size, config.page_sizes)
    fields = {**plain.engine_fields, "use_eagle": True}
    drafter = replace(plain, title=f"{plain.title}, with a drafter", engine_fields=fields, has_drafter=True)
    arms = [
        Arm(plain, config.prompt_tokens, staircase),
        *(Arm(cache, other_lengths, staircase) for cache in (drafter, *trees)),
    ]
    return [*arms, Arm(hash_cache(large), large_lengths)] if large_lengths else arms


def _workload(config: Config, arms: Sequence[Arm], vocab_size: int) -> SharedPrefixWorkload:
    """Unrelated prompts: one for the staircase, then as many as any cache is asked."""
    longest = max(max(arm.lengths) for arm in arms)
    longest = max([longest, *(arm.staircase.prompt_tokens for arm in arms if arm.staircase is not None)])
    num_unrelated = 1 + max(len(arm.lengths) for arm in arms)
    return SharedPrefixWorkload.from_token_ids(vocab_size, config.seed, longest, 1, 1, num_unrelated)


def _check_longest(longest: dict[str, int], config: Config, max_model_len: int) -> None:
    """Every prompt, by the field that asks for it, must fit the model. Raises ConfigError."""
    for name, num_tokens in longest.items():
        if num_tokens >= max_model_len:  # a token is generated
            accepted = f"at most so many that prompts stay below {max_model_len} tokens, which this model allows"
            raise ConfigError(name, getattr(config, name), accepted)


def _run_arm(session: LabSession, target: Target, arm: Arm, workload: SharedPrefixWorkload) -> ArmResult:
    """Every prompt cold and warm, then the staircase; measurements are recorded as they come."""
    title, measurements = arm.cache.title, []
    repeats: dict[int, int] = {}
    doubts: list[Doubt] = []
    first_tokens = FirstTokens(session, arm.cache, workload.canary_ids)

    def record(found: Sequence[Measurement]) -> None:
        session.record(*found)
        measurements.extend(found)

    for prompt in arm.prompts(workload):
        row = f"repeat of {len(prompt):,} tokens"
        cold = send_counted(session, target, prompt, f"{title}: {len(prompt):,} tokens, cold", logprob_gaps=True)
        warm = send_counted(session, target, prompt, f"{title}: {len(prompt):,} tokens, warm")
        if warm.num_cached_tokens is not None:
            repeats[len(prompt)] = warm.num_cached_tokens
            record(_repeat_measurements(arm, prompt, row, warm, target))
        doubts += disagreements(f"{title}: {row}", (cold, warm))
        first_tokens.compare(target, prompt, cold, warm)
    stairs = None
    if arm.staircase is not None:
        stairs = run_staircase(session, target, arm.cache, arm.staircase, workload.unrelated_ids[0])
        record(stairs.measurements(CHECKS))
        doubts += stairs.doubts
    record(first_tokens.measurements(CHECKS))
    return ArmResult(arm, repeats, stairs, tuple(measurements), (*tell_doubts(doubts), *first_tokens.findings))


def _repeat_measurements(arm: Arm, prompt: TokenIds, row: str, warm: Completion, target: Target) -> list[Measurement]:
    unit, law = arm.cache.unit, arm.hits(len(prompt))
    in_blocks = Prediction(theory.full_blocks(int(law.value), unit), f"{law.law}, in blocks of {unit}")
    found = [
        Measurement("hits", "tokens", (warm.num_cached_tokens,), arm.cache.title, row, law, key=True),
        Measurement("blocks", "blocks", (warm.num_cached_tokens // unit,), arm.cache.title, row, in_blocks),
        *counted_beside(arm.cache.title, row, (warm,), law),
    ]
    if arm.cache.is_hash and (names := target.block_hashes(prompt)):
        full = Prediction(*theory.predict(theory.full_blocks, len(prompt), unit))
        found.append(Measurement("full_blocks", "blocks", (len(names),), arm.cache.title, row, full))
    return found


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
    if result.stairs is not None and result.stairs.rule:
        parts.append(result.stairs.rule)
    return f"{arm.cache.title}: {'; '.join(parts) or 'no prompt of whole blocks among these'}"


def _of_one_token(result: ArmResult) -> str:
    """Blocks or pages of one token: no rounding hides what is lost."""
    arm, what = result.arm, "block" if result.arm.cache.is_hash else "page"
    if any(hits != arm.hits(length).value for length, hits in result.repeats.items()):
        return f"NOT what a {what} of one token would lose"
    lost = "its last token, and one more for the drafter" if arm.cache.has_drafter else "its last token alone"
    return f"a {what} of one token: a repeat loses {lost}, whatever its length"


def _in_blocks(length: int, hits: int, cache: Cache) -> str:
    unit, length = cache.unit, length + cache.num_front
    return f"{length:,} tokens find {hits // unit:,} of their {length // unit:,} full block(s), {hits / length:.1%} of the tokens"


def _one_more(result: ArmResult, length: int) -> str:
    """What one token more shows: measured if it was sent."""
    cache = result.arm.cache
    if length in result.repeats:
        return _in_blocks(length, result.repeats[length], cache)
    return f"by the law {_in_blocks(length, int(result.arm.hits(length).value), cache)}"


def _chart(stairs: dict[str, dict[int, int]]) -> Chart:
    """Tokens found by prompt length, a line a cache."""
    series = tuple(
        ChartSeries(title, points=tuple((float(length), float(found)) for length, found in hits.items()))
        for title, hits in stairs.items()
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
