"""How rare it is that two differently filled blocks get one name by accident."""

from __future__ import annotations

from typing import Mapping

from labs import theory
from labs.estimates.estimate import Estimate, figure
from labs.estimates.figure import shown_rate

# Bits of the digest that names a block, by vLLM's name of the algorithm.
HASH_BITS = {"sha256": 256, "sha256_cbor": 256, "xxhash": 128, "xxhash_cbor": 128}
RARE_CHANCE = 1e-6


def estimate_collision(num_blocks: float, digests: Mapping[str, int], blocks_per_s: float | None = None) -> Estimate:
    """The birthday bound for n blocks, for digests of some bits.

    digests  what to call a digest -> its bits
    """
    figures = []
    for label, bits in digests.items():
        name = label.replace(" ", "_")
        chance = (theory.collision_probability, num_blocks, bits)
        rare = figure(f"blocks_{name}", "blocks until one in a million", "blocks", theory.blocks_at_chance, RARE_CHANCE, bits)
        figures += [figure(f"chance_{name}", f"chance of a collision, {label}", "chance", *chance), rare]
        if blocks_per_s is not None:
            at = f"which takes, at {shown_rate(blocks_per_s, 'blocks')}"
            figures.append(figure(f"seconds_{name}", at, "s", theory.naming_seconds, rare.value, blocks_per_s))
    if blocks_per_s is not None:
        label = "1 block takes" if num_blocks == 1 else f"{_count(num_blocks)} blocks take"
        figures.append(figure("seconds", label, "s", theory.naming_seconds, num_blocks, blocks_per_s))
    remarks = ["This is accident. The bound says nothing about an adversary, who looks for a collision and chooses the blocks."]
    if any(theory.collision_probability(num_blocks, bits) >= 1 for bits in digests.values()):
        remarks.append("A bound of 1 or more says nothing: expect collisions.")
    return Estimate(
        title=f"Accidental collisions among {_count(num_blocks)} differently filled block{'' if num_blocks == 1 else 's'}",
        inputs={"num_blocks": num_blocks, "hash_bits": dict(digests), "blocks_per_s": blocks_per_s},
        figures=tuple(figures),
        remarks=tuple(remarks),
        sources=("digests: vLLM 0.32.0, utils/hashing.py",),
    )


def _count(number: float) -> str:
    return f"{number:,.0f}" if 1 <= number < 1e15 else f"{number:.3g}"
