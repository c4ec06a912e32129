"""Laws of what empties the cache, and what should."""

from __future__ import annotations

from labs.laws.law import check, law


@law("[requests that hold blocks: {num_holders} = 0]")
def resets_accepted(num_holders: int) -> int:
    """Whether a reset is accepted while so many requests hold blocks: only when none does. Their K/V are in use."""
    check(num_holders >= 0, "num_holders", num_holders, "a whole number from 0")
    return int(num_holders == 0)


@law("0 if {num_wrong:,} tokens of wrong K/V = 0, else 1 of {num_tokens} or more")
def fewest_wrong_outputs(num_wrong: int, num_tokens: int) -> int:
    """Output tokens, of k, that differ at least when m tokens' K/V are of old weights or of another request.

    None without such K/V. With any, the model reads keys and values that it would not have computed: some token differs
    when they differ enough to matter, and no error says so.
    """
    return int(num_wrong > 0 and num_tokens > 0)
