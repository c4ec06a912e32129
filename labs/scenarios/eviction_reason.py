"""EvictionReason: what an order of eviction does to prompts in turn, in words.

    tails first     the tail of the other prompt dies, its head is found again
    heads first     the head dies first, and what is kept behind it is dead weight
    whole leaves    the other prompt dies whole, though a part would have fitted
"""

from __future__ import annotations

from labs.scenarios.eviction_series import Cycle, Order


def reason(order: Order, cycle: Cycle) -> str:
    """What is evicted from A and B in turn and why, from the sizes alone."""
    unit, num_usable = order.cache.unit, order.num_usable(cycle.pool_tokens)
    at_work, num_full = -(-cycle.prompt_tokens // unit), cycle.prompt_tokens // unit
    if cycle.total(order) is None:
        return (
            "The prompts fill the pool to the last page: the page that a hit computes anew costs a leaf, which no law here counts"
        )
    if cycle.fits(order):
        return f"Both prompts fit the {num_usable:,} blocks: nothing need die"
    left = num_usable - at_work
    if not left:
        return f"The prompt at work holds all {num_usable:,} blocks: nothing of the other is kept"
    if order.keeps_heads:
        return (
            f"Of {num_usable:,} blocks the prompt at work holds {at_work:,}; the {left:,} others keep the head of the other "
            "prompt, whose tail was freed, and so evicted, before it: block i (from 0) is used again after i + "
            f"{at_work + 1:,} blocks, and {num_usable:,} fit"
        )
    if order.heads_first:
        return (
            f"As many blocks stay, {left:,}, but they are the other prompt's last ones: its first block was freed and evicted "
            "first, and without it nothing behind it can be found. Dead weight"
        )
    return (
        f"The pool has {left:,} pages left beside the {at_work:,} at work, the other prompt needs {num_full:,}: its leaf "
        "dies whole, though a part would have fitted"
    )


def reason_counted(order: Order, num_evicted: int, num_hits: int) -> str:
    """What happened to A and B in turn, by the blocks and tokens that were counted: the title of a block map."""
    if not num_evicted:
        return "nothing dies"
    if order.keeps_heads:
        return "the tail of the other prompt dies, its head is found again" if num_hits else "nothing is found again"
    if num_hits:
        return "some blocks die, others are found again"
    if order.heads_first:
        return "the head dies first, and what is kept behind it is of no use"
    return "a leaf dies whole, and no part of it is found again"
