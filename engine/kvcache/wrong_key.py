"""Caches whose keys lack something, on purpose: to show what each part of a key is for.

    right    name(i) = H((name(i - 1), tokens of block i, extra keys of block i))
    parent   name(i) = H((NONE_HASH,   tokens of block i, extra keys of block i))     equal blocks behind any past are one
    lora     ... without the adapter among the extra keys; images, salt, embeddings likewise
             image_offsets: with the images and without where they begin, so that one at two places of a block is one
    bits     ... and of every name only the last few bits: different blocks get one name by accident

The radix cache has no names: what is left out there is the adapter or salt of the tree's name space, or the content
that stands for an image or an embedding. Its paths always contain the past.

Only the key loses the part. The request is computed with its adapter and its embeddings; what it finds under the wrong
key was computed without them, or with others. Nothing notices: that is the lesson.

EngineConfig's `leave_out_of_key` and `hash_bits` choose these classes; see open_kv_cache.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

from engine.kvcache.block_hash import BlockHash, BlockHasher
from engine.kvcache.cache_identity import CacheIdentity
from engine.kvcache.radix_cache import RadixPrefixCache
from engine.request import Request

# What CacheIdentity says when it says nothing, by the part's name in EngineConfig.
_NOTHING: dict[str, dict[str, Any]] = {
    "lora": {"lora": None},
    "images": {"mm_items": ()},
    "salt": {"cache_salt": None},
    "embeddings": {"prompt_embeds": None},
}


def without(identity: CacheIdentity, part: str | None) -> CacheIdentity:
    """An identity that lacks one part: "lora", "images", "salt" or "embeddings"; itself for any other."""
    return replace(identity, **_NOTHING[part]) if part in _NOTHING else identity


class WrongBlockHasher(BlockHasher):
    """BlockHasher without a part of the key, or with names of few bits.

    left_out  one of KEY_PARTS, or None
    bits      of each name that are kept, its last ones; the others are zero. None: all
    """

    def __init__(
        self, algorithm: str, block_size: int, left_out: str | None, bits: int | None = None, none_hash_seed: str | None = None
    ) -> None:
        super().__init__(algorithm, block_size, none_hash_seed)
        self._left_out = left_out
        self._mask = None if bits is None else (1 << bits) - 1

    def extend(
        self, block_hashes: list[BlockHash], token_ids: Sequence[int], identity: CacheIdentity, exact_ints: bool = False
    ) -> None:
        """As BlockHasher's, block by block."""
        size, identity = self.block_size, without(identity, self._left_out)
        for start in range(len(block_hashes) * size, len(token_ids) // size * size, size):
            parent = block_hashes[-1] if block_hashes and self._left_out != "parent" else self.none_hash
            extra_keys = identity.extra_keys(start, start + size)
            if extra_keys is not None and self._left_out == "image_offsets":
                extra_keys = tuple(key[:2] if key[0] == "mm" else key for key in extra_keys)
            name = self.hash_block(parent, token_ids[start : start + size], extra_keys, exact_ints)
            block_hashes.append(self._cut(name))

    def _cut(self, name: BlockHash) -> BlockHash:
        if self._mask is None:
            return name
        # As long as before: whoever reads a name finds it where names are.
        return BlockHash((int.from_bytes(name, "big") & self._mask).to_bytes(len(name), "big"))


class WrongRadixCache(RadixPrefixCache):
    """RadixPrefixCache without a part of the identity: `left_out`. The other arguments are its own."""

    def __init__(self, left_out: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._left_out = left_out

    def _identity(self, request: Request) -> CacheIdentity:
        return without(request.identity, self._left_out)
