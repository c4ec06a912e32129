"""Does the cache change what the model says? Greedy output cold, cold again, and warm.

Cached K/V are the same numbers, but a warm prefill multiplies other shapes, and rounding may differ in the last bit.
Where the two best tokens are that close (a near tie), half precision can choose the other one without any fault. So a
difference in half precision is proven or refuted in float32, where the same tie is thousands of times wider than the
rounding. The second cold run is the control: what differs there is not the cache's doing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from labs import theory
from labs.protocol import LabSession, Prediction
from labs.series import prove_cold
from labs.targets.base import Completion, Target

# Log-probability gap of the two best tokens below which even float32 rounding could decide.
FLOAT32_NEAR_TIE = 1e-3


@dataclass(frozen=True)
class OutputCheck:
    """Where two cold runs and a warm one part; positions in output tokens, None where they do not."""

    num_tokens: int
    num_cached_tokens: int  # of the warm run
    control_parted: int | None  # cold against cold again
    parted: int | None  # cold against warm
    gap: float  # of the two best tokens: where they part, else the smallest

    @property
    def equal(self) -> bool:
        return self.control_parted is None and self.parted is None

    @property
    def text(self) -> str:
        """One line for people."""
        if self.control_parted is not None:
            return f"two cold runs part at output token {self.control_parted} (gap of the two best tokens {self.gap:.2g})"
        if self.parted is not None:
            return f"cold and warm output part at output token {self.parted} (gap of the two best tokens {self.gap:.2g})"
        return (
            f"greedy output cold, cold again and warm: all {self.num_tokens} tokens equal ({self.num_cached_tokens:,} of the "
            f"prompt from the cache when warm; smallest gap of the two best tokens {self.gap:.2g})"
        )


def check_outputs(cold: Completion, cold_again: Completion, warm: Completion) -> OutputCheck:
    """Compare three runs of one prompt; the first needs `top_logprob_gaps`."""
    control, parted = _first_difference(cold, cold_again), _first_difference(cold, warm)
    gaps = cold.top_logprob_gaps
    position = control if control is not None else parted
    gap = min(gaps) if position is None else gaps[position]
    return OutputCheck(len(cold.output_token_ids), warm.num_cached_tokens or 0, control, parted, gap)


def compare_cold_and_warm(
    session: LabSession, target: Target, title: str, prompt: Sequence[int], canary_ids: Sequence[int], num_tokens: int
) -> tuple[OutputCheck, bool]:
    """Run one prompt cold, cold again and warm, greedy; the comparison, and whether both cold starts were proven."""
    cold, completions = True, []
    for label in ("cold", "cold again", "warm"):
        if label != "warm":
            cold = prove_cold(session, target, canary_ids) and cold
        completions.append(target.complete(prompt, max_tokens=num_tokens, logprob_gaps=True))
        session.progress(f"{title}: greedy output {label}")
    return check_outputs(*completions), cold


def output_law(target_kind: str, cause: str = "the cache") -> Prediction | None:
    """That no output differs; None on the simulated target, whose tokens do not depend on K/V: there it cannot fail."""
    return None if target_kind == "sim" else Prediction(*theory.predict(theory.differing_outputs, cause))


def num_unexplained(check: OutputCheck, dtype: str, proof: OutputCheck | None) -> int:
    """0 when the outputs are equal or differ by a near tie, else 1.

    dtype  of `check`
    proof  the same comparison in float32, made when half precision parted
    """
    if check.equal:
        return 0
    if dtype == "float32":
        return int(check.gap >= FLOAT32_NEAR_TIE)
    return 1 if proof is None else num_unexplained(proof, "float32", None)


def _first_difference(one: Completion, other: Completion) -> int | None:
    pairs = zip(one.output_token_ids, other.output_token_ids)
    return next((position for position, (a, b) in enumerate(pairs) if a != b), None)
