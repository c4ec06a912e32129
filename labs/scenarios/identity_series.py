"""IdentitySeries: requests with the same tokens and another identity, each with what it may share with those before it.

What two requests share is said here once more, in the words of the model and not of a cache: K/V at a position are equal
when the adapter is, and all content up to there (a token, an embedding, a place in an image). A salt is no content, and
parts requests all the same: that is its purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Sequence

from engine.kvcache.cache_identity import CacheIdentity
from labs import theory
from labs.caches import Cache
from labs.protocol import LabSession, Measurement, Prediction
from labs.targets.base import Completion, Target, TargetError
from labs.workload import TokenIds


@dataclass(frozen=True)
class IdentityRequest:
    """Token ids, and everything else that decides their K/V."""

    token_ids: TokenIds = field(repr=False)
    identity: CacheIdentity = CacheIdentity()

    @property
    def fields(self) -> dict[str, Any]:
        """For Target.complete and Target.block_hashes."""
        own = self.identity
        return {"cache_salt": own.cache_salt, "lora": own.lora, "images": own.mm_items, "prompt_embeds": own.prompt_embeds}


@dataclass(frozen=True)
class IdentityRow:
    """One scenario: a request, sent twice, and the earlier request it is compared with by name."""

    row: str
    request: IdentityRequest
    reference: IdentityRequest | None = None
    names_only: bool = False  # the target cannot compute it: only its blocks' names are looked at


def shared_tokens(one: IdentityRequest, other: IdentityRequest, ignored: str | None = None) -> int:
    """First positions at which a cache may serve one's K/V to the other.

    ignored  "lora", "salt", "images" or "embeddings": as a cache sees it whose key lacks that part
    """
    first, second = one.identity, other.identity
    if ignored != "lora" and first.lora != second.lora:
        return 0
    if ignored != "salt" and (first.cache_salt or None) != (second.cache_salt or None):
        return 0
    return theory.common_prefix(_contents(one, ignored), _contents(other, ignored))


def may_reuse(request: IdentityRequest, earlier: Sequence[IdentityRequest], unit: int, ignored: str | None = None) -> Prediction:
    """Tokens a request finds of those sent before it: of the one it shares most with."""
    shared = max((shared_tokens(request, other, ignored) for other in earlier), default=0)
    return Prediction(*theory.predict(theory.reuse, shared, len(request.token_ids), unit))


def run_rows(session: LabSession, target: Target, cache: Cache, rows: Sequence[IdentityRow]) -> list[Measurement]:
    """Send every row's request twice, all on one cache that was cold before; what they find, and what they are named.

    Raises TargetError when the requests' own reports and the cache's counters disagree.
    """
    earlier: list[IdentityRequest] = []
    measurements: list[Measurement] = []
    target.counters()  # start from zero
    for one in rows:
        found = _names(target, cache, one)
        if not one.names_only:
            found += _sent_twice(session, target, cache, one, earlier)
            earlier.append(one.request)
        session.record(*found)
        measurements += found
    return measurements


def _sent_twice(
    session: LabSession, target: Target, cache: Cache, one: IdentityRow, earlier: Sequence[IdentityRequest]
) -> list[Measurement]:
    length = len(one.request.token_ids)
    laws = {
        "first": may_reuse(one.request, earlier, cache.unit),
        "again": Prediction(*theory.predict(theory.repeat, length, cache.unit)),
    }
    hits = [send(session, target, one.request, f"{cache.title}: {one.row}").num_cached_tokens or 0 for _ in laws]
    counted = target.counters()
    if sum(hits) != counted.hits:
        raise TargetError(f"{one.row}: requests report {sum(hits)} cached tokens, the counters say {counted.hits}")
    found = [
        Measurement(name, "tokens", (tokens,), cache.title, one.row, law, key=name == "first" and law.value > 0)
        for (name, law), tokens in zip(laws.items(), hits)
    ]
    queries = Prediction(*theory.predict(theory.queries, len(hits), length))
    return [*found, Measurement("queries", "tokens", (counted.queries,), cache.title, one.row, queries)]


def _names(target: Target, cache: Cache, one: IdentityRow) -> list[Measurement]:
    """How many first blocks have the reference's names; nothing for a cache without names."""
    if not cache.is_hash or one.reference is None:
        return []
    mine, others = (target.block_hashes(each.token_ids, **each.fields) for each in (one.request, one.reference))
    law = Prediction(*theory.predict(theory.full_blocks, shared_tokens(one.request, one.reference), cache.unit))
    note = "names counts the first blocks that have the same name as in the scenario it is a variant of"
    return [Measurement("names", "blocks", (theory.common_prefix(mine, others),), cache.title, one.row, law, note=note)]


def send(session: LabSession, target: Target, request: IdentityRequest, label: str, num_outputs: int = 1) -> Completion:
    """Send one request and count it for the progress bar."""
    completion = target.complete(request.token_ids, max_tokens=num_outputs, logprob_gaps=num_outputs > 1, **request.fields)
    session.progress(label)
    return completion


def _contents(request: IdentityRequest, ignored: str | None) -> list[object]:
    """What each position's K/V are computed from."""
    identity = request.identity
    contents: list[object] = list(request.token_ids)
    if ignored != "images":
        for item in identity.mm_items:
            for place in range(item.length):
                contents[item.offset + place] = (item.identifier, place)
    if ignored != "embeddings" and identity.prompt_embeds is not None:
        contents[: len(identity.prompt_embeds)] = identity.prompt_embeds
    return contents
