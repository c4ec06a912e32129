"""Page names: the recorded SGLang digests, and what keeps pages apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.kvcache.cache_identity import Namespace
from engine.kvcache.page_hash import event_page_hash, hash_pages, namespace_seed

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "sglang_0.5.23_page_hashes.json").read_text())["vectors"]


def test_the_recorded_file_is_whole():
    assert len(VECTORS) == 11


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
def test_every_recorded_page_hash_of_sglang_is_reproduced(vector):
    namespace = Namespace(vector["extra_key"], vector["cache_salt"])
    hashes = hash_pages(vector["tokens"], vector["page_size"], namespace, bigrams=vector.get("bigram", False))
    assert [one.hex() for one in hashes] == vector["page_hashes"]
    assert [event_page_hash(one) for one in hashes] == vector["event_int64"]
    assert namespace_seed(namespace).hex() == (vector["seed_hex"] or "")


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
