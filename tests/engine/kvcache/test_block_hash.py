"""Block names: the recorded vLLM digests, the chain, growing with the request, and one name by every path."""

from __future__ import annotations

import sys

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import HASH_ALGORITHMS
from engine.errors import ConfigError, MissingPackage
from engine.kvcache.block_encoding import BlockEncoding, CborEncoding, PickleEncoding
from engine.kvcache.block_hash import (
    DEFAULT_NONE_HASH_SEED,
    BlockHasher,
    coarser_block_hashes,
    event_block_hash,
    get_hash_function,
    hash_block_tokens,
    make_block_hash_with_group_id,
    resolve_none_hash_seed,
    split_block_hash_with_group_id,
)
from engine.kvcache.cache_identity import CacheIdentity, LoRA, MultimodalItem
from engine.request import Request
from labs.recorded.engine_hashes import vllm_block_hashes
from tests.broken_rules import name_blocks_without_their_parents

RECORDED = vllm_block_hashes()
PLAIN = CacheIdentity()


@pytest.fixture(params=["laid out", "block by block"])
def path(request, monkeypatch):
    """Both ways in which a hasher names blocks, whatever the prompt's length."""
    for encoding in (PickleEncoding, CborEncoding):
        monkeypatch.setattr(encoding, "min_run_tokens", 0 if request.param == "laid out" else sys.maxsize)


def by_definition(hasher, token_ids, identity=PLAIN):
    """The chain as `hash_block_tokens` makes it."""
    names, parent = [], hasher.none_hash
    for end in range(hasher.block_size, len(token_ids) + 1, hasher.block_size):
        start = end - hasher.block_size
        extra_keys = identity.extra_keys(start, end)
        parent = hash_block_tokens(hasher.hash_function, parent, token_ids[start:end], extra_keys)
        names.append(parent)
    return names


def named(hasher, token_ids, identity=PLAIN):
    names = []
    hasher.extend(names, token_ids, identity)
    return names


# Recorded


def test_the_recorded_file_is_whole():
    assert len(RECORDED) == 91
    without_digest = [entry for entry in RECORDED if entry.digest is None]
    assert [entry.name for entry in without_digest] == ["none_hash/xxhash/unset", "none_hash/xxhash_cbor/unset"]


@pytest.mark.parametrize("recorded", [entry for entry in RECORDED if entry.digest is not None], ids=lambda entry: entry.name)
def test_every_recorded_digest_of_vllm_is_reproduced(recorded):
    assert recorded.reproduce() == recorded.digest


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
def test_the_recorded_chains_are_those_of_a_whole_prompt(algorithm, path):
    chains: dict[str, list] = {}
    for entry in RECORDED:
        if entry.algorithm == algorithm and entry.name.startswith(("chain16/", "bs1/", "bs32/")):
            chains.setdefault(entry.name.rpartition("/")[0], []).append(entry)
    assert chains
    for chain in chains.values():
        token_ids = [token_id for entry in chain for token_id in entry.token_ids]
        hasher = BlockHasher(algorithm, len(chain[0].token_ids), chain[0].seed or DEFAULT_NONE_HASH_SEED)
        assert [name.hex() for name in named(hasher, token_ids)] == [entry.digest for entry in chain]


# The chain's start


