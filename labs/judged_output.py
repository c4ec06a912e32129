"""JudgedOutput: one prompt's greedy output, cold, cold again and warm, as a row of a lab's table and a finding.

    in this process        a difference in half precision is asked again in float32, which decides
    on a server            judged only where the two best tokens are further apart than half precision can move them
    on the sim target      shown and not judged: simulated tokens do not depend on K/V

The count is 1 for an output that differs beyond a near tie, else 0. How runs are compared: labs/output_check.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from labs.caches import Cache
from labs.output_check import (
    compare_cold_and_warm,
    compare_in_float32,
    compare_on_server,
    judge_on_server,
    num_unexplained,
    output_law,
)
from labs.protocol import LabSession, Measurement
from labs.targets.base import Target
from labs.workload import TokenIds


@dataclass(frozen=True)
class JudgedOutput:
    """What the comparison of one cache's outputs showed."""

    measurements: tuple[Measurement, ...]  # one; none where nothing can be judged
    finding: str
    is_cold: bool  # whether the cold starts were proven


def judge_output(
    session: LabSession, target: Target, cache: Cache, prompt: TokenIds, canary_ids: TokenIds, num_tokens: int
) -> JudgedOutput:
    """Compare `num_tokens` tokens of greedy output on an open target of `cache`; its measurement is recorded."""
    is_served = session.open_target.served is not None
    ask = _ask_server if is_served else _ask_in_process
    num_differing, text, cold = ask(session, target, cache, prompt, canary_ids, num_tokens)
    law = output_law(session.open_target.kind)
    note = "counts outputs that differ beyond a near tie"
    if law is None:
        note += "; simulated tokens do not depend on K/V, so it cannot fail here"
        text += ". Simulated tokens do not depend on K/V: it shows nothing"
    finding = f"{cache.title}: {text}"
    if num_differing is None:
        return JudgedOutput((), finding, cold)
    row = f"greedy output, {num_tokens} tokens, cold = warm"
    measurement = Measurement(
        "total", "outputs" if is_served else "tokens", (num_differing,), cache.title, row, law, note=note
    )
    session.record(measurement)
    return JudgedOutput((measurement,), finding, cold)


def _ask_in_process(
    session: LabSession, target: Target, cache: Cache, prompt: TokenIds, canary_ids: TokenIds, num_tokens: int
) -> tuple[int, str, bool]:
    """Outputs that differ, what was seen, and whether cold was proven."""
    check, cold = compare_cold_and_warm(session, target, cache.title, prompt, canary_ids, num_tokens)
    proof, text = None, check.text
    if not check.equal and target.info.dtype != "float32":
        proof = compare_in_float32(session, cache, prompt, canary_ids, num_tokens)
        text += f"; in float32: {proof.text}"
    num_differing = num_unexplained(check, target.info.dtype, proof)
    if not check.equal:
        text += ". NOT a near tie: wrong K/V" if num_differing else ". A near tie, decided by rounding"
    return num_differing, text, cold


def _ask_server(
    session: LabSession, target: Target, cache: Cache, prompt: TokenIds, canary_ids: TokenIds, num_tokens: int
) -> tuple[int | None, str, bool]:
    """The same of a server; None where nothing can be judged."""
    check, cold = compare_on_server(session, target, cache.title, prompt, canary_ids, num_tokens)
    if check is None:
        return None, "greedy output is not compared: this server does not tell the ids it generated", cold
    num_differing, why = judge_on_server(check)
    return num_differing, check.text + why, cold
