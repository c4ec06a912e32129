"""What must be in a block's name besides its tokens: adapter, images, salt, prompt embeddings.

Two prompts with equal token ids have equal K/V only if everything else that shapes K/V is equal too. Whatever
is left out of the key here is served to the wrong request, silently. Sampling parameters do not shape K/V and
are left out on purpose; so are the weights, which is why a weight update needs a cache reset.

The keys are tagged tuples, in the order LoRA, multimodal items, salt, prompt embeddings:

    ("lora", name, path)                 every block, prompt and output
    ("mm", identifier, offset - start)   each item that overlaps the block; negative when it began earlier
    ("cache_salt", salt)                 the first block only: the chain carries it to all later ones
    ("prompt_embeds", sha256(slice))     every block, while the request has prompt embeddings

Tags keep a salt "x" apart from an adapter named "x". Source: vLLM 0.32.0, v1/core/kv_cache_utils.py.
"""

from __future__ import annotations

import hashlib
import sys
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Sequence


class LoRA(NamedTuple):
    """A low-rank adapter; the path belongs to the key, so re-pointing a name at other weights misses."""

    name: str
    path: str


class MultimodalItem(NamedTuple):
    """An image or other item that fills `length` placeholder tokens from `offset` on."""

    identifier: str  # content hash; equal content, equal identifier
    offset: int
    length: int


class Namespace(NamedTuple):
    """The radix cache's name space: keys in different name spaces share nothing."""

    extra_key: str | None
    cache_salt: str | None

    def __repr__(self) -> str:
        # A salt in a log undoes its purpose.
        return f"Namespace({'salted' if self.cache_salt else 'unsalted'}, extra_key={self.extra_key!r})"


@dataclass(frozen=True)
class CacheIdentity:
    """Everything but the token ids that decides a request's K/V.

    `cache_salt` and the embeddings are kept out of `repr`: a salt in a log undoes its purpose.
    """

    lora: LoRA | None = None
    mm_items: tuple[MultimodalItem, ...] = ()  # sorted by offset, not overlapping
    cache_salt: str | None = field(default=None, repr=False)
    prompt_embeds: tuple[bytes, ...] | None = field(default=None, repr=False)  # raw tensor bytes per position

    def __post_init__(self) -> None:
        ends = [item.offset + item.length for item in self.mm_items]
        if any(item.offset < 0 or item.length < 1 for item in self.mm_items):
            raise ValueError("mm_items: each needs an offset of at least 0 and a length of at least 1")
        if any(item.offset < end for item, end in zip(self.mm_items[1:], ends)):
            raise ValueError("mm_items must be sorted by offset and must not overlap")

    @property
    def is_plain(self) -> bool:
        """True when tokens alone name the K/V."""
        return self.lora is None and not self.mm_items and not self.cache_salt and self.prompt_embeds is None

    @cached_property
    def keyless_from(self) -> int:
        """The position from which no block has extra keys; larger than any position when there is none."""
        if self.lora is not None or self.prompt_embeds is not None:
            return sys.maxsize
        if self.mm_items:
            return self.mm_items[-1].offset + self.mm_items[-1].length
        return 1 if self.cache_salt else 0

    def extra_keys(self, start: int, end: int) -> tuple[Any, ...] | None:
        """The keys of the block of tokens [start, end); None (never an empty tuple) when there are none."""
        # The tags are constants, one object each, and identifiers go in as the objects they are: under pickle that is part
        # of the name (block_encoding.PickleEncoding).
        keys: list[Any] = []
        if self.lora is not None:
            keys.append(("lora", self.lora.name, self.lora.path))
        if self.mm_items:
            # The first item that ends behind the block's start; those before it are done with.
            first = bisect_right(self.mm_items, start, key=lambda item: item.offset + item.length)
            for item in self.mm_items[first:]:
                if item.offset >= end:
                    break
                keys.append(("mm", item.identifier, item.offset - start))
        if start == 0 and self.cache_salt:
            keys.append(("cache_salt", self.cache_salt))
        if self.prompt_embeds is not None:
            # Blocks past the prompt have a short or empty slice, and still a key.
            keys.append(("prompt_embeds", hashlib.sha256(b"".join(self.prompt_embeds[start:end])).digest()))
        return tuple(keys) or None

    @property
    def namespace(self) -> Namespace:
        """The radix cache's name space: adapter and salt. Source: SGLang 0.5.23, managers/schedule_batch.py."""
        # The path is part of it for the same reason as above; NUL cannot occur in a path.
        extra_key = None if self.lora is None else f"{self.lora.name}\0{self.lora.path}"
        return Namespace(extra_key, self.cache_salt or None)

    def content_ids(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Token ids with every position whose K/V comes from an image or embedding replaced by a content id.

        The radix cache compares ids only, so placeholders must differ where their content does. Content ids are
        negative: they never equal a token id.
        """
        if not self.mm_items and self.prompt_embeds is None:
            return token_ids
        ids = list(token_ids)
        for item in self.mm_items:
            content_id = _content_id(item.identifier.encode())
            for position in range(item.offset, min(item.offset + item.length, len(ids))):
                ids[position] = content_id
        for position, embedding in enumerate(self.prompt_embeds or ()):
            if position < len(ids):
                ids[position] = _content_id(embedding)
        return ids


def _content_id(content: bytes) -> int:
    return -1 - (int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 2)