def test_the_chain_starts_from_a_fixed_text_for_sha256_and_a_random_one_for_xxhash(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert resolve_none_hash_seed("sha256") == resolve_none_hash_seed("sha256_cbor") == "vllm-none-hash"
    starts = {resolve_none_hash_seed(algorithm) for algorithm in ("xxhash", "xxhash_cbor") for _ in range(3)}
    assert len(starts) == 6 and all(len(bytes.fromhex(start)) == 32 for start in starts)


@pytest.mark.parametrize("recorded", [entry for entry in RECORDED if entry.digest is None], ids=lambda entry: entry.name)
def test_a_recorded_start_without_a_digest_is_a_random_one(recorded, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert recorded.seed is None
    first, second = BlockHasher(recorded.algorithm, 16), BlockHasher(recorded.algorithm, 16)
    assert len(first.none_hash) == 16 and first.none_hash != second.none_hash


@pytest.mark.parametrize("value", ["0", "random", ""])
def test_pythonhashseed_is_taken_literally_when_set(monkeypatch, value):
    monkeypatch.setenv("PYTHONHASHSEED", value)
    assert {resolve_none_hash_seed(algorithm) for algorithm in ("sha256", "xxhash_cbor")} == {value}
    assert BlockHasher("sha256", 16).none_hash == get_hash_function("sha256")(value)


# The chain


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
def test_equal_blocks_behind_different_parents_have_different_names(algorithm, path):
    hasher = BlockHasher(algorithm, 4, "0")
    one, other = named(hasher, [1, 2, 3, 4, 9, 9, 9, 9]), named(hasher, [5, 6, 7, 8, 9, 9, 9, 9])
    assert one[1] != other[1]


def test_a_hasher_that_leaves_the_parent_out_is_noticed(monkeypatch):
    monkeypatch.setattr(BlockHasher, "extend", name_blocks_without_their_parents)
    with pytest.raises(AssertionError):
        test_equal_blocks_behind_different_parents_have_different_names("sha256", None)


token_id = st.one_of(
    st.integers(0, 49_151), st.sampled_from([0, 23, 24, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32, -1]), st.integers(0, 300)
)


@st.composite
def identities(draw, num_tokens=90):
    items, offset = [], draw(st.integers(0, 20))
    for _ in range(draw(st.integers(0, 3))):
        length = draw(st.integers(1, 15))
        items.append(MultimodalItem(draw(st.sampled_from(["image-1", "image-2"])), offset, length))
        offset += length + draw(st.integers(0, 12))
    return CacheIdentity(
        lora=draw(st.sampled_from([None, LoRA("adapter", "/adapters/1")])),
        mm_items=tuple(items),
        cache_salt=draw(st.sampled_from([None, "salt"])),
        prompt_embeds=draw(st.sampled_from([None, tuple(bytes([position, 7]) for position in range(20))])),
    )


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
@pytest.mark.parametrize("min_run_tokens", [0, 40, sys.maxsize])
@given(token_ids=st.lists(token_id, max_size=90), cuts=st.lists(st.integers(1, 30), max_size=8), block_size=st.integers(1, 17), identity=identities())
def test_names_are_the_definitions_however_tokens_arrive(algorithm, min_run_tokens, token_ids, cuts, block_size, identity):
    with pytest.MonkeyPatch.context() as patch:
        for encoding in (PickleEncoding, CborEncoding):
            patch.setattr(encoding, "min_run_tokens", min_run_tokens)
        hasher = BlockHasher(algorithm, block_size, "0")
        expected = by_definition(hasher, token_ids, identity)
        assert named(hasher, token_ids, identity) == expected
        grown, end = [], 0
        for cut in [*cuts, len(token_ids)]:
            end = min(end + cut, len(token_ids))
            known = list(grown)
            hasher.extend(grown, token_ids[:end], identity)
            assert len(grown) == end // block_size and grown[: len(known)] == known
        assert grown == expected


def test_only_newly_full_blocks_are_hashed(monkeypatch, path):
    digested = []
    hasher = BlockHasher("sha256", 4, "0")
    original = hasher._digest
    monkeypatch.setattr(hasher, "_digest", lambda data: digested.append(data) or original(data))
    names = named(hasher, list(range(43)))
    assert (len(names), len(digested)) == (10, 10)
    hasher.extend(names, list(range(43)), PLAIN)
    assert (len(names), len(digested)) == (10, 10)
    hasher.extend(names, list(range(53)), PLAIN)
    assert (len(names), len(digested)) == (13, 13)


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
def test_a_long_prompt_has_the_definitions_names(algorithm):
    hasher = BlockHasher(algorithm, 16, "0")
    token_ids = [position * 7_919 % 200_000 for position in range(50_007)]
    assert named(hasher, token_ids) == by_definition(hasher, token_ids)
    salted = CacheIdentity(cache_salt="s", mm_items=(MultimodalItem("image", 30_000, 500),))
    assert named(hasher, token_ids, salted) == by_definition(hasher, token_ids, salted)


@pytest.mark.parametrize("length", [*range(64_700, 65_700, 25), 70_000])
def test_extra_keys_as_long_as_a_frame_of_pickle_keep_the_definitions_name(length, monkeypatch):
    monkeypatch.setattr(PickleEncoding, "min_run_tokens", 0)
    hasher = BlockHasher("sha256", 16, "0")
    identity = CacheIdentity(lora=LoRA("adapter", "x" * length))
    token_ids = list(range(32))
    assert named(hasher, token_ids, identity) == by_definition(hasher, token_ids, identity)


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
@pytest.mark.parametrize("block_size", [300, 12_000, 20_000])
def test_large_blocks_have_the_definitions_names(algorithm, block_size):
    hasher = BlockHasher(algorithm, block_size, "0")
    token_ids = [position * 7_919 % 100_000 for position in range(block_size * 3 + 5)]
    assert named(hasher, token_ids) == by_definition(hasher, token_ids)
    assert len(named(hasher, token_ids)) == 3


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
def test_a_request_whose_ids_are_numpy_integers_has_the_names_of_plain_ones(algorithm):
    hasher = BlockHasher(algorithm, 4, "0")
    token_ids = [7, 300, 70_000, 5] * 3
    request = Request("r", numpy.array(token_ids[:9]), block_hasher=hasher)
    request.append_output_token_ids([numpy.int32(one) for one in token_ids[9:]])
    assert request.block_hashes == by_definition(hasher, token_ids)


def test_a_layout_that_is_not_the_serialisers_changes_no_name(monkeypatch):
    monkeypatch.setattr(BlockEncoding, "has_layout", lambda self: False)
    hasher = BlockHasher("xxhash", 16, "0")
    assert named(hasher, list(range(4_096))) == by_definition(hasher, list(range(4_096)))


# What counts as a token id


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
def test_numpy_integers_are_the_numbers_they_hold(algorithm, path):
    hasher = BlockHasher(algorithm, 4, "0")
    token_ids = [7, 300, 70_000, 5] * 3
    expected = by_definition(hasher, token_ids)
    for same in (numpy.array(token_ids), [numpy.int32(one) for one in token_ids], tuple(token_ids), numpy.array(token_ids, numpy.uint64)):
        assert named(hasher, same) == by_definition(hasher, same) == expected


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
@pytest.mark.parametrize("unusual", [-1, -65_537, 2**31, 2**32, 2**64, -(2**63)])
def test_negative_and_very_large_ids_have_names_of_their_own(algorithm, unusual, path):
    hasher = BlockHasher(algorithm, 4, "0")
    token_ids = [1, 2, unusual, 4] * 3
    names = named(hasher, token_ids)
    assert names == by_definition(hasher, token_ids)
    for other in (unusual % 2**32, unusual % 2**16, abs(unusual) + 1):
        assert other == unusual or named(hasher, [1, 2, other, 4])[0] != names[0]


@pytest.mark.parametrize("token_ids", [[1, 2, 3.0, 4], [1, 2, "3", 4], [1, 2, None, 4]], ids=["float", "text", "none"])
def test_what_is_no_integer_is_refused(token_ids, path):
    with pytest.raises(TypeError):
        named(BlockHasher("sha256", 4, "0"), token_ids)
    with pytest.raises(TypeError):
        hash_block_tokens(get_hash_function("sha256"), b"", token_ids)


# Pickle's trap


def test_with_pickle_the_same_image_twice_in_a_block_may_have_two_names(path):
    """Equal identifiers, one object or two: SHA-256 over pickle tells them apart, over CBOR it cannot."""
    copy = "".join(["image-", "1"])
    shared = CacheIdentity(mm_items=(MultimodalItem("image-1", 0, 3), MultimodalItem("image-1", 4, 3)))
    copied = CacheIdentity(mm_items=(MultimodalItem("image-1", 0, 3), MultimodalItem(copy, 4, 3)))
    assert shared == copied
    token_ids = list(range(16))
    for algorithm, equal in (("sha256", False), ("xxhash", False), ("sha256_cbor", True), ("xxhash_cbor", True)):
        hasher = BlockHasher(algorithm, 8, "0")
        assert (named(hasher, token_ids, shared)[0] == named(hasher, token_ids, copied)[0]) is equal


# Keys and events


def test_a_group_id_is_four_bytes_behind_the_name():
    name = BlockHasher("sha256", 4, "0").none_hash
    key = make_block_hash_with_group_id(name, 258)
    assert key == name + b"\x00\x00\x01\x02"
    assert split_block_hash_with_group_id(key) == (name, 258)
    assert make_block_hash_with_group_id(name, 0) != make_block_hash_with_group_id(name, 1)
    for group_id in (-1, 2**32):
        with pytest.raises(OverflowError):
            make_block_hash_with_group_id(name, group_id)


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
def test_an_event_carries_the_last_eight_bytes(algorithm):
    name = BlockHasher(algorithm, 4, "0").none_hash
    assert event_block_hash(name) == int(name.hex()[-16:], 16)
    assert event_block_hash(name) == int.from_bytes(name, "big") & (2**64 - 1)


def test_a_coarser_block_is_named_by_its_last_fine_one():
    fine = named(BlockHasher("sha256", 16, "0"), list(range(16 * 7)))
    assert coarser_block_hashes(fine, 2) == [fine[1], fine[3], fine[5]]
    assert coarser_block_hashes(fine, 1) == fine
    with pytest.raises(ValueError, match="scale is 0"):
        coarser_block_hashes(fine, 0)


# Refusals


def test_an_unknown_algorithm_is_named_with_the_accepted_ones():
    for open_it in (get_hash_function, lambda name: BlockHasher(name, 16)):
        with pytest.raises(ConfigError, match="md5.*sha256, sha256_cbor, xxhash, xxhash_cbor"):
            open_it("md5")


@pytest.mark.parametrize("package, algorithm", [("xxhash", "xxhash"), ("xxhash", "xxhash_cbor"), ("cbor2", "sha256_cbor")])
def test_a_missing_package_is_named_and_the_others_go_on(monkeypatch, package, algorithm):
    monkeypatch.setitem(sys.modules, package, None)
    hash_function = get_hash_function(algorithm)  # as with vLLM, known without its package
    with pytest.raises(MissingPackage, match=f"pip install {package}"):
        hash_function(("parent", (1,), None))
    with pytest.raises(MissingPackage, match=f"pip install {package}"):
        BlockHasher(algorithm, 16)
    assert len(named(BlockHasher("sha256", 16), list(range(2_000)))) == 125
