"""Laws of pools too small for all: eviction and preemption. `num_usable` are the pool's blocks, without the null block."""

from __future__ import annotations

from labs.laws.law import check, law
from labs.laws.matches import full_blocks, offered_by_turn, repeat


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
    check(num_prompts >= 1, "num_prompts", num_prompts, "a whole number from 1")
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
    check(num_prompts >= 1, "num_prompts", num_prompts, "a whole number from 1")
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
    check(num_requests >= 1, "num_requests", num_requests, "a whole number from 1")
    most = unit * (num_usable // num_requests)
    check(1 <= prompt_tokens <= most, "prompt_tokens", prompt_tokens, f"a whole number from 1 to {most}: all start at once")
    return most - prompt_tokens + 1


@law(
    "1 if ⌈{prompt_tokens:,}/{unit}⌉ ≤ ⌊{num_usable:,}/2⌋ and {unit}·⌊{num_usable:,}/2⌋ − {prompt_tokens:,} + 1 < {output_tokens:,},"
    " else 0"
)
def preemptions_of_newer(prompt_tokens: int, output_tokens: int, unit: int, num_usable: int) -> int:
    """How often the newer of two equal requests is preempted: once, if both start and then lack a block before they end.

    Who waits for room holds nothing that could be taken; who was preempted resumes when the other has ended, and is alone.
    """
    if -(-prompt_tokens // unit) > num_usable // 2:
        return 0
    return int(outputs_before_preemption(2, prompt_tokens, unit, num_usable) < output_tokens)


@law("min({output_tokens:,}, {unit}·⌊{num_usable:,}/2⌋ − {prompt_tokens:,} + 1)")
def outputs_of_newer(prompt_tokens: int, output_tokens: int, unit: int, num_usable: int) -> int:
    """Tokens the newer of two equal requests generates before it is preempted, or all k: then it never is."""
    return min(output_tokens, outputs_before_preemption(2, prompt_tokens, unit, num_usable))


@law("{num_preempted}·{num_tokens:,}")
def of_preempted(num_preempted: int, num_tokens: int) -> int:
    """Tokens looked up, found or computed again by so many preempted requests of m tokens: none where nobody is preempted."""
    return num_preempted * num_tokens


@law("(1 − {times_counted}) of every token")
def unaccounted_tokens(times_counted: int) -> int:
    """Of every token that a resumed request looks up or finds, what its own counters miss: none, each is counted once."""
    return 1 - times_counted


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


def _check_fits(prompt_tokens: int, unit: int, num_usable: int) -> None:
    most = num_usable * unit
    check(1 <= prompt_tokens <= most, "prompt_tokens", prompt_tokens, f"a whole number from 1 to {most}")
