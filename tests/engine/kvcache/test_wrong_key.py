"""Keys that lack a part find what they should not, and nothing more; other parts still count."""

from __future__ import annotations

import pytest

from engine.config import KEY_PARTS, EngineConfig
from engine.errors import ConfigError
from engine.kvcache.block_hash import BlockHasher
from engine.kvcache.cache_identity import CacheIdentity, LoRA, MultimodalItem
from engine.kvcache.radix_cache import RadixPrefixCache
from engine.kvcache.wrong_key import WrongBlockHasher, without
from engine.llm_engine import LLMEngine
from engine.model.simulated_runner import SimulatedRunner
from engine.request import SamplingParams

PROMPT = list(range(100))
PAIRS = {
    "lora": ({"lora": LoRA("a", "/1")}, {"lora": LoRA("b", "/2")}),
    "images": ({"mm_items": [MultimodalItem("x", 20, 30)]}, {"mm_items": [MultimodalItem("y", 20, 30)]}),
    "salt": ({"cache_salt": "s"}, {"cache_salt": "t"}),
    "embeddings": ({"prompt_embeds": [b"1"] * 100}, {"prompt_embeds": [b"1"] * 20 + [b"2"] * 80}),
}
CACHES = pytest.mark.parametrize(
    "cache", [{"block_size": 16}, {"prefix_cache": "radix", "page_size": 1}, {"prefix_cache": "radix", "page_size": 16}], ids=str
)


def hits(requests, prompts=None, **fields) -> list[int]:
    engine = LLMEngine(EngineConfig(**fields), SimulatedRunner())
    prompts = prompts or [PROMPT] * len(requests)
    params = SamplingParams(max_tokens=1)
    return [engine.generate([prompt], params, **own)[0].num_cached_tokens for prompt, own in zip(prompts, requests)]


def names(hasher: BlockHasher, token_ids=PROMPT, identity=CacheIdentity()) -> list[bytes]:
    found: list = []
    hasher.extend(found, token_ids, identity)
    return found


@CACHES
@pytest.mark.parametrize("part", PAIRS)
@pytest.mark.parametrize("left_out", [None, *PAIRS])
def test_a_request_hits_the_other_s_blocks_exactly_when_their_difference_is_left_out(cache, part, left_out):
    unit = cache.get("block_size", cache.get("page_size"))
    # Images and embeddings differ from position 20 on, adapters and salts from the start.
    right = 20 // unit * unit if part in ("images", "embeddings") else 0
    expected = 99 // unit * unit if part == left_out else right
    assert hits(PAIRS[part], leave_out_of_key=left_out, **cache) == [0, expected]


def test_without_the_parent_equal_blocks_behind_other_pasts_are_one():
    first, second = [1] * 16 + [2] * 40, [3] * 16 + [2] * 40
    sent = [second[:17], first, second]
    assert hits([{}] * 3, sent) == [0, 0, 16]
    assert hits([{}] * 3, sent, leave_out_of_key="parent") == [0, 0, 48]


def test_a_block_may_come_twice_in_one_prompt_without_its_parent_in_the_name():
    assert hits([{}] * 3, [[7] * 100] * 3, leave_out_of_key="parent", num_gpu_blocks=20) == [0, 96, 96]


@pytest.mark.parametrize(
    ("num_tokens", "shift", "expected"),
    [
        (30, 8, 96),  # both are in blocks 1 to 3
        (28, 8, 48),  # the later one alone is in block 3
        (28, 12, 16),  # and the first alone in block 1
    ],
)
def test_without_offsets_an_image_at_two_places_is_one_as_far_as_the_same_blocks_hold_it(num_tokens, shift, expected):
    image = MultimodalItem("x", 20, num_tokens)
    twice = [{"mm_items": [image]}, {"mm_items": [image._replace(offset=20 + shift)]}]
    assert hits(twice) == [0, 16]
    assert hits(twice, leave_out_of_key="image_offsets") == [0, expected]
    other = {"mm_items": [image._replace(identifier="y")]}
    assert hits([twice[0], other], leave_out_of_key="image_offsets") == [0, 16], "another image is still another"


