"""Theory: the laws of prefix caching, as functions that return the number a lab should measure.

A lab asks `predict(law, …)` before it runs anything and gets the value with the law's formula, the numbers filled
in:

    >>> predict(repeat, prompt_tokens=96, unit=16)
    Predicted(value=80, law='16·⌊(96 − 1)/16⌋ = 80')

`Prediction(*predict(…))` is then the lab's prediction (labs/protocol.py).

`unit` is the granularity of a hit in tokens: the hash cache's block size (16), or the radix cache's page size (1
or 16). Both caches follow the same laws. Costs come from engine/cost_model.py; nothing is computed twice.

Sources: for the hash cache vLLM 0.32.0, v1/core/kv_cache_manager.py and v1/core/block_pool.py; for the radix cache
SGLang, mem_cache/radix_cache.py (Zheng et al. 2023, arXiv:2312.07104).
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Callable, Iterable, NamedTuple, Sequence

from engine import cost_model
from engine.cost_model import Gpu, ModelShape


class Predicted(NamedTuple):
    """A law's value and its formula with the numbers filled in; the fields of a Prediction, in its order."""

    value: float | int
    law: str


def law(formula: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function as a law; `formula` shows its parameters as {name} or {name:format}."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.formula = formula  # type: ignore[attr-defined]
        return function

    return mark


def predict(law_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Predicted:
    """The value of a law and the text that explains it. Raises TypeError for a function that is not a law."""
    formula = getattr(law_function, "formula", None)
    if formula is None:
        raise TypeError(f"{law_function.__name__} is not marked as a law")
    bound = inspect.signature(law_function).bind(*args, **kwargs)
    bound.apply_defaults()
    value = law_function(*args, **kwargs)
    shown = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return Predicted(value, f"{formula.format(**bound.arguments)} = {shown}")


# Blocks and matches


@law("⌊{num_tokens:,}/{unit}⌋")
def full_blocks(num_tokens: int, unit: int) -> int:
    """Blocks a prompt fills, so that they get a name: ⌊L/B⌋. The L mod B tokens after them stay unnamed."""
    _check(num_tokens >= 0, "num_tokens", num_tokens, "a whole number from 0")
    _check(unit >= 1, "unit", unit, "a whole number from 1")
    return num_tokens // unit


@law("{num_tokens:,} mod {unit}")
def unnamed_tail(num_tokens: int, unit: int) -> int:
    """Tokens behind the last full block: L mod B. They have no name, so nobody can find them."""
    return num_tokens - unit * full_blocks(num_tokens, unit)


@law("⌊({num_known:,} + {num_appended:,})/{unit}⌋ − ⌊{num_known:,}/{unit}⌋")
def newly_full_blocks(num_known: int, num_appended: int, unit: int) -> int:
    """Blocks that k further tokens fill, and that alone are hashed: ⌊(L + k)/B⌋ − ⌊L/B⌋."""
    _check(num_appended >= 0, "num_appended", num_appended, "a whole number from 0")
    return full_blocks(num_known + num_appended, unit) - full_blocks(num_known, unit)


@law("each of {num_recorded:,}")
def reproduced_hashes(num_recorded: int) -> int:
    """Recorded hashes that come out again: all. A hash is a function of its input, and the input was recorded too."""
    return num_recorded


@law("{starts_alike}·⌊{num_tokens:,}/{unit}⌋")
def names_in_common(num_tokens: int, unit: int, starts_alike: int) -> int:
    """Blocks that two processes name alike: all ⌊L/B⌋ if their chains start alike (1), none if not (0).

    There is nothing between: every name contains the start.
    """
    _check(starts_alike in (0, 1), "starts_alike", starts_alike, "0 or 1")
    return starts_alike * full_blocks(num_tokens, unit)


@law("{unit}·⌊min({match_tokens:,}, {prompt_tokens:,} − 1)/{unit}⌋")
def reuse(match_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Tokens a request takes from the cache when its first m tokens are there: unit·⌊min(m, L − 1)/unit⌋.

    Whole blocks only, and never the last token: its logits choose the next one, so it is computed again.
    """
    _check(match_tokens >= 0, "match_tokens", match_tokens, "a whole number from 0")
    _check(prompt_tokens >= 1, "prompt_tokens", prompt_tokens, "a whole number from 1")
    return unit * full_blocks(min(match_tokens, prompt_tokens - 1), unit)


@law("{unit}·⌊({prompt_tokens:,} − 1)/{unit}⌋")
def repeat(prompt_tokens: int, unit: int) -> int:
    """Tokens an exact repeat takes from the cache: unit·⌊(L − 1)/unit⌋.

    When L is a multiple of the unit, the last whole block is lost to the last token: L = 2,000 in blocks of 16
    reuses 124 of 125. With unit 1 it is L − 1.
    """
    return reuse(prompt_tokens, prompt_tokens, unit)


@law("{match_tokens:,} mod {unit}")
def rounding_loss(match_tokens: int, unit: int) -> int:
    """Tokens of a match behind its last whole block: m mod B. They are the same, and computed again."""
    _check(match_tokens >= 0, "match_tokens", match_tokens, "a whole number from 0")
    return match_tokens - unit * full_blocks(match_tokens, unit)


@law("{unit}·⌊{match_tokens:,}/{unit}⌋ − {unit}·⌊min({match_tokens:,}, {prompt_tokens:,} − 1)/{unit}⌋")
def last_token_loss(match_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Tokens in whole matched blocks that are lost because the prompt's last token is always computed: 0 or a block.

    A block when the match is the whole prompt and the prompt ends with a block; with unit 1 the last token alone.
    """
    return unit * full_blocks(match_tokens, unit) - reuse(match_tokens, prompt_tokens, unit)


@law("{unit}·max(⌊{match_tokens:,}/{unit}⌋ + 1, {num_dropped} + 1)")
def next_longer_match(match_tokens: int, unit: int, num_dropped: int = 0) -> int:
    """The shortest match that reuses more than one of m tokens does: it ends with the next whole block.

    num_dropped  blocks that are matched and computed again all the same: 1 beside a speculative drafter
    """
    return unit * max(full_blocks(match_tokens, unit) + 1, num_dropped + 1)


@law("{unit}·max(⌊({prompt_tokens:,} − 1)/{unit}⌋ + 1, {num_dropped} + 1) + 1")
def next_longer_repeat(prompt_tokens: int, unit: int, num_dropped: int = 0) -> int:
    """The shortest prompt whose repeat reuses more than one of L tokens: a token longer than its next whole block."""
    _check(prompt_tokens >= 1, "prompt_tokens", prompt_tokens, "a whole number from 1")
    return next_longer_match(prompt_tokens - 1, unit, num_dropped) + 1


@law("({unit} − 1)/2")
def mean_rounding_loss(unit: int) -> float:
    """Tokens a match loses to whole blocks, m mod B, averaged over all remainders: (B − 1)/2."""
    _check(unit >= 1, "unit", unit, "a whole number from 1")
    return (unit - 1) / 2


@law("max(0, ⌊({prompt_tokens:,} − 1)/{unit}⌋ − 1)·{unit}")
def drafter_hits(prompt_tokens: int, unit: int) -> int:
    """Tokens an exact repeat reuses beside a speculative drafter (EAGLE, MTP): max(0, ⌊(L − 1)/U⌋ − 1)·U.

    The drafter needs the hidden state of the last matched block, so one block more is computed again.
    """
    return max(0, repeat(prompt_tokens, unit) - unit)


@law("max(0, ⌊min({match_tokens:,}, {prompt_tokens:,} − 1)/{unit}⌋ − 1)·{unit}")
def drafter_reuse(match_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Tokens of a match of m that are left beside a drafter: max(0, ⌊min(m, L − 1)/U⌋ − 1)·U."""
    return max(0, reuse(match_tokens, prompt_tokens, unit) - unit)


@law("min({unit}, {unit}·⌊min({match_tokens:,}, {prompt_tokens:,} − 1)/{unit}⌋)")
def drafter_loss(match_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Tokens of a match that are computed again for a speculative drafter: its last whole block, if it has one."""
    return min(unit, reuse(match_tokens, prompt_tokens, unit))


@law(
    "{unit}·⌊min({match_tokens:,} + {equal_after:,}, {prompt_tokens:,} − 1)/{unit}⌋"
    " − {unit}·⌊min({match_tokens:,}, {prompt_tokens:,} − 1)/{unit}⌋"
)
def moved_behind_gain(match_tokens: int, equal_after: int, prompt_tokens: int, unit: int) -> int:
    """Tokens more that a request reuses when what ends its match moves behind the e tokens that agree after it.

    The match grows from m to m + e: unit·⌊min(m + e, L − 1)/unit⌋ − unit·⌊min(m, L − 1)/unit⌋.
    """
    _check(equal_after >= 0, "equal_after", equal_after, "a whole number from 0")
    return reuse(match_tokens + equal_after, prompt_tokens, unit) - reuse(match_tokens, prompt_tokens, unit)


@law("{prompt_tokens:,} + {output_tokens:,} − 1")
def offered_by_turn(prompt_tokens: int, output_tokens: int) -> int:
    """Computed tokens one turn leaves for the next: L + k − 1. The last sampled token was never fed back: no K/V."""
    _check(prompt_tokens >= 1, "prompt_tokens", prompt_tokens, "a whole number from 1")
    _check(output_tokens >= 1, "output_tokens", output_tokens, "a whole number from 1")
    return prompt_tokens + output_tokens - 1


@law("{unit}·⌊({prompt_tokens:,} + {output_tokens:,} − 1)/{unit}⌋")
def next_turn_hits(prompt_tokens: int, output_tokens: int, unit: int) -> int:
    """Hits of a turn that repeats the turn before it, L prompt and k output tokens by their ids, and goes on.

    unit·⌊(L + k − 1)/unit⌋: of the L + k repeated tokens the last has no K/V.
    """
    return unit * full_blocks(offered_by_turn(prompt_tokens, output_tokens), unit)


# Series of requests, one after the other, from an empty cache, with room for all of them


@law("{num_requests}·{prompt_tokens:,}")
def queries(num_requests: int, prompt_tokens: int) -> int:
    """Tokens looked up by N requests: N·L, the whole prompt of each, although its last token can never hit."""
    _check(num_requests >= 0, "num_requests", num_requests, "a whole number from 0")
    return num_requests * prompt_tokens


@law("({num_requests} − 1)·{unit}·⌊min({shared_tokens:,}, {prompt_tokens:,} − 1)/{unit}⌋")
def shared_prefix_hits(num_requests: int, shared_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Hits of N requests of L tokens that share the first P and differ at once after them.

    (N − 1)·unit·⌊min(P, L − 1)/unit⌋: the first pays, each later one reuses. It holds as well for N requests under
    one salt of their own: the salt's first request pays.
    """
    _check(num_requests >= 1, "num_requests", num_requests, "a whole number from 1")
    return (num_requests - 1) * reuse(shared_tokens, prompt_tokens, unit)


@law("({num_requests} − 1)·max(0, ⌊min({shared_tokens:,}, {prompt_tokens:,} − 1)/{unit}⌋ − 1)·{unit}")
def drafter_shared_prefix_hits(num_requests: int, shared_tokens: int, prompt_tokens: int, unit: int) -> int:
    """`shared_prefix_hits` beside a speculative drafter: each later request reuses a block less."""
    _check(num_requests >= 1, "num_requests", num_requests, "a whole number from 1")
    return (num_requests - 1) * drafter_reuse(shared_tokens, prompt_tokens, unit)


@law("{num_hits:,}/{num_queries:,}")
def hit_rate(num_hits: int, num_queries: int) -> float:
    """The share of looked-up tokens that was found, weighted by tokens, as the engine's counters give it."""
    _check(num_queries >= 1, "num_queries", num_queries, "a whole number from 1")
    return num_hits / num_queries


@law("({num_requests} − {num_groups})·{unit}·⌊min({shared_tokens:,}, {prompt_tokens:,} − 1)/{unit}⌋")
def grouped_prefix_hits(num_requests: int, num_groups: int, shared_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Hits of N requests of L tokens that share the first P, in G groups with a salt each.

    (N − G)·unit·⌊min(P, L − 1)/unit⌋: in each group the first pays. G = 1 without salts, G = N with one per request.
    """
    _check(1 <= num_groups <= num_requests, "num_groups", num_groups, f"a whole number from 1 to {num_requests}")
    return (num_requests - num_groups) * reuse(shared_tokens, prompt_tokens, unit)


@law(
    "{num_groups}·⌊{shared_tokens:,}/{unit}⌋ + {num_requests}·(⌊{prompt_tokens:,}/{unit}⌋ − ⌊{shared_tokens:,}/{unit}⌋)"
)
def grouped_prefix_blocks(num_requests: int, num_groups: int, shared_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Blocks that those requests leave in the cache: G·⌊P/unit⌋ shared ones, and ⌊L/unit⌋ − ⌊P/unit⌋ of each request.

    What is shared is stored once for each salt. A block that begins shared and ends differently is each request's own.
    """
    _check(1 <= num_groups <= num_requests, "num_groups", num_groups, f"a whole number from 1 to {num_requests}")
    num_shared = full_blocks(shared_tokens, unit)
    return num_groups * num_shared + num_requests * (full_blocks(prompt_tokens, unit) - num_shared)


@law("({num_requests} − 1)·{unit}·⌊0/{unit}⌋, another salt is another first block")
def fresh_salt_hits(num_requests: int, prompt_tokens: int, unit: int) -> int:
    """Hits of N requests with a salt each: 0. The salt enters the first block's name, and every later name by it."""
    return shared_prefix_hits(num_requests, 0, prompt_tokens, unit)


@law("({num_requests} − 1)·{unit}·⌊0/{unit}⌋, {num_prepended} prepended: the prompts differ at position 0")
def unique_prepend_hits(num_requests: int, num_prepended: int, prompt_tokens: int, unit: int) -> int:
    """Hits of N requests with k >= 1 tokens of their own before all they share: 0, whatever k mod unit.

    A match starts at position 0. A prepended token does not cost its block, it costs all of them; and a shift by
    whole blocks does not help, since each block's name (or tree path) contains everything before it.
    """
    _check(num_prepended >= 1, "num_prepended", num_prepended, "a whole number from 1")
    return shared_prefix_hits(num_requests, 0, prompt_tokens + num_prepended, unit)


@law(
    "({num_requests} − 1)·{unit}·⌊min({shared_tokens:,} + {num_extra}, {prompt_tokens:,} + {num_extra} − 1)/{unit}⌋"
)
def shared_extra_hits(num_requests: int, num_extra: int, shared_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Hits of N requests that all got the same k tokens, before the shared P or right after them.

    The shared part is then P + k tokens long: (N − 1)·unit·⌊min(P + k, L + k − 1)/unit⌋.
    """
    _check(num_extra >= 0, "num_extra", num_extra, "a whole number from 0")
    return shared_prefix_hits(num_requests, shared_tokens + num_extra, prompt_tokens + num_extra, unit)


@law("({num_requests} − 1)·{unit}·⌊min({shared_tokens:,}, {prompt_tokens:,} + {num_appended} − 1)/{unit}⌋")
def unique_append_hits(
    num_requests: int, num_appended: int, shared_tokens: int, prompt_tokens: int, unit: int
) -> int:
    """Hits of N requests with k tokens of their own right after the shared P: those of P alone, nothing is lost."""
    _check(num_appended >= 0, "num_appended", num_appended, "a whole number from 0")
    return shared_prefix_hits(num_requests, shared_tokens, prompt_tokens + num_appended, unit)


@law("({num_requests} − {same_step})·{unit}·⌊({prompt_tokens:,} − 1)/{unit}⌋")
def concurrent_repeat_hits(num_requests: int, same_step: int, prompt_tokens: int, unit: int) -> int:
    """Hits of N equal prompts sent at once, of which the first s must compute the prompt themselves.

    (N − s)·unit·⌊(L − 1)/unit⌋. Where blocks are published when slots are allocated (vLLM), s is 1: twins in the same
    step reuse already. Where they are published after the step (SGLang), s is `first_step_requests`.
    """
    _check(1 <= same_step <= num_requests, "same_step", same_step, f"a whole number from 1 to {num_requests}")
    return (num_requests - same_step) * repeat(prompt_tokens, unit)


@law("min({num_requests}, ⌈{token_budget:,}/{prompt_tokens:,}⌉, {max_num_seqs})")
def first_step_requests(num_requests: int, prompt_tokens: int, token_budget: int, max_num_seqs: int) -> int:
    """Requests that the first step admits: min(N, ⌈budget/L⌉, seats); the last may get only the rest of the budget."""
    return min(num_requests, -(-token_budget // prompt_tokens), max_num_seqs)


# What a lookup looks at, and what it leaves


@law("min(⌊{match_tokens:,}/{unit}⌋ + 1, ⌊({prompt_tokens:,} − 1)/{unit}⌋)")
def hash_probes(match_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Names the hash cache looks up for a prompt whose first m tokens are known: each found one, and the first that is not.

    min(⌊m/unit⌋ + 1, ⌊(L − 1)/unit⌋): none behind the cap of L − 1 tokens.
    """
    return min(full_blocks(match_tokens, unit) + 1, full_blocks(prompt_tokens - 1, unit))


@law("{num_nodes} + min(1, {unit}·⌊({prompt_tokens:,} − 1)/{unit}⌋ − {num_hits:,})")
def tree_probes(num_nodes: int, num_hits: int, prompt_tokens: int, unit: int) -> int:
    """Children the radix cache looks up for a prompt: one a node on its path, and one in vain if whole pages are left."""
    return num_nodes + min(1, repeat(prompt_tokens, unit) - num_hits)


@law("{keeps_copies}·{num_recomputed:,}/{unit}")
def duplicate_blocks(num_recomputed: int, unit: int, keeps_copies: int) -> int:
    """Blocks with content that another block has too: one for each block computed again although it was named.

    The hash cache keeps them (1), because block tables are append-only; a tree stores one copy and gives back ours (0).
    """
    _check(keeps_copies in (0, 1), "keeps_copies", keeps_copies, "0 or 1")
    return keeps_copies * num_recomputed // unit


# Pools too small for all: eviction and preemption. `num_usable` are the pool's blocks, without the null block.


@law(
    "{unit}·min(⌊({prompt_tokens:,} − 1)/{unit}⌋, max(0, {num_usable:,} − ⌈{prompt_tokens:,}/{unit}⌉"
    " − ({num_prompts} − 2)·⌊{prompt_tokens:,}/{unit}⌋))"
)
def turn_hits_tails_first(num_prompts: int, prompt_tokens: int, unit: int, num_usable: int) -> int:
    """Tokens each of n unrelated prompts, sent in turn, finds at its next turn in vLLM's order of eviction.

    The request at work holds ⌈L/B⌉ blocks. What it leaves keeps the n − 2 prompts used last, ⌊L/B⌋ blocks each, and then
    the first blocks of the prompt whose turn is next: its tail went first. So hits fade block by block as n·L outgrows the
    pool, over the length of one prompt.
    """
    _check(num_prompts >= 1, "num_prompts", num_prompts, "a whole number from 1")
    _check_fits(prompt_tokens, unit, num_usable)
    num_left = num_usable - -(-prompt_tokens // unit) - (num_prompts - 2) * full_blocks(prompt_tokens, unit)
    return unit * max(0, min(full_blocks(prompt_tokens - 1, unit), num_left))


@law(
    "{unit}·⌊({prompt_tokens:,} − 1)/{unit}⌋ if ⌈{prompt_tokens:,}/{unit}⌉ + ({num_prompts} − 1)·⌊{prompt_tokens:,}/{unit}⌋"
    " ≤ {num_usable:,}, else 0"
)
def turn_hits_whole_prompts(num_prompts: int, prompt_tokens: int, unit: int, num_usable: int) -> int:
    """Tokens each of n unrelated prompts, in turn, finds where a prompt is lost as a whole: all a repeat finds, or 0.

    Whole leaves of a tree die at once; and where a prompt's first block is freed first it is evicted first, and the blocks
    behind it can no longer be reached. A tree's page that a hit computes anew (unit divides L) needs a page of its own:
    with none to spare (n·L equals the pool) another leaf dies for it, and this law does not tell.
    """
    _check(num_prompts >= 1, "num_prompts", num_prompts, "a whole number from 1")
    _check_fits(prompt_tokens, unit, num_usable)
    num_wanted = -(-prompt_tokens // unit) + (num_prompts - 1) * full_blocks(prompt_tokens, unit)
    return repeat(prompt_tokens, unit) if num_wanted <= num_usable else 0


@law("max(0, {num_requests} − {num_prompts})·{hits_per_turn:,}")
def hits_in_turn(num_requests: int, num_prompts: int, hits_per_turn: int) -> int:
    """Hits of R requests that send n prompts in turn: the first turn of each finds nothing."""
    return max(0, num_requests - num_prompts) * hits_per_turn


@law("{unit}·⌊{num_usable:,}/{num_requests}⌋ − {prompt_tokens:,} + 1")
def outputs_before_preemption(num_requests: int, prompt_tokens: int, unit: int, num_usable: int) -> int:
    """Tokens each of n equal requests, admitted in one step, has generated when the pool lacks a block for one of them.

    Each then fills its ⌊N/n⌋ blocks to the last slot, and its newest token, which has no slot, is one more.
    """
    _check(num_requests >= 1, "num_requests", num_requests, "a whole number from 1")
    most = unit * (num_usable // num_requests)
    _check(1 <= prompt_tokens <= most, "prompt_tokens", prompt_tokens, f"a whole number from 1 to {most}: all start at once")
    return most - prompt_tokens + 1


@law("{prompt_tokens:,} + {num_outputs:,}")
def resumed_queries(prompt_tokens: int, num_outputs: int) -> int:
    """Tokens that a preempted request looks up when it resumes: its prompt and what it had generated."""
    return prompt_tokens + num_outputs


@law("{unit}·max(0, min(⌊{num_usable:,}/2⌋, {num_usable:,} − ⌈({prompt_tokens:,} + {output_tokens:,} − 1)/{unit}⌉))")
def resumed_hits_tails_first(prompt_tokens: int, output_tokens: int, unit: int, num_usable: int) -> int:
    """What the newer of two equal requests finds again when the older one has ended, in vLLM's order of eviction.

    It gave back ⌊N/2⌋ full blocks, outputs included. The other grew to ⌈(L + k − 1)/B⌉, first into unnamed blocks, then
    into these, tail first.
    """
    num_left = num_usable - -(-offered_by_turn(prompt_tokens, output_tokens) // unit)
    return unit * max(0, min(num_usable // 2, num_left))


@law(
    "{unit}·⌊{prompt_tokens:,}/{unit}⌋ if that fits beside ⌈({prompt_tokens:,} + {output_tokens:,} − 1)/{unit}⌉"
    " of {num_usable:,}, else 0"
)
def resumed_hits_whole_leaf(prompt_tokens: int, output_tokens: int, unit: int, num_usable: int) -> int:
    """What the newer of two equal requests finds again in a tree: its prompt's leaf, or nothing.

    Outputs enter a tree only when their request ends.
    """
    num_pages = full_blocks(prompt_tokens, unit)
    num_left = num_usable - -(-offered_by_turn(prompt_tokens, output_tokens) // unit)
    return unit * num_pages if num_pages <= num_left else 0


@law("{num_queries:,} − 1 − {num_hits:,}")
def computed_twice(num_queries: int, num_hits: int) -> int:
    """Tokens a resumed request computes again: all but what it finds, and its newest token, which is new."""
    return num_queries - 1 - num_hits


@law("one in each of {output_tokens:,} steps")
def failed_admissions(output_tokens: int) -> int:
    """Times that a request is refused, and looked up in vain, while one before it generates k tokens: once a step."""
    return output_tokens


# Prompts by their token ids


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix of two prompts, in tokens: the position of the first difference."""
    for position, (one, other) in enumerate(zip(first, second)):
        if one != other:
            return position
    return min(len(first), len(second))


def longest_match(prompt: Sequence[int], earlier: Iterable[Sequence[int]]) -> int:
    """The longest common prefix of a prompt with any earlier one, in tokens; 0 with none."""
    return max((common_prefix(prompt, other) for other in earlier), default=0)


def path_nodes(prompt: Sequence[int], earlier: Iterable[tuple[Sequence[int], int]], unit: int) -> int:
    """Nodes that a radix tree's lookup of a prompt passes, after earlier prompts, each given with the tokens it found.

    A node ends where an earlier prompt parted from this one, in whole pages, and where a lookup ended: both split runs.
    """
    longest = repeat(len(prompt), unit)
    ends = set()
    for other, num_found in earlier:
        common = common_prefix(prompt, other)
        ends.add(min(unit * full_blocks(common, unit), longest))
        if num_found <= common:
            ends.add(min(num_found, longest))
    return len(ends - {0})


def control_hits(prompt: Sequence[int], earlier: Iterable[Sequence[int]], unit: int) -> int:
    """Hits of an unrelated prompt: what it happens to share with the earlier ones, by their ids, is reused too.

    The best of unit·⌊min(common prefix, L − 1)/unit⌋ over the earlier prompts; a chat template's head is a
    common prefix. To show the formula: predict(reuse, longest_match(prompt, earlier), len(prompt), unit).
    """
    return reuse(longest_match(prompt, earlier), len(prompt), unit)


def fitting_units(observed: Sequence[tuple[int, int, int]], most: int) -> list[int]:
    """The match units from 1 to `most` that explain what was found: `reuse` read backwards.

    observed  (match_tokens, prompt_tokens, hits) of each request; one unit is left when they tell enough
    """
    return [
        unit
        for unit in range(1, most + 1)
        if all(reuse(match_tokens, prompt_tokens, unit) == hits for match_tokens, prompt_tokens, hits in observed)
    ]


# What empties the cache, and what should


@law("[requests that hold blocks: {num_holders} = 0]")
def resets_accepted(num_holders: int) -> int:
    """Whether a reset is accepted while so many requests hold blocks: only when none does. Their K/V are in use."""
    _check(num_holders >= 0, "num_holders", num_holders, "a whole number from 0")
    return int(num_holders == 0)


@law("0 if {num_stale:,} stale tokens = 0, else 1 of {num_tokens} or more")
def fewest_wrong_outputs(num_stale: int, num_tokens: int) -> int:
    """Output tokens, of k, that differ at least from those of the new weights, when m tokens' K/V are of old ones.

    None without stale K/V. With any, the model reads keys and values that it would not have computed: some token differs
    when the weights changed enough to matter, and no error says so.
    """
    return int(num_stale > 0 and num_tokens > 0)


# What a neighbour can learn


@law("1 if {right_work:.4g} < {control_work:.4g} else 1/2")
def guess_auc(right_work: float, control_work: float) -> float:
    """How well times tell a right guess from a control: 1 surely, 1/2 not at all, where time grows with work alone.

    The chance that the right guess is answered sooner, ties counted half. Work is in one unit for both: tokens to
    compute, or the cost model's seconds, which do not fall further once reading the weights takes longest.
    """
    return 1.0 if right_work < control_work else 0.5


@law("3·√(({num_guesses} + {num_controls} + 1)/(12·{num_guesses}·{num_controls}))")
def chance_auc_spread(num_guesses: int, num_controls: int) -> float:
    """How far from 1/2 an AUC of so many times each may lie by chance: three standard deviations.

    The variance of the rank-sum statistic when both sides come from one distribution (Mann and Whitney 1947).
    """
    _check(num_guesses >= 1, "num_guesses", num_guesses, "a whole number from 1")
    _check(num_controls >= 1, "num_controls", num_controls, "a whole number from 1")
    return 3 * math.sqrt((num_guesses + num_controls + 1) / (12 * num_guesses * num_controls))


@law("{shares_cache}·{num_secret}·⌊1/{unit}⌋")
def tokens_guessed_singly(num_secret: int, unit: int, shares_cache: int = 1) -> int:
    """Secret tokens behind a known prefix of whole units that are found by guessing one token after the other.

    All with pages of one token, since each right token is one more hit; none with larger ones, which answer only to a
    whole block that is right; none without a shared cache (0).
    """
    _check(unit >= 1, "unit", unit, "a whole number from 1")
    return shares_cache * num_secret * (1 // unit)


@law("{num_candidates}·min({num_found} + 1, {num_secret})")
def single_token_guesses(num_candidates: int, num_found: int, num_secret: int) -> int:
    """Requests for that: all A candidates at each token found, and at the one where nothing answers."""
    return num_candidates * min(num_found + 1, num_secret)


@law("⌈{num_tokens}/{unit}⌉·{num_candidates}^{unit}")
def guesses_to_extend(num_candidates: int, num_tokens: int, unit: int) -> int:
    """Guesses that surely extend a known prefix by n tokens, of A candidates each: ⌈n/unit⌉·A^unit."""
    return -(-num_tokens // unit) * num_candidates**unit


# Cost, time, capacity


@law(
    "Σ 2·{shape.num_parameters:,} + 4·{shape.num_layers}·{shape.num_heads}·{shape.head_dim}·s "
    "over positions s in [{start:,}, {end:,})"
)
def prefill_flops(shape: ModelShape, start: int, end: int) -> int:
    """FLOPs of a prompt's tokens [start, end), those before `start` being cached."""
    return cost_model.prefill_flops(shape, start, end)


@law("FLOPs of tokens [{start:,}, {end:,}) of {shape.name} / ({gpu.peak_flops_per_s:.4g}·{mfu})")
def prefill_seconds(shape: ModelShape, gpu: Gpu, mfu: float, start: int, end: int) -> float:
    """Seconds of a prompt's tokens [start, end): FLOPs / (peak · MFU)."""
    return cost_model.prefill_seconds(shape, gpu, mfu, start, end)


@law("FLOPs of {prompt_tokens:,} tokens / FLOPs of those after the first {cached_tokens:,}, {shape.name}")
def cold_over_warm(shape: ModelShape, cached_tokens: int, prompt_tokens: int) -> float:
    """How many times cheaper a prefill is when its first tokens are cached; at least one token is not."""
    _check(0 <= cached_tokens < prompt_tokens, "cached_tokens", cached_tokens, f"a whole number below {prompt_tokens}")
    return prefill_flops(shape, 0, prompt_tokens) / prefill_flops(shape, cached_tokens, prompt_tokens)


@law("1 − FLOPs of the tokens after the first {cached_tokens:,} / FLOPs of all {prompt_tokens:,}, {shape.name}")
def redundant_share(shape: ModelShape, cached_tokens: int, prompt_tokens: int) -> float:
    """The share of a prefill's FLOPs that goes into tokens which could be cached."""
    return 1 - 1 / cold_over_warm(shape, cached_tokens, prompt_tokens)


@law("FLOPs of the first {cached_tokens:,} tokens of {shape.name} / ({gpu.peak_flops_per_s:.4g}·{mfu})")
def saved_seconds(shape: ModelShape, gpu: Gpu, mfu: float, cached_tokens: int) -> float:
    """Seconds of prefill that cached tokens save each request."""
    return prefill_seconds(shape, gpu, mfu, 0, cached_tokens)


@law("{gpu.peak_flops_per_s:.4g}·{mfu}")
def achieved_flops_per_s(gpu: Gpu, mfu: float) -> float:
    """FLOP/s a GPU really delivers: peak · MFU."""
    return cost_model.achieved_flops_per_s(gpu, mfu)


@law(
    "{overhead_s} s + max(FLOPs / ({gpu.peak_flops_per_s:.4g}·{mfu}), bytes read / {gpu.memory_bytes_per_s:.4g}) "
    "of tokens [{cached_tokens:,}, {prompt_tokens:,}), {shape.name}"
)
def simulated_ttft(
    shape: ModelShape, gpu: Gpu, mfu: float, overhead_s: float, cached_tokens: int, prompt_tokens: int, token_budget: int,
    dtype_bytes: int = 2,
) -> float:  # fmt: skip
    """Seconds to the first token of a request alone on a simulated GPU: its steps, each with a fixed overhead.

    A step computes at most `token_budget` tokens, and takes the longer of its arithmetic and its reading (the roofline).
    """
    _check(0 <= cached_tokens < prompt_tokens, "cached_tokens", cached_tokens, f"a whole number below {prompt_tokens}")
    seconds = 0.0
    for start in range(cached_tokens, prompt_tokens, token_budget):
        end = min(start + token_budget, prompt_tokens)
        seconds += overhead_s + cost_model.step_seconds(shape, gpu, mfu, [(start, end)], dtype_bytes)
    return seconds


def queueing_ttfts(arrivals_s: Iterable[float], seconds_each: float) -> list[float]:
    """Seconds from each arrival to its end, where one server takes equal requests in turn, first come, first served.

    A request starts when it is there and the one before it is done (Lindley 1952); above 1/seconds_each arrivals a second
    the queue grows with every request.
    """
    found, free_at = [], 0.0
    for arrival in arrivals_s:
        free_at = max(arrival, free_at) + seconds_each
        found.append(free_at - arrival)
    return found


@law("{requests_per_s}·FLOPs of the first {shared_tokens:,} tokens, {shape.name}")
def redundant_flops_per_s(shape: ModelShape, shared_tokens: int, requests_per_s: float) -> float:
    """FLOP/s spent on computing a shared prefix anew for each request; beside it stands peak · MFU."""
    return requests_per_s * prefill_flops(shape, 0, shared_tokens)


@law("{gpu.peak_flops_per_s:.4g}·{mfu} / FLOPs of tokens [{start:,}, {end:,}) of {shape.name}")
def saturating_requests_per_s(shape: ModelShape, gpu: Gpu, mfu: float, start: int, end: int) -> float:
    """The request rate at which prefills of tokens [start, end) alone fill the GPU; queues grow above it."""
    return 1 / prefill_seconds(shape, gpu, mfu, start, end)


@law("{requests_per_s}·FLOPs of tokens [{start:,}, {end:,}) of {shape.name} / ({gpu.peak_flops_per_s:.4g}·{mfu})")
def prefill_load(shape: ModelShape, gpu: Gpu, mfu: float, start: int, end: int, requests_per_s: float) -> float:
    """The share of a GPU's arithmetic that prefills of tokens [start, end) ask at a rate; from 1 on queues grow."""
    return requests_per_s * prefill_seconds(shape, gpu, mfu, start, end)


@law("{shape.num_parameters:,}·{dtype_bytes} bytes / {gpu.memory_bytes_per_s:.4g}")
def weight_read_seconds(shape: ModelShape, gpu: Gpu, dtype_bytes: int = 2) -> float:
    """Seconds that any step takes at least: every step reads the weights once, however few tokens it computes."""
    return cost_model.weight_bytes(shape, dtype_bytes) / gpu.memory_bytes_per_s


@law("{gpu.memory_bytes:.4g}·{utilization} − {shape.num_parameters:,}·{weight_dtype_bytes} bytes")
def pool_bytes(gpu: Gpu, utilization: float, shape: ModelShape, weight_dtype_bytes: int = 2) -> float:
    """Bytes a GPU has left for K/V beside the weights; not above 0 where they do not fit.

    An upper bound: activations, captured graphs and the driver take their part as well.
    """
    _check(0 < utilization <= 1, "utilization", utilization, "a number above 0, up to 1")
    return gpu.memory_bytes * utilization - cost_model.weight_bytes(shape, weight_dtype_bytes)


@law("2·{shape.num_layers}·{shape.num_kv_heads}·{shape.head_dim}·{dtype_bytes}")
def kv_bytes_per_token(shape: ModelShape, dtype_bytes: int = 2) -> int:
    """Bytes of one token's keys and values over all layers."""
    return cost_model.kv_bytes_per_token(shape, dtype_bytes)


@law("⌊{pool_bytes:.6g} bytes / (2·{shape.num_layers}·{shape.num_kv_heads}·{shape.head_dim}·{dtype_bytes}·{unit})⌋")
def pool_blocks(pool_bytes: float, shape: ModelShape, unit: int, dtype_bytes: int = 2) -> int:
    """Blocks that fit in a pool of `pool_bytes`, the null block, which holds nothing, included."""
    return cost_model.pool_blocks(pool_bytes, shape, unit, dtype_bytes)


@law("{num_blocks:,} − 1")
def usable_blocks(num_blocks: int) -> int:
    """Blocks of a pool that can hold tokens: all but the null block."""
    _check(num_blocks >= 1, "num_blocks", num_blocks, "a whole number from 1")
    return num_blocks - 1


@law("{num_usable:,}·{unit}")
def pool_tokens(num_usable: int, unit: int) -> int:
    """Tokens that a pool's usable blocks hold, cached or in use."""
    return num_usable * unit


@law("⌊{num_usable:,}/⌈{request_tokens:,}/{unit}⌉⌋")
def concurrent_requests(num_usable: int, request_tokens: int, unit: int) -> int:
    """Requests of a length that fit at once when they share nothing; each fills whole blocks."""
    _check(request_tokens >= 1, "request_tokens", request_tokens, "a whole number from 1")
    return num_usable // -(-request_tokens // unit)


@law("{num_blocks:,}·({hash_bits}/8 + 4)")
def key_bytes(num_blocks: int, hash_bits: int) -> int:
    """Bytes of the keys of n cached blocks: each block's digest and four bytes for its group of layers.

    The bytes of the keys alone; the objects and the table that hold them take more.
    """
    return num_blocks * (hash_bits // 8 + 4)


@law("{num_blocks:.3g}²/2^({hash_bits} + 1)")
def collision_probability(num_blocks: float, hash_bits: int) -> float:
    """Chance that any two of n differently filled blocks get one name by accident: n²/2^(bits + 1) at most.

    The birthday bound; it says nothing about an adversary who chooses the contents.
    """
    return num_blocks**2 / 2.0 ** (hash_bits + 1)


@law("√({chance:.3g}·2^({hash_bits} + 1))")
def blocks_at_chance(chance: float, hash_bits: int) -> float:
    """Blocks at which the birthday bound reaches a chance: √(chance · 2^(bits + 1))."""
    _check(0 < chance <= 1, "chance", chance, "a number above 0, up to 1")
    return (chance * 2.0 ** (hash_bits + 1)) ** 0.5


@law("{num_blocks:.3g}/{blocks_per_s:.3g}")
def naming_seconds(num_blocks: float, blocks_per_s: float) -> float:
    """Seconds until n blocks are named at a rate."""
    _check(blocks_per_s > 0, "blocks_per_s", blocks_per_s, "a number above 0")
    return num_blocks / blocks_per_s


def _check_fits(prompt_tokens: int, unit: int, num_usable: int) -> None:
    most = num_usable * unit
    _check(1 <= prompt_tokens <= most, "prompt_tokens", prompt_tokens, f"a whole number from 1 to {most}")


def _check(accepted: bool, field: str, value: object, range_text: str) -> None:
    if not accepted:
        raise ValueError(f"{field} is {value!r}; accepted: {range_text}")
