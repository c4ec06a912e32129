"""What prompts share, by their token ids."""

from __future__ import annotations

from typing import Callable, Iterable, Sequence

from labs.laws.matches import full_blocks, repeat, reuse


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


def fitting_units(
    observed: Sequence[tuple[int, int, int]], most: int, law: Callable[[int, int, int], int] = reuse
) -> list[int]:
    """The match units from 1 to `most` that explain what was found: a law of reuse read backwards.

    observed  (match_tokens, prompt_tokens, hits) of each request; one unit is left when they tell enough
    law       `reuse`, or `drafter_reuse` beside a speculative drafter
    """
    return [
        unit
        for unit in range(1, most + 1)
        if all(law(match_tokens, prompt_tokens, unit) == hits for match_tokens, prompt_tokens, hits in observed)
    ]