def test_names_of_eight_bits_collide_and_serve_another_prompt_s_block():
    hasher = WrongBlockHasher("sha256", 16, None, 8)
    seen: dict[bytes, list[int]] = {}
    number = 0
    while True:  # 256 names: found after some twenty prompts
        prompt = [number * 16 + index for index in range(16)]
        twin = seen.setdefault(names(hasher, prompt)[0], prompt)
        if twin is not prompt:
            break
        number += 1
    sent = [[*twin, 1], [*prompt, 2]]
    assert hits([{}] * 2, sent) == [0, 0] and hits([{}] * 2, sent, hash_bits=8) == [0, 16]


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"])
def test_nothing_left_out_names_blocks_as_the_right_hasher_does(algorithm):
    identity = CacheIdentity(LoRA("a", "/1"), (MultimodalItem("x", 5, 40),), "salt")
    right, wrong = BlockHasher(algorithm, 16, "seed"), WrongBlockHasher(algorithm, 16, None, None, "seed")
    assert names(wrong, identity=identity) == names(right, identity=identity)
    assert names(WrongBlockHasher(algorithm, 16, "images", None, "seed"), identity=identity) == names(
        right, identity=without(identity, "images")
    )


@pytest.mark.parametrize("bits", [1, 8, 13, 128])
def test_a_cut_name_keeps_its_length_and_its_last_bits(bits):
    for right, cut in zip(names(BlockHasher("sha256", 16, "s"))[:1], names(WrongBlockHasher("sha256", 16, None, bits, "s"))):
        assert len(cut) == len(right) and int.from_bytes(cut, "big") == int.from_bytes(right, "big") % 2**bits


def test_names_grow_as_tokens_arrive():
    hasher = WrongBlockHasher("sha256", 16, "salt", 64)
    whole, grown = names(hasher), []
    for end in range(0, 101, 7):
        hasher.extend(grown, PROMPT[:end], CacheIdentity(cache_salt="s"))
    hasher.extend(grown, PROMPT, CacheIdentity(cache_salt="s"))
    assert grown == whole


def test_the_right_caches_are_opened_unless_something_is_left_out():
    for fields in ({}, {"prefix_cache": "radix"}):
        engine = LLMEngine(EngineConfig(**fields), SimulatedRunner())
        assert type(engine._block_hasher) in (BlockHasher, type(None))
        assert type(engine.manager.prefix_cache).__name__ in ("HashPrefixCache", RadixPrefixCache.__name__)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"leave_out_of_key": "adapter"}, "leave_out_of_key is 'adapter'; accepted: " + ", ".join(KEY_PARTS)),
        ({"leave_out_of_key": "parent", "prefix_cache": "radix"}, "leave_out_of_key is 'parent'; accepted: lora, images, salt"),
        ({"leave_out_of_key": "image_offsets", "prefix_cache": "radix"}, "'image_offsets'; accepted: lora, images, salt, embeddings"),
        ({"leave_out_of_key": "lora", "enable_prefix_caching": False}, "leave_out_of_key is 'lora'; accepted: none"),
        ({"hash_bits": 0}, "hash_bits is 0; accepted: a whole number from 1 to 256"),
        ({"hash_bits": 129, "prefix_caching_hash_algo": "xxhash"}, "hash_bits is 129; accepted: a whole number from 1 to 128"),
        ({"hash_bits": 8, "prefix_cache": "radix"}, "hash_bits is 8; accepted: none"),
        ({"hash_bits": 8, "enable_prefix_caching": False}, "hash_bits is 8; accepted: none"),
    ],
)  # fmt: skip
def test_a_key_that_cannot_be_broken_so_is_named(fields, message):
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**fields)
