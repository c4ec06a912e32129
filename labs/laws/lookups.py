"""Laws of a lookup: what it looks at, and what it leaves."""

from __future__ import annotations

from labs.laws.law import check, law
from labs.laws.matches import full_blocks, repeat


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
    check(keeps_copies in (0, 1), "keeps_copies", keeps_copies, "0 or 1")
    return keeps_copies * num_recomputed // unit
