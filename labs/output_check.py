"""Does the cache change what the model says? Greedy output cold, cold again, and warm.

Cached K/V are the same numbers, but a warm prefill multiplies other shapes, and rounding may differ in the last bit.
Where the two best tokens are that close (a near tie), the choice can flip without any fault; everywhere else it must
not. The second cold run is the control: what differs there is not the cache's doing.
"""

from __future__ import annotations

from dataclasses import dataclass

from labs.targets.base import Completion

# Log-probability gaps below which rounding can decide. bfloat16 keeps 8 bits: logits near 20 are 1/8 apart.
_NEAR_TIE = {"bfloat16": 0.25, "float16": 0.03}
_NEAR_TIE_FLOAT32 = 1e-3


@dataclass(frozen=True)
class OutputCheck:
    """num_unexplained: 1 when cold and warm part where the choice was clear, else 0."""

    num_unexplained: int
    text: str  # one line for people


def check_outputs(cold: Completion, cold_again: Completion, warm: Completion, dtype: str) -> OutputCheck:
    """Compare three runs of one prompt; all need `top_logprob_gaps`."""
    near_tie = _NEAR_TIE.get(dtype, _NEAR_TIE_FLOAT32)
    control, parted = _first_difference(cold, cold_again), _first_difference(cold, warm)
    num_tokens = len(cold.output_token_ids)
    smallest = min(cold.top_logprob_gaps)
    if control is not None:
        text = f"two cold runs already differ at output token {control}: the machine, not the cache, decides near ties"
        gap = cold.top_logprob_gaps[control]
        return OutputCheck(int(gap >= near_tie), f"{text} (gap of the two best {gap:.2g})")
    if parted is None:
        return OutputCheck(
            0,
            f"greedy output cold, cold again and warm: all {num_tokens} tokens equal ({warm.num_cached_tokens:,} from the "
            f"cache when warm; smallest gap of the two best tokens {smallest:.2g})",
        )
    gap = cold.top_logprob_gaps[parted]
    if gap < near_tie:
        return OutputCheck(0, f"cold and warm part at output token {parted}, a near tie in {dtype} (gap {gap:.2g} < {near_tie})")
    return OutputCheck(1, f"cold and warm part at output token {parted} although the choice was clear (gap {gap:.2g}): wrong K/V")


def _first_difference(one: Completion, other: Completion) -> int | None:
    pairs = zip(one.output_token_ids, other.output_token_ids)
    return next((position for position, (a, b) in enumerate(pairs) if a != b), None)
