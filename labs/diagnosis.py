"""Why did request B not reuse what request A left behind? Two requests side by side, evidence first.

The evidence is the first position where their token ids differ, and their cache identity (salt, LoRA, images,
embeddings). From it follows one cause:

    identity     the ids agree far enough for a hit, but the keys carry different identities
    front        the ids differ at position 0: nothing can match, whatever follows
    divergence   the ids differ later: the blocks before that point are reused
    too short    the shared part is shorter than one block
    last token   the ids are equal: everything but the last token's block is reused
    none         B reuses all whole blocks that are shared
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Sequence

from labs import theory


@dataclass(frozen=True)
class SentRequest:
    """One request as its cache saw it. The salt is compared, never shown."""

    label: str
    token_ids: Sequence[int] = field(repr=False)
    cache_salt: str | None = field(default=None, repr=False)
    lora: str | None = None
    images: tuple[str, ...] = ()
    block_hashes: Sequence[str] = ()  # hexadecimal, empty for a cache without names

    def differing_identity(self, other: SentRequest) -> list[str]:
        """Names of the identity parts in which two requests differ."""
        parts = {
            "cache salt": (self.cache_salt or None, other.cache_salt or None),
            "LoRA adapter": (self.lora, other.lora),
            "images": (self.images, other.images),
        }
        return [name for name, (mine, theirs) in parts.items() if mine != theirs]


@dataclass(frozen=True)
class PairDiagnosis:
    """What two requests share, where they part, and what that costs."""

    cause: str  # see the module's text
    first_difference: int | None  # position; None when one is a prefix of the other
    differing_ids: tuple[int, int] | None
    identity_differences: tuple[str, ...]
    equal_after: int  # ids in a row that agree again behind the first difference, position by position
    reusable_tokens: int  # what B can take from A's blocks
    lost_tokens: int  # whole-block tokens that agree (from the front or again later), but cannot be taken
    first_hashes: tuple[str, str] | None  # names of both first blocks, shortened
    evidence: str  # one line for people


def compare(first: SentRequest, second: SentRequest, unit: int) -> PairDiagnosis:
    """Diagnose why `second` reuses what it does of `first`, in a cache with `unit` tokens a block."""
    common = theory.common_prefix(first.token_ids, second.token_ids)
    shorter = min(len(first.token_ids), len(second.token_ids))
    position = common if common < shorter else None
    ids = None if position is None else (first.token_ids[position], second.token_ids[position])
    identity = tuple(first.differing_identity(second))
    # A cap of L - 1 costs a whole block when everything else agrees.
    by_ids = theory.reuse(common, len(second.token_ids), unit)
    equal_after = 0
    if position is not None:
        equal_after = theory.common_prefix(first.token_ids[position + 1 :], second.token_ids[position + 1 :])
    hashes = None
    if first.block_hashes and second.block_hashes:
        hashes = (first.block_hashes[0][:16], second.block_hashes[0][:16])
    cause = _cause(identity, position, common, by_ids, unit, shorter)
    lost = by_ids if identity else theory.full_blocks(equal_after, unit) * unit
    return PairDiagnosis(
        cause=cause,
        first_difference=position,
        differing_ids=ids,
        identity_differences=identity,
        equal_after=equal_after,
        reusable_tokens=0 if identity else by_ids,
        lost_tokens=lost,
        first_hashes=hashes,
        evidence=_evidence(first, second, common, ids, identity, equal_after, hashes),
    )


def _cause(identity: tuple[str, ...], position: int | None, common: int, by_ids: int, unit: int, shorter: int) -> str:
    if identity and by_ids:
        return "identity"
    if position == 0:
        return "front"
    if not by_ids:
        return "too short"
    if position is None:
        return "last token" if by_ids < unit * (shorter // unit) else "none"
    return "divergence"


def _evidence(
    first: SentRequest,
    second: SentRequest,
    common: int,
    ids: tuple[int, int] | None,
    identity: tuple[str, ...],
    equal_after: int,
    hashes: tuple[str, str] | None,
) -> str:
    parts: list[str] = []
    if ids is None:
        parts.append(f"token ids equal ({common:,} of {len(first.token_ids):,})")
    else:
        parts.append(f"first differing token at position {common:,} (id {ids[0]} against {ids[1]})")
        if equal_after:
            parts.append(f"the next {equal_after:,} ids agree again")
    parts.append("identity differs in " + ", ".join(identity) if identity else "identity equal (salt, LoRA, images)")
    if hashes is not None:
        relation = "=" if hashes[0] == hashes[1] else "≠"
        parts.append(f"block 0 is {hashes[0]}… {relation} {hashes[1]}…")
    return f"{first.label} / {second.label}: " + "; ".join(parts)
