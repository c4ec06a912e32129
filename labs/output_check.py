"""Does the cache change what the model says? Greedy output cold, cold again, and warm.

Cached K/V are the same numbers, but a warm prefill multiplies other shapes, and rounding may differ in the last bit.
Where the two best tokens are that close (a near tie), half precision can choose the other one without any fault. So a
difference in half precision is proven or refuted in float32, where the same tie is thousands of times wider than the
rounding. The second cold run is the control: what differs there is not the cache's doing.

On a server the precision is unknown and no other can be asked for. There a difference is judged only where the two best
tokens are further apart than half precision can move them, and two cold runs agree. The second cold run is under a salt of
its own: a reset may give tokens other names, and so ask another question.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Sequence

from labs import theory
from labs.caches import Cache, served_cache
from labs.protocol import LabSession, Prediction
from labs.salts import salts
from labs.series import prove_cold
from labs.targets.base import Completion, Target

# Log-probability gap of the two best tokens below which even float32 rounding could decide.
FLOAT32_NEAR_TIE = 1e-3

# The same where the precision is unknown. bfloat16 keeps 8 bits: logits from 16 to 32 stand 1/8 apart, and the two best may
# each fall to the next step.
HALF_NEAR_TIE = 0.25


@dataclass(frozen=True)
class OutputCheck:
    """Where two cold runs and a warm one part; positions in output tokens, None where they do not."""

    num_tokens: int
    num_cached_tokens: int | None  # of the warm run; None: a server does not tell
    control_parted: int | None  # cold against cold again
    parted: int | None  # cold against warm
    gap: float | None  # of the two best tokens: where they part, else the smallest; None: a server does not tell
    has_control: bool | None = True  # whether the second cold run was cold; None: a server does not tell
    was_warm: bool = True  # False: a server says that the warm run found nothing, so that it shows nothing

    @property
    def equal(self) -> bool:
        return self.control_parted is None and self.parted is None

    @property
    def text(self) -> str:
        """One line for people."""
        gap = "unknown" if self.gap is None else f"{self.gap:.2g}"
        if self.control_parted is not None:
            return f"two cold runs part at output token {self.control_parted} (gap of the two best tokens {gap})"
        if self.parted is not None:
            return f"cold and warm output part at output token {self.parted} (gap of the two best tokens {gap})"
        runs = {
            True: "cold, cold again and warm",
            False: "cold and warm (the second cold run was not cold)",
            None: "cold, again (whether cold is not told) and warm",
        }[self.has_control]
        found = "unknown how many" if self.num_cached_tokens is None else f"{self.num_cached_tokens:,}"
        return (
            f"greedy output {runs}: all {self.num_tokens} tokens equal ({found} of the "
            f"prompt from the cache when warm; smallest gap of the two best tokens {gap})"
        )


def check_outputs(cold: Completion, cold_again: Completion, warm: Completion) -> OutputCheck:
    """Compare three runs of one prompt; the first brings `top_logprob_gaps`, unless its server has none."""
    control, parted = _first_difference(cold, cold_again), _first_difference(cold, warm)
    gaps = cold.top_logprob_gaps
    position = control if control is not None else parted
    gap = None if len(gaps) <= (position or 0) else min(gaps) if position is None else gaps[position]
    return OutputCheck(len(cold.output_token_ids), warm.num_cached_tokens, control, parted, gap)


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


def compare_in_float32(
    session: LabSession, cache: Cache, prompt: Sequence[int], canary_ids: Sequence[int], num_tokens: int
) -> OutputCheck:
    """The proof of a difference that half precision showed: the same comparison on the same model, opened in float32."""
    session.expect(3)
    exact = session.open_target(**cache.engine_fields, dtype="float32")
    try:
        proof, _ = compare_cold_and_warm(session, exact, f"{cache.title}, float32", prompt, canary_ids, num_tokens)
    finally:
        exact.close()
    return proof


def compare_on_server(
    session: LabSession, target: Target, title: str, prompt: Sequence[int], canary_ids: Sequence[int], num_tokens: int
) -> tuple[OutputCheck | None, bool]:
    """The same on a server; None where it does not tell the ids it generated."""
    cold = prove_cold(session, target, canary_ids)
    completions = []
    for label, salt in (("cold", None), ("cold again", next(salts("cold again"))), ("warm", None)):
        completions.append(target.complete(prompt, max_tokens=num_tokens, logprob_gaps=True, cache_salt=salt))
        session.progress(f"{title}: greedy output {label}")
    if any(len(one.output_token_ids) != num_tokens for one in completions):
        return None, cold
    first, again, warm = completions
    # Under a salt that the server ignores, the second run is a warm one. What is put in front of all prompts is no reuse.
    front = served_cache(session.open_target.served).laws.front_hits(len(prompt))
    has_control = None if again.num_cached_tokens is None else again.num_cached_tokens <= front
    check = check_outputs(first, first if has_control is False else again, warm)
    was_warm = warm.num_cached_tokens is None or warm.num_cached_tokens > front
    return replace(check, has_control=has_control, was_warm=was_warm), cold


def judge_on_server(check: OutputCheck) -> tuple[int | None, str]:
    """0 for outputs that are equal or part at a near tie, 1 for others, None where nothing can be judged; and why, in words."""
    if not check.was_warm:
        return None, ". Not judged: the server says that the warm run found nothing, so it was not warm"
    if check.equal:
        return 0, ""
    if check.control_parted is not None and check.has_control is None:
        return None, ". Not judged: which of the runs were cold is not told"
    if check.control_parted is not None:
        return None, ". Not the cache's doing: this server answers the same prompt differently without it"
    if check.gap is None:
        return None, ". Not judged: the server does not tell how close the two best tokens are"
    if check.gap < HALF_NEAR_TIE:
        return 0, f". A near tie, below {HALF_NEAR_TIE}: half precision may choose either"
    return 1, f". NOT a near tie, which ends at {HALF_NEAR_TIE}: wrong K/V"


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
