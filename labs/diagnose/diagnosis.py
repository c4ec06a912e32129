"""Why did request B not reuse what request A left behind? Two requests side by side, evidence first.

The evidence is where their token ids part (labs/diagnose/parting.py), and where their cache identities (salt, LoRA, images)
do. From it follows what B can take, and what each cause costs it, in tokens:

    front        the ids differ at position 0: nothing can match, whatever follows
    divergence   the ids differ later, and whole blocks behind that point agree again
    parted       the ids differ later, and no whole block behind that point agrees again: all that is shared is reused
    identity     the ids agree far enough for a hit, but the keys carry different identities
    logprobs     B asks for prompt logprobs: vLLM looks nothing up for it (the radix cache knows no such request)
    too short    what they share is shorter than one block, or than the two that a drafter asks for
    last token   B is matched to its end, in whole blocks: the last block is computed again with its last token
    drafter      a speculative drafter gives up the last block of each hit
    none         B reuses all whole blocks that are shared, and one prompt goes on from the other

Several can hold at once; the one that costs most comes first. A is taken as sent and finished before B, on a cache
that keeps everything, and only its prompt counts, not what it generated.

Sources: the keys are those of engine/kvcache/cache_identity.py; the numbers are laws of labs/theory.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Sequence

from engine.kvcache.cache_identity import CacheIdentity, LoRA, MultimodalItem
from labs import theory
from labs.diagnose import diagnosis_hint
from labs.diagnose.loss import Loss, find_losses
from labs.diagnose.parting import Parting, part


@dataclass(frozen=True)
class SentRequest:
    """One request as its cache saw it. The salt is compared, never shown."""

    label: str
    token_ids: Sequence[int] = field(repr=False)
    cache_salt: str | None = field(default=None, repr=False)
    lora: LoRA | None = None
    images: tuple[MultimodalItem, ...] = ()
    block_hashes: Sequence[str] = ()  # hexadecimal, empty for a cache without names
    prompt_logprobs: bool = False  # whether the prompt's log probabilities are asked for

    @property
    def identity(self) -> CacheIdentity:
        """Everything but the ids that names this request's blocks."""
        return CacheIdentity(self.lora, self.images, self.cache_salt or None)

    def differing_identity(self, other: SentRequest) -> tuple[str, ...]:
        """Names of the identity parts in which two requests differ."""
        mine, theirs = self.lora, other.lora
        same_name = mine is not None and theirs is not None and mine.name == theirs.name
        parts = {
            "cache salt": (self.cache_salt or None) != (other.cache_salt or None),
            "LoRA adapter": mine != theirs and not same_name,
            "LoRA path": mine != theirs and same_name,
            "images": self.images != other.images,
        }
        return tuple(name for name, differs in parts.items() if differs)


@dataclass(frozen=True)
class ImageDifference:
    """The first image that two requests do not share."""

    item: int  # its number in the request, from 0
    position: int  # where the first of the two begins, in tokens
    first_block: int | None  # from this block on the keys differ; None when no whole block does


@dataclass(frozen=True)
class PairDiagnosis:
    """What B takes of A's blocks in one cache, where the two part, and what that costs."""

    cache: str  # "hash" or "radix"
    unit: int  # tokens of a block or page
    parting: Parting
    differing_ids: tuple[int, int] | None  # at the first difference
    identity_differences: tuple[str, ...]
    image_difference: ImageDifference | None
    reusable_tokens: int  # what B takes
    law: str  # the formula that gave it, numbers filled in
    full_blocks: int  # blocks that B's prompt fills
    losses: tuple[Loss, ...]  # by what they cost; empty: B reuses all it can
    evidence: str  # one line for people
    drafter: bool = False  # a hit takes two blocks then

    @property
    def cause(self) -> str:
        return self.losses[0].cause if self.losses else "none"

    @property
    def lost_tokens(self) -> int:
        """Tokens that the first cause costs."""
        return self.losses[0].tokens if self.losses else 0

    @property
    def lost_blocks(self) -> int:
        return theory.full_blocks(self.lost_tokens, self.unit)

    @property
    def hint(self) -> str:
        return self.losses[0].hint if self.losses else diagnosis_hint.HEALTHY

    @property
    def first_difference(self) -> int | None:
        return self.parting.first_difference


