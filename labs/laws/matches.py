"""Laws of one request: its full blocks, what it reuses of a match, and what is lost to whole blocks and the last token."""

from __future__ import annotations

from labs.laws.law import check, law


@law("⌊{num_tokens:,}/{unit}⌋")
def full_blocks(num_tokens: int, unit: int) -> int:
    """Blocks a prompt fills, so that they get a name: ⌊L/B⌋. The L mod B tokens after them stay unnamed."""
    check(num_tokens >= 0, "num_tokens", num_tokens, "a whole number from 0")
    check(unit >= 1, "unit", unit, "a whole number from 1")
    return num_tokens // unit


@law("{num_tokens:,} mod {unit}")
def unnamed_tail(num_tokens: int, unit: int) -> int:
    """Tokens behind the last full block: L mod B. They have no name, so nobody can find them."""
    return num_tokens - unit * full_blocks(num_tokens, unit)


@law("⌊({num_known:,} + {num_appended:,})/{unit}⌋ − ⌊{num_known:,}/{unit}⌋")
def newly_full_blocks(num_known: int, num_appended: int, unit: int) -> int:
    """Blocks that k further tokens fill, and that alone are hashed: ⌊(L + k)/B⌋ − ⌊L/B⌋."""
    check(num_appended >= 0, "num_appended", num_appended, "a whole number from 0")
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
    check(starts_alike in (0, 1), "starts_alike", starts_alike, "0 or 1")
    return starts_alike * full_blocks(num_tokens, unit)


@law("{unit}·⌊min({match_tokens:,}, {prompt_tokens:,} − 1)/{unit}⌋")
def reuse(match_tokens: int, prompt_tokens: int, unit: int) -> int:
    """Tokens a request takes from the cache when its first m tokens are there: unit·⌊min(m, L − 1)/unit⌋.

    Whole blocks only, and never the last token: its logits choose the next one, so it is computed again.
    """
    check(match_tokens >= 0, "match_tokens", match_tokens, "a whole number from 0")
    check(prompt_tokens >= 1, "prompt_tokens", prompt_tokens, "a whole number from 1")
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
    check(match_tokens >= 0, "match_tokens", match_tokens, "a whole number from 0")
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
    check(prompt_tokens >= 1, "prompt_tokens", prompt_tokens, "a whole number from 1")
    return next_longer_match(prompt_tokens - 1, unit, num_dropped) + 1


@law("({unit} − 1)/2")
def mean_rounding_loss(unit: int) -> float:
    """Tokens a match loses to whole blocks, m mod B, averaged over all remainders: (B − 1)/2."""
    check(unit >= 1, "unit", unit, "a whole number from 1")
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
    check(equal_after >= 0, "equal_after", equal_after, "a whole number from 0")
    return reuse(match_tokens + equal_after, prompt_tokens, unit) - reuse(match_tokens, prompt_tokens, unit)


@law("{prompt_tokens:,} + {output_tokens:,} − 1")
def offered_by_turn(prompt_tokens: int, output_tokens: int) -> int:
    """Computed tokens one turn leaves for the next: L + k − 1. The last sampled token was never fed back: no K/V."""
    check(prompt_tokens >= 1, "prompt_tokens", prompt_tokens, "a whole number from 1")
    check(output_tokens >= 1, "output_tokens", output_tokens, "a whole number from 1")
    return prompt_tokens + output_tokens - 1


@law("{unit}·⌊({prompt_tokens:,} + {output_tokens:,} − 1)/{unit}⌋")
def next_turn_hits(prompt_tokens: int, output_tokens: int, unit: int) -> int:
    """Hits of a turn that repeats the turn before it, L prompt and k output tokens by their ids, and goes on.

    unit·⌊(L + k − 1)/unit⌋: of the L + k repeated tokens the last has no K/V.
    """
    return unit * full_blocks(offered_by_turn(prompt_tokens, output_tokens), unit)
