"""Laws of names that are equal by accident."""

from __future__ import annotations

from labs.laws.law import check, law


@law("{num_blocks:.3g}²/2^({hash_bits} + 1)")
def collision_probability(num_blocks: float, hash_bits: int) -> float:
    """Chance that any two of n differently filled blocks get one name by accident: n²/2^(bits + 1) at most.

    The birthday bound; it says nothing about an adversary who chooses the contents.
    """
    return num_blocks**2 / 2.0 ** (hash_bits + 1)


@law("√({chance:.3g}·2^({hash_bits} + 1))")
def blocks_at_chance(chance: float, hash_bits: int) -> float:
    """Blocks at which the birthday bound reaches a chance: √(chance · 2^(bits + 1))."""
    check(0 < chance <= 1, "chance", chance, "a number above 0, up to 1")
    return (chance * 2.0 ** (hash_bits + 1)) ** 0.5


@law("{num_blocks:.3g}/{blocks_per_s:.3g}")
def naming_seconds(num_blocks: float, blocks_per_s: float) -> float:
    """Seconds until n blocks are named at a rate."""
    check(blocks_per_s > 0, "blocks_per_s", blocks_per_s, "a number above 0")
    return num_blocks / blocks_per_s
