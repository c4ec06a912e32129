"""The name of a full block: a hash over its parent's name, its tokens and its extra keys.

    name(i) = H((name(i - 1), tokens of block i, extra keys of block i)),   name(-1) = NONE_HASH

Because the parent's name goes in, a name stands for the *whole* prefix up to the block's end. Without it two
prompts whose block i happens to hold the same tokens would share K/V that depend on different pasts.

Four algorithms: a serialisation (pickle, or canonical CBOR) and a digest (SHA-256, or 128-bit XXH3). Names made by
pickle depend on which equal objects are one object (see `block_encoding.PickleEncoding`); CBOR's do not.

Source: vLLM 0.32.0, utils/hashing.py and v1/core/kv_cache_utils.py; digests are equal to vLLM's, byte for byte.
"""

from __future__ import annotations

import os
from hashlib import sha256
from operator import index
from typing import Any, Callable, NamedTuple, NewType, Sequence

from engine.config import HASH_ALGORITHMS
from engine.errors import ConfigError, MissingPackage
from engine.kvcache.block_encoding import BlockEncoding, CborEncoding, PickleEncoding, Run
from engine.kvcache.cache_identity import CacheIdentity

BlockHash = NewType("BlockHash", bytes)
BlockHashWithGroupId = NewType("BlockHashWithGroupId", bytes)
HashFunction = Callable[[Any], bytes]

# Deterministic for SHA-256, so that independent processes name blocks alike.
DEFAULT_NONE_HASH_SEED = "vllm-none-hash"

# A copy of a fresh digest is a little cheaper than a new one: OpenSSL is not asked for the algorithm again.
_new_sha256 = sha256().copy


def _sha256(data: bytes) -> bytes:
    digest = _new_sha256()
    digest.update(data)
    return digest.digest()


def _open_sha256() -> Callable[[bytes], bytes]:
    return _sha256


def _open_xxh3_128() -> Callable[[bytes], bytes]:
    try:
        import xxhash
    except ModuleNotFoundError:
        raise MissingPackage("the xxhash algorithms need xxhash: pip install xxhash") from None
    return xxhash.xxh3_128_digest


class _Algorithm(NamedTuple):
    encoding: type[BlockEncoding]
    open_digest: Callable[[], Callable[[bytes], bytes]]
    name_bytes: int


_ALGORITHMS = {
    "sha256": _Algorithm(PickleEncoding, _open_sha256, 32),
    "sha256_cbor": _Algorithm(CborEncoding, _open_sha256, 32),
    "xxhash": _Algorithm(PickleEncoding, _open_xxh3_128, 16),
    "xxhash_cbor": _Algorithm(CborEncoding, _open_xxh3_128, 16),
}


def _algorithm(name: str) -> _Algorithm:
    if name not in _ALGORITHMS:
        raise ConfigError("prefix_caching_hash_algo", name, ", ".join(HASH_ALGORITHMS))
    return _ALGORITHMS[name]


def get_hash_function(algorithm: str) -> HashFunction:
    """The function from a value to its digest: 32 bytes for sha256*, 16 for xxhash*.

    Raises ConfigError for an unknown name; MissingPackage at the first call when its package is absent.
    """
    chosen = _algorithm(algorithm)
    return lambda value: chosen.open_digest()(chosen.encoding.open_serialiser()(value))


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
    """The name of one full block: the definition, which `BlockHasher` computes faster.

    parent_block_hash  name of the block before, or the chain's start (NONE_HASH)
    block_token_ids    [block_size], integers, taken by value: 7 and numpy's 7 are one token
    extra_keys         from CacheIdentity.extra_keys

    Raises TypeError for an id that is no integer. vLLM does not take ids by value: numpy integers have other names
    there under pickle and are refused under CBOR.
    """
    return BlockHash(hash_function((parent_block_hash, tuple(map(index, block_token_ids)), extra_keys)))


def make_block_hash_with_group_id(block_hash: BlockHash, group_id: int) -> BlockHashWithGroupId:
    """A block's key in a pool that serves several groups of layers: its name and the group, four bytes, big endian.

    Raises OverflowError for a group that is negative or has no room in four bytes.
    """
    return BlockHashWithGroupId(block_hash + group_id.to_bytes(4, "big"))


def split_block_hash_with_group_id(key: BlockHashWithGroupId) -> tuple[BlockHash, int]:
    """The name and the group of a key made by `make_block_hash_with_group_id`."""
    return BlockHash(key[:-4]), int.from_bytes(key[-4:], "big")


def event_block_hash(block_hash: BlockHash) -> int:
    """A block's name as KV events carry it by default: its last eight bytes, as an unsigned number."""
    return int.from_bytes(block_hash[-8:], "big")


def coarser_block_hashes(block_hashes: Sequence[BlockHash], scale: int) -> Sequence[BlockHash]:
    """The names of blocks `scale` times as large: each is the name of the last small block in it.

    That name covers the whole prefix already, so nothing is hashed again. Raises ValueError for a scale below 1.
    """
    if scale < 1:
        raise ValueError(f"scale is {scale!r}; accepted: a whole number from 1")
    return block_hashes[scale - 1 :: scale]


