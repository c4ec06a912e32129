"""Loss: what one cause costs a request that could have reused another's blocks, each cause taken by itself.

    lookup ──▶ identity ──▶ ids ──▶ last token, drafter
    (logprobs)              front, divergence, parted, too short

What stands further left hides what stands behind it: with another salt no id counts. So a cause's tokens are those that B
would reuse besides, were this cause gone and those left of it; the last token and a drafter cost of what is really matched.
The causes are told in labs/diagnose/diagnosis.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from labs import theory
from labs.diagnose import diagnosis_hint
from labs.diagnose.parting import Parting

_IDS_CAUSES = ("front", "divergence")  # a repair of the ids brings nothing while identity or lookup are in the way


@dataclass(frozen=True)
class Loss:
    """One cause, what it costs B alone, and what to do about it."""

    cause: str  # see the module's text
    tokens: int  # that B would reuse besides, were it gone
    hint: str  # one line for production


def find_losses(
    parting: Parting,
    identity: tuple[str, ...],
    by_ids: int,
    match: int,
    length: int,
    unit: int,
    drafter: bool,
    skipped: bool,
) -> tuple[Loss, ...]:
    """What each cause costs by itself, the dearest first.

    by_ids   tokens that match by their ids, `match` those that do with the identities too
    skipped  nothing is looked up for B
    """
    law = theory.drafter_reuse if drafter else theory.reuse
    with_equal_identity, found = law(by_ids, length, unit), law(match, length, unit)
    losses = _ids_losses(parting, by_ids, length, unit, drafter)
    if identity and (with_equal_identity > found or not with_equal_identity):
        losses.append(Loss("identity", with_equal_identity - found, diagnosis_hint.identity(identity)))
    if skipped:
        losses.append(Loss("logprobs", found, diagnosis_hint.LOGPROBS))
    else:
        last_token = law(match, length + 1, unit) - found
        if last_token:
            losses.append(Loss("last token", last_token, diagnosis_hint.last_token(length, unit)))
        given_up = theory.drafter_loss(match, length, unit) if drafter else 0
        if given_up:
            losses.append(Loss("drafter", given_up, diagnosis_hint.DRAFTER))
    return tuple(sorted(losses, key=_rank))


def _rank(loss: Loss) -> tuple[int, int]:
    """The dearest first; of two equally dear ones that whose repair alone brings something; what may be no fault last."""
    later = ("parted", *(_IDS_CAUSES if loss.tokens else ()))
    return -loss.tokens, int(loss.cause in later)


def _ids_losses(parting: Parting, by_ids: int, length: int, unit: int, drafter: bool) -> list[Loss]:
    """What the ids alone cost: at most one of four causes."""
    position = parting.first_difference
    gain = 0
    if position is not None:
        gain = theory.moved_behind_gain(position, parting.equal_after, length, unit)
    if position is not None and drafter:
        moved = position + parting.equal_after
        gain -= theory.drafter_loss(moved, length, unit) - theory.drafter_loss(position, length, unit)
    if position == 0:
        return [Loss("front", gain, diagnosis_hint.front(parting.equal_after))]
    if position is not None and gain:
        return [Loss("divergence", gain, diagnosis_hint.divergence(position))]
    if theory.full_blocks(by_ids, unit) < (2 if drafter else 1):
        return [Loss("too short", 0, diagnosis_hint.too_short(parting.common, position is None, unit, drafter))]
    return [] if position is None else [Loss("parted", 0, diagnosis_hint.parted(position))]
