"""Page names: the recorded SGLang digests, and what keeps pages apart."""

from __future__ import annotations

import pytest

from engine.kvcache.cache_identity import Namespace
from engine.kvcache.page_hash import event_page_hash, hash_pages, namespace_seed
from labs.recorded.engine_hashes import sglang_page_hashes

RECORDED = sglang_page_hashes()


def test_the_recorded_file_is_whole():
    assert len(RECORDED) == 11


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda entry: entry.name)
def test_every_recorded_page_hash_of_sglang_is_reproduced(recorded):
    hashes = recorded.reproduce()
    assert tuple(one.hex() for one in hashes) == recorded.digests
    assert tuple(event_page_hash(one) for one in hashes) == recorded.event_hashes
    assert namespace_seed(recorded.namespace).hex() == (recorded.seed or "")


def test_key_and_salt_are_two_things():
    pairs = [("a", "b"), ("b", "a"), ("ab", None), (None, "ab"), ("", "ab"), (None, None)]
    assert len({hash_pages([1, 2], 2, Namespace(*pair))[0] for pair in pairs}) == len(pairs)
    assert hash_pages([1, 2], 2, Namespace("a", "")) == hash_pages([1, 2], 2, Namespace("a", None))


@pytest.mark.parametrize("token_id", [-1, 2**64])
def test_an_id_without_a_place_in_eight_bytes_is_refused(token_id):
    with pytest.raises(ValueError, match="accepted: whole numbers from 0"):
        hash_pages([1, token_id], 2)


def test_a_page_of_nothing_is_refused():
    with pytest.raises(ValueError, match="page_size is 0"):
        hash_pages([1], 0)