class BlockHasher:
    """Names a request's full blocks, growing the list as tokens arrive.

    One hasher serves all requests of an engine; it holds the algorithm, the block size and the chain's start.
    """

    def __init__(self, algorithm: str, block_size: int, none_hash_seed: str | None = None) -> None:
        """none_hash_seed: the chain's start text; None resolves it as `resolve_none_hash_seed` says."""
        chosen = _algorithm(algorithm)
        self.algorithm = algorithm
        self.block_size = block_size
        self.hash_function = get_hash_function(algorithm)
        self.none_hash = BlockHash(
            self.hash_function(resolve_none_hash_seed(algorithm) if none_hash_seed is None else none_hash_seed)
        )
        self._digest = chosen.open_digest()
        self._encoding = chosen.encoding(block_size, chosen.name_bytes)

    def serialise_block(
        self, parent: BlockHash, block_token_ids: Sequence[int], extra_keys: tuple[Any, ...] | None = None
    ) -> bytes:
        """The bytes whose digest is the block's name."""
        return self._encoding.block(parent, block_token_ids, extra_keys)

    def hash_block(
        self,
        parent: BlockHash,
        block_token_ids: Sequence[int],
        extra_keys: tuple[Any, ...] | None = None,
        exact_ints: bool = False,
    ) -> BlockHash:
        """The name of one full block; equal to `hash_block_tokens`.

        exact_ints  every id is a Python integer, as a Request keeps them; with others the name would be a wrong one
        """
        written = self._encoding.block(parent, block_token_ids, extra_keys, exact_ints)
        return self._digest(written)  # type: ignore[return-value]

    def extend(
        self, block_hashes: list[BlockHash], token_ids: Sequence[int], identity: CacheIdentity, exact_ints: bool = False
    ) -> None:
        """Append the names of all full blocks of `token_ids` that `block_hashes` does not name yet.

        A partial block has no name: its content would change under it. Ids are taken by value, as `hash_block_tokens`
        takes them; TypeError for one that is no integer. exact_ints: as for `hash_block`.
        """
        block_size = self.block_size
        num_known, num_blocks = len(block_hashes), len(token_ids) // block_size
        if num_blocks <= num_known:
            return
        if num_blocks == num_known + 1:  # a decoding request's block
            start, end = num_known * block_size, num_blocks * block_size
            extra_keys = identity.extra_keys(start, end) if start < identity.keyless_from else None
            parent = block_hashes[-1] if num_known else self.none_hash
            block_hashes.append(self.hash_block(parent, token_ids[start:end], extra_keys, exact_ints))
            return
        num_keyed = min(-(-identity.keyless_from // block_size), num_blocks)
        self._extend(block_hashes, token_ids, num_keyed, identity, exact_ints)
        self._extend(block_hashes, token_ids, num_blocks, None, exact_ints)

    def _extend(
        self,
        block_hashes: list[BlockHash],
        token_ids: Sequence[int],
        num_blocks: int,
        identity: CacheIdentity | None,
        exact_ints: bool,
    ) -> None:
        """Name blocks up to `num_blocks` in all; identity: None where tokens alone name them."""
        start, end = len(block_hashes) * self.block_size, num_blocks * self.block_size
        if end - start >= max(self._encoding.min_run_tokens, 1) and self._encoding.has_layout():
            runs = self._encoding.runs(token_ids[start:end])
            if runs is not None:
                for run in runs:
                    if identity is None:
                        self._extend_by_run(block_hashes, run)
                    else:
                        self._extend_by_run_with_keys(block_hashes, run, token_ids, identity)
                return
        parent = block_hashes[-1] if block_hashes else self.none_hash
        for number in range(len(block_hashes), num_blocks):
            start, end = number * self.block_size, (number + 1) * self.block_size
            extra_keys = None if identity is None else identity.extra_keys(start, end)
            parent = self.hash_block(parent, token_ids[start:end], extra_keys, exact_ints)
            block_hashes.append(parent)

    def _extend_by_run(self, block_hashes: list[BlockHash], run: Run) -> None:
        """The innermost loop: per block three pieces are joined and digested, and nothing else is made."""
        parent = block_hashes[-1] if block_hashes else self.none_hash
        append, heads, buffer, start = block_hashes.append, self._encoding.heads(run.largest), run.buffer, 0
        if self._digest is _sha256:
            new = _new_sha256
            for end in run.ends:
                digest = new()
                digest.update(heads[end - start] + parent + buffer[start:end])
                parent = digest.digest()
                append(parent)
                start = end
        else:
            digest_of = self._digest
            for end in run.ends:
                parent = digest_of(heads[end - start] + parent + buffer[start:end])
                append(parent)
                start = end

    def _extend_by_run_with_keys(
        self, block_hashes: list[BlockHash], run: Run, token_ids: Sequence[int], identity: CacheIdentity
    ) -> None:
        encoding = self._encoding
        parent = block_hashes[-1] if block_hashes else self.none_hash
        without_keys = encoding.keys(None)
        for body in run.bodies():
            start = len(block_hashes) * self.block_size
            end = start + self.block_size
            extra_keys = identity.extra_keys(start, end)
            if extra_keys is not None:
                body = body[: len(body) - len(without_keys)] + encoding.keys(extra_keys)
            if encoding.fits(len(body)):
                message = encoding.head(len(body)) + parent + body
            else:
                message = encoding.block(parent, token_ids[start:end], extra_keys)
            parent = self._digest(message)
            block_hashes.append(parent)
