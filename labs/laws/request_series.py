"""Laws of a series of requests, one after the other, from an empty cache, with room for all of them."""

from __future__ import annotations

from labs.laws.law import check, law
from labs.laws.matches import drafter_reuse, full_blocks, repeat, reuse


@law("{num_requests}·{prompt_tokens:,}")
def queries(num_requests: int, prompt_tokens: int) -> int:
    """Tokens looked up by N requests: N·L, the whole prompt of each, although its last token can never hit."""
    check(num_requests >= 0, "num_requests", num_requests, "a whole number from 0")
    return num_requests * prompt_tokens


@law("({num_requests} − 1)·{unit}·⌊min({shared_tokens:,}, {prompt_tokens:,} − 1)/{unit}⌋")
def shared_prefix_hits(num_requests: int, shared_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Hits of N requests of L tokens that share the first P and differ at once after them.

    (N − 1)·unit·⌊min(P, L − 1)/unit⌋: the first pays, each later one reuses. It holds as well for N requests under
    one salt of their own: the salt's first request pays.
    """
    check(num_requests >= 1, "num_requests", num_requests, "a whole number from 1")
    return (num_requests - 1) * reuse(shared_tokens, prompt_tokens, unit)


@law("({num_requests} − 1)·max(0, ⌊min({shared_tokens:,}, {prompt_tokens:,} − 1)/{unit}⌋ − 1)·{unit}")
def drafter_shared_prefix_hits(num_requests: int, shared_tokens: int, prompt_tokens: int, unit: int) -> int:
    """`shared_prefix_hits` beside a speculative drafter: each later request reuses a block less."""
    check(num_requests >= 1, "num_requests", num_requests, "a whole number from 1")
    return (num_requests - 1) * drafter_reuse(shared_tokens, prompt_tokens, unit)


@law("{num_hits:,}/{num_queries:,}")
def hit_rate(num_hits: int, num_queries: int) -> float:
    """The share of looked-up tokens that was found, weighted by tokens, as the engine's counters give it."""
    check(num_queries >= 1, "num_queries", num_queries, "a whole number from 1")
    return num_hits / num_queries


@law("({num_requests} − {num_groups})·{unit}·⌊min({shared_tokens:,}, {prompt_tokens:,} − 1)/{unit}⌋")
def grouped_prefix_hits(num_requests: int, num_groups: int, shared_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Hits of N requests of L tokens that share the first P, in G groups with a salt each.

    (N − G)·unit·⌊min(P, L − 1)/unit⌋: in each group the first pays. G = 1 without salts, G = N with one per request.
    """
    check(1 <= num_groups <= num_requests, "num_groups", num_groups, f"a whole number from 1 to {num_requests}")
    return (num_requests - num_groups) * reuse(shared_tokens, prompt_tokens, unit)


@law(
    "{num_groups}·⌊{shared_tokens:,}/{unit}⌋ + {num_requests}·(⌊{prompt_tokens:,}/{unit}⌋ − ⌊{shared_tokens:,}/{unit}⌋)"
)
def grouped_prefix_blocks(num_requests: int, num_groups: int, shared_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Blocks that those requests leave in the cache: G·⌊P/unit⌋ shared ones, and ⌊L/unit⌋ − ⌊P/unit⌋ of each request.

    What is shared is stored once for each salt. A block that begins shared and ends differently is each request's own.
    """
    check(1 <= num_groups <= num_requests, "num_groups", num_groups, f"a whole number from 1 to {num_requests}")
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
    check(num_prepended >= 1, "num_prepended", num_prepended, "a whole number from 1")
    return shared_prefix_hits(num_requests, 0, prompt_tokens + num_prepended, unit)


@law(
    "({num_requests} − 1)·{unit}·⌊min({shared_tokens:,} + {num_extra}, {prompt_tokens:,} + {num_extra} − 1)/{unit}⌋"
)
def shared_extra_hits(num_requests: int, num_extra: int, shared_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Hits of N requests that all got the same k tokens, before the shared P or right after them.

    The shared part is then P + k tokens long: (N − 1)·unit·⌊min(P + k, L + k − 1)/unit⌋.
    """
    check(num_extra >= 0, "num_extra", num_extra, "a whole number from 0")
    return shared_prefix_hits(num_requests, shared_tokens + num_extra, prompt_tokens + num_extra, unit)


@law("({num_requests} − 1)·{unit}·⌊min({shared_tokens:,}, {prompt_tokens:,} + {num_appended} − 1)/{unit}⌋")
def unique_append_hits(
    num_requests: int, num_appended: int, shared_tokens: int, prompt_tokens: int, unit: int
) -> int:
    """Hits of N requests with k tokens of their own right after the shared P: those of P alone, nothing is lost."""
    check(num_appended >= 0, "num_appended", num_appended, "a whole number from 0")
    return shared_prefix_hits(num_requests, shared_tokens, prompt_tokens + num_appended, unit)


@law("({num_requests} − {same_step})·{unit}·⌊({prompt_tokens:,} − 1)/{unit}⌋")
def concurrent_repeat_hits(num_requests: int, same_step: int, prompt_tokens: int, unit: int) -> int:
    """Hits of N equal prompts sent at once, of which the first s must compute the prompt themselves.

    (N − s)·unit·⌊(L − 1)/unit⌋. Where blocks are published when slots are allocated (vLLM), s is 1: twins in the same
    step reuse already. Where they are published after the step (SGLang), s is `first_step_requests`.
    """
    check(1 <= same_step <= num_requests, "same_step", same_step, f"a whole number from 1 to {num_requests}")
    return (num_requests - same_step) * repeat(prompt_tokens, unit)


@law("min({num_requests}, ⌈{token_budget:,}/{prompt_tokens:,}⌉, {max_num_seqs})")
def first_step_requests(num_requests: int, prompt_tokens: int, token_budget: int, max_num_seqs: int) -> int:
    """Requests that the first step admits: min(N, ⌈budget/L⌉, seats); the last may get only the rest of the budget."""
    return min(num_requests, -(-token_budget // prompt_tokens), max_num_seqs)
