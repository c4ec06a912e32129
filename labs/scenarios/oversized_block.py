"""Oversized block: a configuration in which nothing can ever be reused, told before any traffic.

    longest prompt   ├────────────── max_model_len − 1 ──────────────┤
    block            ├──────────────────────────────────────────────────┤   no prompt fills it: it never gets a name
    block            ├──────────────────────────────────────────┤           the longest fills it, and its repeat finds it
    block            ├───────────────────────────────────────────────┤      filled, yet not found: the last token is always
                                                                            computed, and its block with it
"""

from __future__ import annotations

from labs import theory
from labs.protocol import LabSession, Measurement, Prediction
from labs.workload import SharedPrefixWorkload


def check_oversized_block(
    session: LabSession, block: int, max_model_len: int, vocab_size: int, seed: int
) -> tuple[Measurement, str]:
    """Names that a hash cache with blocks of `block` tokens gives the longest prompt, and what follows; nothing is sent."""
    law = Prediction(*theory.predict(theory.full_blocks, max_model_len - 1, block))
    target = session.open_target(prefix_cache="hash", block_size=block, max_model_len=max_model_len, num_gpu_blocks=2)
    try:
        longest = SharedPrefixWorkload.from_token_ids(vocab_size, seed, max_model_len - 1, 1, 1).shared_ids
        num_names = len(target.block_hashes(longest))
    finally:
        target.close()
    row = f"block {block:,}, max_model_len {max_model_len:,}"
    measurement = Measurement("names", "blocks", (num_names,), "the longest prompt, before any traffic", row, law, key=True)
    session.record(measurement)
    reused = theory.repeat(max_model_len - 1, block)
    if not measurement.agrees:
        verdict = f"NOT as predicted: {num_names:,} block(s) of the longest prompt fill, {law.value:,} by the law"
    elif reused:
        verdict = f"{num_names:,} block(s) of the longest prompt can fill; by the law its repeat finds {reused:,} tokens"
    elif num_names:
        verdict = (
            "the longest prompt fills a block exactly, and its last token is always computed, so by the law nothing can ever be "
            f"reused; take blocks below {max_model_len - 1:,}"
        )
    else:
        verdict = f"no prompt can ever fill a block, so nothing can ever be reused; take blocks below {max_model_len - 1:,}"
    return measurement, f"{row}: {verdict}"
