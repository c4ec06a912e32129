"""Extra keys: what besides tokens names a block, in vLLM's tagged shape and order."""

from __future__ import annotations

import hashlib

import pytest

from engine.kvcache.cache_identity import CacheIdentity, LoRA, MultimodalItem

IMAGES = (MultimodalItem("hash1", 0, 5), MultimodalItem("hash2", 10, 5))


@pytest.mark.parametrize(
    ("start", "end", "keys"),
    [
        (0, 5, (("mm", "hash1", 0),)),
        (3, 8, (("mm", "hash1", -3),)),
        (6, 10, None),
        (0, 15, (("mm", "hash1", 0), ("mm", "hash2", 10))),
        (15, 20, None),
    ],
)
def test_images_enter_the_blocks_they_overlap_with_their_offset(start, end, keys):
    assert CacheIdentity(mm_items=IMAGES).extra_keys(start, end) == keys


def test_keys_come_in_the_order_lora_image_salt_embeddings():
    embeds = (b"aa", b"bb", b"cc")
    identity = CacheIdentity(LoRA("name", "/path"), IMAGES, "pepper", embeds)
    assert identity.extra_keys(0, 2) == (
        ("lora", "name", "/path"),
        ("mm", "hash1", 0),
        ("cache_salt", "pepper"),
        ("prompt_embeds", hashlib.sha256(b"aabb").digest()),
    )


def test_the_salt_is_in_the_first_block_only_and_the_adapter_in_every_block():
    identity = CacheIdentity(LoRA("name", "/path"), cache_salt="pepper")
    assert identity.extra_keys(16, 32) == (("lora", "name", "/path"),)


def test_no_keys_are_none_never_an_empty_tuple():
    assert CacheIdentity().extra_keys(0, 16) is None
    assert CacheIdentity(cache_salt="").extra_keys(0, 16) is None


def test_embeddings_key_blocks_past_the_prompt_too():
    assert CacheIdentity(prompt_embeds=(b"a",)).extra_keys(16, 32) == (("prompt_embeds", hashlib.sha256(b"").digest()),)


def test_a_salt_never_shows_in_a_repr():
    identity = CacheIdentity(cache_salt="pepper")
    assert "pepper" not in repr(identity) + repr(identity.namespace)


def test_placeholders_of_different_images_have_different_content_ids_in_the_tree():
    ids = [1, 7, 7, 7, 2]
    cat = CacheIdentity(mm_items=(MultimodalItem("cat", 1, 3),)).content_ids(ids)
    dog = CacheIdentity(mm_items=(MultimodalItem("dog", 1, 3),)).content_ids(ids)
    assert cat[0] == dog[0] == 1 and cat[4] == dog[4] == 2
    assert cat[1] != dog[1] and cat[1] < 0 and dog[1] < 0
    assert CacheIdentity().content_ids(ids) is ids


def test_overlapping_images_are_refused():
    with pytest.raises(ValueError, match="overlap"):
        CacheIdentity(mm_items=(MultimodalItem("a", 0, 5), MultimodalItem("b", 4, 2)))
