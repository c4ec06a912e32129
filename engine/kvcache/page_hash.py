"""SGLang's names for pages: what its storage tier and its KV events call a page of the radix cache.

    digest(i) = SHA-256(digest(i - 1) ‖ token ids of page i),   digest(-1) = the name space's seed, or nothing

The same chain as vLLM's block names over plainer bytes: ids of four bytes each, little endian, with no serialisation
around them. The radix tree finds pages by their tokens and needs no names.

Source: SGLang 0.5.23, mem_cache/cpp_utils/hash_binding.cpp and mem_cache/utils.py; digests are equal to SGLang's, byte
for byte.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from itertools import chain, pairwise
from typing import NewType, Sequence

from engine.kvcache.cache_identity import Namespace

PageHash = NewType("PageHash", bytes)


def hash_pages(
    token_ids: Sequence[int],
    page_size: int,
    namespace: Namespace = Namespace(None, None),
    *,
    bigrams: bool = False,
    seed: bytes | None = None,
) -> list[PageHash]:
    """The names of all pages, 32 bytes each; a last page that is not full has one too.

    token_ids  [num_tokens], from 0 to 2⁶⁴ − 1
    seed       in place of the name space's own, as for events
    bigrams    a position holds a token and its successor, as with speculative drafters: there is one position less

    Raises ValueError for an id or a page size out of range.
    """
    if page_size < 1:
        raise ValueError(f"page_size is {page_size!r}; accepted: a whole number from 1")
    positions = list(pairwise(token_ids)) if bigrams else [(token_id,) for token_id in token_ids]
    parent, hashes = namespace_seed(namespace) if seed is None else seed, []
    for start in range(0, len(positions), page_size):
        parent = sha256(parent + _page_bytes(list(chain(*positions[start : start + page_size])))).digest()
        hashes.append(PageHash(parent))
    return hashes


def namespace_seed(namespace: Namespace) -> bytes:
    """What stands in for the parent of a name space's first page; nothing where there is neither key nor salt."""
    extra_key, salt = namespace.extra_key, namespace.cache_salt or None
    if extra_key is None and salt is None:
        return b""
    return sha256(b"sglang-cache-namespace-v1" + _length_and_text(extra_key) + _length_and_text(salt)).digest()


def event_seed(namespace: Namespace) -> bytes:
    """The seed of the names in KV events: an older one where there is a salt, and then the extra key plays no part."""
    if namespace.cache_salt:
        return sha256(b"sglang-cache-salt-v1\0" + namespace.cache_salt.encode()).digest()
    return namespace_seed(namespace)


def event_page_hash(page_hash: PageHash) -> int:
    """A page's name as KV events carry it: its first eight bytes, as a signed number."""
    return int.from_bytes(page_hash[:8], "big", signed=True)


def _page_bytes(token_ids: list[int]) -> bytes:
    try:
        if max(token_ids) < 2**32:
            return struct.pack(f"<{len(token_ids)}I", *token_ids)
        return b"\xff" + struct.pack(f"<{len(token_ids)}Q", *token_ids)  # one large id widens its whole page
    except struct.error:
        raise ValueError("a token id is out of range; accepted: whole numbers from 0 to 2**64 - 1") from None


def _length_and_text(text: str | None) -> bytes:
    # With the length in front, ("ab", "c") and ("a", "bc") stay apart; with a mark, None and "".
    if text is None:
        return b"\x00"
    written = text.encode()
    return b"\x01" + len(written).to_bytes(8, "little") + written
