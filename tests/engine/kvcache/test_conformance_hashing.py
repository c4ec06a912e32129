"""Names of blocks, with the numbers of vLLM's own unit tests: items 5 to 18 of tests/CONFORMANCE.md."""

from __future__ import annotations

from hashlib import sha256

import pytest

from engine.config import HASH_ALGORITHMS
from engine.kvcache.block_hash import BlockHasher, get_hash_function, hash_block_tokens
from engine.kvcache.cache_identity import CacheIdentity, LoRA, MultimodalItem
from engine.request import Request

TWO_IMAGES = (MultimodalItem("hash1", 0, 3), MultimodalItem("hash2", 3, 3))


def hashed(token_ids, block_size=3, algorithm="sha256", **identity):
    """(the names of a request's full blocks, the hash function, the chain's start)."""
    hasher = BlockHasher(algorithm, block_size, "0")
    return Request("r", token_ids, block_hasher=hasher, **identity).block_hashes, hasher.hash_function, hasher.none_hash


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
def test_a_name_is_the_hash_of_parent_tokens_and_keys_in_one_tuple(algorithm):
    hash_function = get_hash_function(algorithm)
    name = hash_block_tokens(hash_function, b"123", (1, 2, 3), ("key1", "key2"))
    assert name == hash_function((b"123", (1, 2, 3), ("key1", "key2")))


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
def test_six_tokens_in_blocks_of_three_have_two_names_without_extra_keys(algorithm):
    names, hash_function, start = hashed(range(6), algorithm=algorithm)
    first = hash_function((start, (0, 1, 2), None))
    assert names == [first, hash_function((first, (3, 4, 5), None))]


@pytest.mark.parametrize("algorithm", HASH_ALGORITHMS)
def test_each_image_is_in_the_name_of_the_block_it_fills(algorithm):
    names, hash_function, start = hashed(range(6), algorithm=algorithm, mm_items=TWO_IMAGES)
    first = hash_function((start, (0, 1, 2), (("mm", "hash1", 0),)))
    assert names == [first, hash_function((first, (3, 4, 5), (("mm", "hash2", 0),)))]


@pytest.mark.parametrize("algorithm", ["sha256", "xxhash_cbor"])
@pytest.mark.parametrize("first_part", range(1, 16))
def test_appended_tokens_give_the_names_of_a_fresh_request_with_several_images_in_a_block(algorithm, first_part):
    # Three images, two of them within the second block of four; the last reaches into the outputs.
    images = (MultimodalItem("one", 1, 2), MultimodalItem("two", 4, 1), MultimodalItem("three", 6, 7))
    hasher = BlockHasher(algorithm, 4, "0")
    grown = Request("r", range(first_part), block_hasher=hasher, mm_items=images)
    for token_id in range(first_part, 16):
        grown.append_output_token_ids([token_id])
    assert grown.block_hashes == Request("r", range(16), block_hasher=hasher, mm_items=images).block_hashes
    assert len(set(grown.block_hashes)) == 4


def test_another_first_image_gives_all_later_blocks_other_names():
    one, _, _ = hashed(range(9), mm_items=TWO_IMAGES)
    other, _, _ = hashed(range(9), mm_items=(MultimodalItem("hash3", 0, 3), TWO_IMAGES[1]))
    assert len(one) == 3 and all(name != its for name, its in zip(one, other, strict=True))


def test_embeddings_enter_as_the_digest_of_the_blocks_slice_and_differ_with_their_content():
    embeds = [bytes([position]) * 4 for position in range(5)]
    names, hash_function, start = hashed([0] * 6, prompt_embeds=embeds)
    first = hash_function((start, (0, 0, 0), (("prompt_embeds", sha256(b"".join(embeds[:3])).digest()),)))
    assert names == [first, hash_function((first, (0, 0, 0), (("prompt_embeds", sha256(b"".join(embeds[3:])).digest()),)))]
    changed, _, _ = hashed([0] * 6, prompt_embeds=[*embeds[:4], b"else"])
    assert changed[0] == names[0] and changed[1] != names[1]


def test_images_come_before_embeddings_in_a_name():
    embeds = [bytes([position]) * 4 for position in range(6)]
    names, hash_function, start = hashed(range(6), mm_items=TWO_IMAGES, prompt_embeds=embeds)
    keys = [
        (("mm", f"hash{number + 1}", 0), ("prompt_embeds", sha256(b"".join(embeds[number * 3 : number * 3 + 3])).digest()))
        for number in range(2)
    ]
    first = hash_function((start, (0, 1, 2), keys[0]))
    assert names == [first, hash_function((first, (3, 4, 5), keys[1]))]


def test_an_adapter_is_in_every_block_with_its_name_and_path_and_absent_without_one():
    for start in (0, 3, 300):
        assert CacheIdentity(lora=LoRA("a", "/a")).extra_keys(start, start + 3) == (("lora", "a", "/a"),)
        assert CacheIdentity().extra_keys(start, start + 3) is None


def test_a_salt_and_an_adapter_of_one_text_have_different_names():
    salted, _, _ = hashed(range(6), cache_salt="foo")
    adapted, _, _ = hashed(range(6), lora=LoRA("foo", "foo"))
    assert not set(salted) & set(adapted)


def test_an_adapter_that_moves_to_another_path_has_other_names():
    before, _, _ = hashed(range(6), lora=LoRA("a", "/v1"))
    after, _, _ = hashed(range(6), lora=LoRA("a", "/v2"))
    assert len(before) == 2 and not set(before) & set(after)
