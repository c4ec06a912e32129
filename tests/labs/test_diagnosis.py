"""Two requests side by side: the cause follows from the first differing token and the identities."""

from __future__ import annotations

import pytest

from labs.diagnosis import SentRequest, compare

SYSTEM = list(range(100, 164))


def sent(ids, **fields) -> SentRequest:
    return SentRequest("request", ids, **fields)


@pytest.mark.parametrize(
    ("first", "second", "cause", "position", "reusable"),
    [
        (sent(SYSTEM), sent(SYSTEM, cache_salt="a"), "identity", None, 0),
        (sent(SYSTEM, lora="v1"), sent(SYSTEM, lora="v2"), "identity", None, 0),
        (sent([1, *SYSTEM]), sent([2, *SYSTEM]), "front", 0, 0),
        (sent([1, *SYSTEM]), sent([2, *SYSTEM], cache_salt="a"), "front", 0, 0),
        (sent([*SYSTEM, 1]), sent([*SYSTEM, 2]), "divergence", 64, 64),
        (sent([*SYSTEM[:10], 1] + SYSTEM), sent([*SYSTEM[:10], 2] + SYSTEM), "too short", 10, 0),
        (sent(SYSTEM), sent(SYSTEM), "last token", None, 48),
        (sent([*SYSTEM, 1]), sent([*SYSTEM, 1]), "none", None, 64),
        (sent(SYSTEM), sent([*SYSTEM, 1, 2]), "none", None, 64),
        (sent([1, 2]), sent([1, 2]), "too short", None, 0),
    ],
)
def test_each_cause_is_told_from_the_others(first, second, cause, position, reusable):
    pair = compare(first, second, unit=16)
    assert (pair.cause, pair.first_difference, pair.reusable_tokens) == (cause, position, reusable)


def test_the_evidence_shows_ids_identity_and_names_but_no_salt():
    first = sent([1, *SYSTEM], cache_salt="pepper-one", block_hashes=["ab" * 32])
    second = sent([2, *SYSTEM], cache_salt="pepper-two", block_hashes=["cd" * 32])
    pair = compare(first, second, unit=16)
    assert "id 1 against 2" in pair.evidence and "the next 64 ids agree again" in pair.evidence
    assert "identity differs in cache salt" in pair.evidence and "abababababababab… ≠ cdcdcdcdcdcdcdcd…" in pair.evidence
    assert "pepper" not in pair.evidence + repr(pair) + repr(first)
    assert pair.lost_tokens == 0 or pair.cause == "identity" or pair.lost_tokens == 64
