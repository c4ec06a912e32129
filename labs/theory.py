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


@law("{prompt_tokens:,} + {output_tokens:,} − 1")
def offered_by_turn(prompt_tokens: int, output_tokens: int) -> int:
    """Computed tokens one turn leaves for the next: L + k − 1. The last sampled token was never fed back: no K/V."""
    _check(prompt_tokens >= 1, "prompt_tokens", prompt_tokens, "a whole number from 1")
    _check(output_tokens >= 1, "output_tokens", output_tokens, "a whole number from 1")
    return prompt_tokens + output_tokens - 1


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


def control_hits(prompt: Sequence[int], earlier: Iterable[Sequence[int]], unit: int) -> int:
    """Hits of an unrelated prompt: what it happens to share with the earlier ones, by their ids, is reused too.

    The best of unit·⌊min(common prefix, L − 1)/unit⌋ over the earlier prompts; a chat template's head is a
    common prefix. To show the formula: predict(reuse, longest_match(prompt, earlier), len(prompt), unit).
    """
    return reuse(longest_match(prompt, earlier), len(prompt), unit)


# Cost, time, capacity


@law("FLOPs of tokens [{start:,}, {end:,}) of {shape.name}: Σ 2·P + 4·L·h·d_h·s")
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


@law("{requests_per_s}·FLOPs of the first {shared_tokens:,} tokens, {shape.name}")
def redundant_flops_per_s(shape: ModelShape, shared_tokens: int, requests_per_s: float) -> float:
    """FLOP/s spent on computing a shared prefix anew for each request; beside it stands peak · MFU."""
    return requests_per_s * prefill_flops(shape, 0, shared_tokens)


@law("{gpu.peak_flops_per_s:.4g}·{mfu} / FLOPs of tokens [{start:,}, {end:,}) of {shape.name}")
def saturating_requests_per_s(shape: ModelShape, gpu: Gpu, mfu: float, start: int, end: int) -> float:
    """The request rate at which prefills of tokens [start, end) alone fill the GPU; queues grow above it."""
    return 1 / prefill_seconds(shape, gpu, mfu, start, end)


@law("⌊{pool_bytes:.6g} bytes / (2·{shape.num_layers}·{shape.num_kv_heads}·{shape.head_dim}·{dtype_bytes}·{unit})⌋")
def pool_blocks(pool_bytes: float, shape: ModelShape, unit: int, dtype_bytes: int = 2) -> int:
    """Blocks that fit in a pool of `pool_bytes`, the null block, which holds nothing, included."""
    return cost_model.pool_blocks(pool_bytes, shape, unit, dtype_bytes)


@law("{num_blocks:.3g}²/2^({hash_bits} + 1)")
def collision_probability(num_blocks: float, hash_bits: int) -> float:
    """Chance that any two of n differently filled blocks get one name by accident: n²/2^(bits + 1) at most.

    The birthday bound; it says nothing about an adversary who chooses the contents.
    """
    return num_blocks**2 / 2.0 ** (hash_bits + 1)


def _check(accepted: bool, field: str, value: object, range_text: str) -> None:
    if not accepted:
        raise ValueError(f"{field} is {value!r}; accepted: {range_text}")