def compare(
    first: SentRequest,
    second: SentRequest,
    unit: int,
    *,
    cache: str = "hash",
    drafter: bool = False,
    parting: Parting | None = None,
) -> PairDiagnosis:
    """Diagnose why `second` reuses what it does of `first`, in a cache with `unit` tokens a block.

    cache     "hash" (vLLM) or "radix" (SGLang): they agree but for where an image ends a match
    drafter   a speculative drafter runs along
    parting   of these two, when it is known already: it is the same for every cache
    """
    parting = part(first.token_ids, second.token_ids) if parting is None else parting
    length, position = len(second.token_ids), parting.first_difference
    identity = first.differing_identity(second)
    image = _image_difference(first, second, unit)
    by_ids = _match_by_ids(first, second, parting, cache)
    match = _match(first, second, by_ids, identity, image, unit, cache)
    skipped = second.prompt_logprobs and cache == "hash"
    law = theory.drafter_reuse if drafter else theory.reuse
    reusable = theory.predict(law, 0 if skipped else match, length, unit)
    return PairDiagnosis(
        cache=cache,
        unit=unit,
        parting=parting,
        differing_ids=None if position is None else (first.token_ids[position], second.token_ids[position]),
        identity_differences=identity,
        image_difference=image,
        reusable_tokens=int(reusable.value),
        law=reusable.law,
        full_blocks=theory.full_blocks(length, unit),
        losses=find_losses(parting, identity, by_ids, match, length, unit, drafter, skipped),
        evidence=_evidence(first, second, parting, identity, image, unit),
        drafter=drafter,
    )


def _match_by_ids(first: SentRequest, second: SentRequest, parting: Parting, cache: str) -> int:
    """Tokens that would match if both requests had the first one's identity."""
    if cache == "hash" or not first.images:
        return parting.common
    images = CacheIdentity(mm_items=first.images)
    return theory.common_prefix(images.content_ids(first.token_ids), images.content_ids(second.token_ids))


def _match(
    first: SentRequest,
    second: SentRequest,
    by_ids: int,
    identity: tuple[str, ...],
    image: ImageDifference | None,
    unit: int,
    cache: str,
) -> int:
    """Tokens that match as the requests are, before the rule of the last token."""
    if set(identity) - {"images"}:
        return 0  # salt and adapter are part of the first block's name, and of the tree's name space
    if image is None:
        return by_ids
    if cache == "radix":  # it compares contents token by token
        return theory.common_prefix(first.identity.content_ids(first.token_ids), second.identity.content_ids(second.token_ids))
    return by_ids if image.first_block is None else min(by_ids, image.first_block * unit)


def _image_difference(first: SentRequest, second: SentRequest, unit: int) -> ImageDifference | None:
    if first.images == second.images:
        return None
    pairs = list(zip(first.images, second.images))
    item = next((number for number, (mine, theirs) in enumerate(pairs) if mine != theirs), len(pairs))
    position = min(images[item].offset for images in (first.images, second.images) if item < len(images))
    num_blocks = theory.full_blocks(min(len(first.token_ids), len(second.token_ids)), unit)
    mine, theirs = CacheIdentity(mm_items=first.images), CacheIdentity(mm_items=second.images)
    differing = (
        block
        for block in range(theory.full_blocks(position, unit), num_blocks)
        if mine.extra_keys(block * unit, (block + 1) * unit) != theirs.extra_keys(block * unit, (block + 1) * unit)
    )
    return ImageDifference(item, position, next(differing, None))


def _evidence(
    first: SentRequest,
    second: SentRequest,
    parting: Parting,
    identity: tuple[str, ...],
    image: ImageDifference | None,
    unit: int,
) -> str:
    position, parts = parting.first_difference, []
    if position is None:
        parts.append(f"token ids equal ({parting.common:,} of {len(first.token_ids):,} and of {len(second.token_ids):,})")
    else:
        ids = f"id {first.token_ids[position]} against {second.token_ids[position]}"
        parts.append(f"first differing token at position {position:,} ({ids}), in block {theory.full_blocks(position, unit):,}")
    if parting.equal_after:
        parts.append(f"{_between(*parting.replaced)}the next {parting.equal_after:,} ids agree again")
    elif position is not None:
        parts.append("they do not meet again")
    parts.append("identity differs in " + ", ".join(identity) if identity else "identity equal (salt, LoRA, images)")
    if image is not None:
        reach = "in no whole block" if image.first_block is None else f"from block {image.first_block:,} on"
        parts.append(f"image {image.item} at token {image.position:,} differs, {reach}")
    if second.prompt_logprobs:
        parts.append(f"{second.label} asks for prompt logprobs")
    parts += _names(first.block_hashes, second.block_hashes)
    return f"{first.label} / {second.label}: " + "; ".join(parts)


def _between(mine: int, theirs: int) -> str:
    if mine == theirs == 1:
        return ""
    if not mine:
        return f"{_ids(theirs)} more in the second, then "
    if not theirs:
        return f"{_ids(mine)} more in the first, then "
    return f"{_ids(theirs)} {'stands' if theirs == 1 else 'stand'} in place of {mine:,}, then "


def _ids(number: int) -> str:
    return f"{number:,} id{'' if number == 1 else 's'}"


def _names(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The names of the first block that has two; of block 0 when none has."""
    if not first or not second:
        return []
    block = next((number for number, (mine, theirs) in enumerate(zip(first, second)) if mine != theirs), 0)
    relation = "=" if first[block] == second[block] else "≠"
    return [f"block {block:,} is {first[block][:16]}… {relation} {second[block][:16]}…"]
