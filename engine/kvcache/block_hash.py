"""The name of a full block: a hash over its parent's name, its tokens and its extra keys.

    name(i) = H((name(i - 1), tokens of block i, extra keys of block i)),   name(-1) = NONE_HASH

Because the parent's name goes in, a name stands for the *whole* prefix up to the block's end. Without it two
prompts whose block i happens to hold the same tokens would share K/V that depend on different pasts.

Four algorithms: a serialisation (pickle, or canonical CBOR) and a digest (SHA-256, or 128-bit XXH3). Pickle
writes a repeated *object* as a back reference, so equal values can have different digests; CBOR cannot.

Source: vLLM 0.32.0, utils/hashing.py and v1/core/kv_cache_utils.py; digests are equal to vLLM's, byte for byte.
"""

from __future__ import annotations

import os
import pickle
from hashlib import sha256
from typing import Any, Callable, NewType, Sequence

from engine.config import HASH_ALGORITHMS
from engine.errors import ConfigError, MissingPackage
from engine.kvcache.cache_identity import CacheIdentity

BlockHash = NewType("BlockHash", bytes)
HashFunction = Callable[[Any], bytes]

# Deterministic for SHA-256, so that independent processes name blocks alike.
DEFAULT_NONE_HASH_SEED = "vllm-none-hash"


def _sha256_pickle(value: Any) -> bytes:
    return sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()


def _sha256_cbor(value: Any) -> bytes:
    return sha256(_cbor(value)).digest()


def _xxhash_pickle(value: Any) -> bytes:
    return _xxh3_128(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))


def _xxhash_cbor(value: Any) -> bytes:
    return _xxh3_128(_cbor(value))


def _cbor(value: Any) -> bytes:
    try:
        import cbor2
    except ModuleNotFoundError:
        raise MissingPackage("the *_cbor hash algorithms need cbor2: pip install cbor2") from None
    return cbor2.dumps(value, canonical=True)


def _xxh3_128(data: bytes) -> bytes:
    try:
        import xxhash
    except ModuleNotFoundError:
        raise MissingPackage("the xxhash algorithms need xxhash: pip install xxhash") from None
    return xxhash.xxh3_128_digest(data)


_HASH_FUNCTIONS: dict[str, HashFunction] = {
    "sha256": _sha256_pickle,
    "sha256_cbor": _sha256_cbor,
    "xxhash": _xxhash_pickle,
    "xxhash_cbor": _xxhash_cbor,
}


def get_hash_function(algorithm: str) -> HashFunction:
    """The function from a value to its digest: 32 bytes for sha256*, 16 for xxhash*.

    Raises ConfigError for an unknown name; MissingPackage at the first call when its package is absent.
    """
    if algorithm not in _HASH_FUNCTIONS:
        raise ConfigError("prefix_caching_hash_algo", algorithm, ", ".join(HASH_ALGORITHMS))
    return _HASH_FUNCTIONS[algorithm]


def resolve_none_hash_seed(algorithm: str) -> str:
    """The text the chain starts from.

    PYTHONHASHSEED when it is set (even to nothing), taken literally. Else a fixed text for SHA-256, and a random one
    for XXH3: with a predictable start, colliding blocks for a non-cryptographic hash could be computed in advance.
    """
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is not None:
        return seed
    if algorithm.startswith("xxhash"):
        return os.urandom(32).hex()
    return DEFAULT_NONE_HASH_SEED


def hash_block_tokens(
    hash_function: HashFunction,
    parent_block_hash: BlockHash | bytes,
    block_token_ids: Sequence[int],
    extra_keys: tuple[Any, ...] | None = None,
) -> BlockHash:
    """The name of one full block.

    parent_block_hash  name of the block before, or the chain's start (NONE_HASH)
    block_token_ids    [block_size], Python ints: numpy integers would pickle differently
    extra_keys         from CacheIdentity.extra_keys
    """
    return BlockHash(hash_function((parent_block_hash, tuple(block_token_ids), extra_keys)))


class BlockHasher:
    """Names a request's full blocks, growing the list as tokens arrive.

    One hasher serves all requests of an engine; it holds the algorithm, the block size and the chain's start.
    """

    def __init__(self, algorithm: str, block_size: int, none_hash_seed: str | None = None) -> None:
        """none_hash_seed: the chain's start text; None resolves it as `resolve_none_hash_seed` says."""
        self.algorithm = algorithm
        self.block_size = block_size
        self.hash_function = get_hash_function(algorithm)
        self.none_hash = BlockHash(
            self.hash_function(resolve_none_hash_seed(algorithm) if none_hash_seed is None else none_hash_seed)
        )

    def extend(self, block_hashes: list[BlockHash], token_ids: Sequence[int], identity: CacheIdentity) -> None:
        """Append the names of all full blocks of `token_ids` that `block_hashes` does not name yet."""
        block_size = self.block_size
        parent = block_hashes[-1] if block_hashes else self.none_hash
        plain = identity.is_plain
        start = len(block_hashes) * block_size
        # A partial block has no name: its content would change under it.
        for end in range(start + block_size, len(token_ids) + 1, block_size):
            extra_keys = None if plain else identity.extra_keys(start, end)
            parent = hash_block_tokens(self.hash_function, parent, token_ids[start:end], extra_keys)
            block_hashes.append(parent)
            start = end
