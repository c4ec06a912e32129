"""Block names: the recorded vLLM digests, the chain, and growing with the request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.kvcache.block_hash import (
    DEFAULT_NONE_HASH_SEED,
    BlockHasher,
    get_hash_function,
    hash_block_tokens,
    resolve_none_hash_seed,
)
from engine.kvcache.cache_identity import CacheIdentity

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "vllm_0.32.0_block_hashes.json").read_text())["vectors"]
RECORDED = [vector for vector in VECTORS if vector["digest"] is not None]  # without a seed, xxhash starts at random
TAGS = {"lora": "lora", "mm": "mm", "cache_salt": "cache_salt", "prompt_embeds": "prompt_embeds"}


def from_json(value):
    """JSON arrays stand for tuples, {"bytes": hex} for bytes; tags are one object each, as in running code."""
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"])
    return TAGS.get(value, value) if isinstance(value, str) else value


@pytest.mark.parametrize("vector", RECORDED, ids=lambda vector: vector["id"])
def test_every_recorded_digest_of_vllm_is_reproduced(vector):
    hash_function = get_hash_function(vector["algo"])
    none_hash = hash_function(DEFAULT_NONE_HASH_SEED if vector["seed"] is None else vector["seed"])
    if vector["kind"] == "none_hash":
        digest = none_hash
    else:
        parent = none_hash if vector["parent"] == "NONE_HASH" else bytes.fromhex(vector["parent"])
        digest = hash_block_tokens(hash_function, parent, vector["tokens"], from_json(vector["extra_keys"]))
    assert digest.hex() == vector["digest"]


def test_the_chain_starts_from_a_fixed_text_for_sha256_and_a_random_one_for_xxhash(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert resolve_none_hash_seed("sha256") == resolve_none_hash_seed("sha256_cbor") == "vllm-none-hash"
    assert resolve_none_hash_seed("xxhash") != resolve_none_hash_seed("xxhash")


@pytest.mark.parametrize("value", ["0", "random", ""])
def test_pythonhashseed_is_taken_literally_when_set(monkeypatch, value):
    monkeypatch.setenv("PYTHONHASHSEED", value)
    assert {resolve_none_hash_seed(algorithm) for algorithm in ("sha256", "xxhash_cbor")} == {value}


def test_equal_blocks_behind_different_parents_have_different_names():
    hasher = BlockHasher("sha256", 4)
    one, other = [], []
    hasher.extend(one, [1, 2, 3, 4, 9, 9, 9, 9], CacheIdentity())
    hasher.extend(other, [5, 6, 7, 8, 9, 9, 9, 9], CacheIdentity())
    assert one[1] != other[1]


@given(st.lists(st.integers(0, 2**31), max_size=60), st.lists(st.integers(1, 9), max_size=20))
def test_names_grow_the_same_however_tokens_arrive(token_ids, cuts):
    hasher = BlockHasher("sha256_cbor", 4)
    at_once, grown, end = [], [], 0
    hasher.extend(at_once, token_ids, CacheIdentity(cache_salt="s"))
    for cut in [*cuts, len(token_ids)]:
        end = min(end + cut, len(token_ids))
        hasher.extend(grown, token_ids[:end], CacheIdentity(cache_salt="s"))
    assert grown == at_once
    assert len(at_once) == len(token_ids) // 4


def test_an_unknown_algorithm_is_named_with_the_accepted_ones():
    with pytest.raises(ConfigError, match="md5.*sha256, sha256_cbor, xxhash, xxhash_cbor"):
        get_hash_function("md5")
