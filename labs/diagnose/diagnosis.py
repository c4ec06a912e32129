"""Why did request B not reuse what request A left behind? Two requests side by side, evidence first.

The evidence is where their token ids part (labs/diagnose/parting.py), and where their cache identities (salt, LoRA, images)
do. From it follows what B can take, and what each cause costs it, in tokens:

    front        the ids differ at position 0: nothing can match, whatever follows
    divergence   the ids differ later, and whole blocks behind that point agree again
    identity     the ids agree far enough for a hit, but the keys carry different identities
    too short    what they share is shorter than one block
    last token   the ids are equal and fill whole blocks: the last block is computed again with its last token
    drafter      a speculative drafter gives up the last block of each hit
    none         B reuses all whole blocks that are shared

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
class Loss:
    """One cause, what it costs B alone, and what to do about it."""

    cause: str  # see the module's text
    tokens: int  # that B would reuse besides, were this cause gone
    hint: str  # one line for production


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
    law = theory.drafter_reuse if drafter else theory.reuse
    reusable = theory.predict(law, match, length, unit)
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
        losses=_losses(parting, identity, by_ids, match, length, unit, drafter),
        evidence=_evidence(first, second, parting, identity, image, unit),
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


def _losses(
    parting: Parting, identity: tuple[str, ...], by_ids: int, match: int, length: int, unit: int, drafter: bool
) -> tuple[Loss, ...]:
    """What each cause costs by itself, the dearest first."""
    position, with_equal_identity = parting.first_difference, theory.reuse(by_ids, length, unit)
    losses: list[Loss] = []
    gain = 0 if position is None else theory.moved_behind_gain(position, parting.equal_after, length, unit)
    if position == 0:
        losses.append(Loss("front", gain, diagnosis_hint.front(parting.equal_after)))
    elif gain:
        losses.append(Loss("divergence", gain, diagnosis_hint.divergence(position)))
    elif not with_equal_identity:
        hint = diagnosis_hint.too_short(parting.common, position is None, unit, drafter)
        losses.append(Loss("too short", 0, hint))
    identity_loss = with_equal_identity - theory.reuse(match, length, unit)
    if identity and (identity_loss or not with_equal_identity):
        losses.append(Loss("identity", identity_loss, diagnosis_hint.identity(identity)))
    last_token = theory.full_blocks(by_ids, unit) * unit - with_equal_identity
    if position is None and last_token and with_equal_identity:
        losses.append(Loss("last token", last_token, diagnosis_hint.last_token(length, unit)))
    if drafter and theory.reuse(match, length, unit):
        given_up = theory.reuse(match, length, unit) - theory.drafter_reuse(match, length, unit)
        losses.append(Loss("drafter", given_up, diagnosis_hint.DRAFTER))
    # Of two equally dear causes the identity is the one whose repair alone brings something.
    return tuple(sorted(losses, key=lambda loss: (-loss.tokens, loss.cause != "identity" or not loss.tokens)))


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
    parts.append("identity differs in " + ", ".join(identity) if identity else "identity equal (salt, LoRA, images)")
    if image is not None:
        reach = "in no whole block" if image.first_block is None else f"from block {image.first_block:,} on"
        parts.append(f"image {image.item} at token {image.position:,} differs, {reach}")
    parts += _names(first.block_hashes, second.block_hashes)
    return f"{first.label} / {second.label}: " + "; ".join(parts)


def _between(mine: int, theirs: int) -> str:
    if mine == theirs == 1:
        return ""
    if not mine:
        return f"{theirs:,} ids more in the second, then "
    return f"{theirs:,} ids stand in place of {mine:,}, then " if theirs else f"{mine:,} ids more in the first, then "


def _names(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """The names of the first block that has two; of block 0 when none has."""
    if not first or not second:
        return []
    block = next((number for number, (mine, theirs) in enumerate(zip(first, second)) if mine != theirs), 0)
    relation = "=" if first[block] == second[block] else "≠"
    return [f"block {block:,} is {first[block][:16]}… {relation} {second[block][:16]}…"]
