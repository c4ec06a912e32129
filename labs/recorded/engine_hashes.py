"""Recorded hashes: names that vLLM 0.32.0 gave to blocks, and SGLang 0.5.23 to pages, with what they were made of.

Both files come from the engines' own functions, run for the purpose and derived a second time from the standard library.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from engine.kvcache.block_hash import DEFAULT_NONE_HASH_SEED, get_hash_function, hash_block_tokens
from engine.kvcache.cache_identity import Namespace
from engine.kvcache.page_hash import PageHash, hash_pages

# Tags are one object each, as in running code: pickle writes an object it met before as a reference.
_TAGS = {tag: tag for tag in ("lora", "mm", "cache_salt", "prompt_embeds")}


@dataclass(frozen=True)
class RecordedBlockHash:
    """One call of vLLM's, and its answer."""

    name: str  # of the entry
    algorithm: str
    seed: str | None  # PYTHONHASHSEED; None: it was not set
    is_none_hash: bool  # the start of a chain, not a block
    parent: bytes | None  # None: the start of the chain
    token_ids: tuple[int, ...]
    extra_keys: Any
    digest: str | None  # hexadecimal; None: a random one each time

    @property
    def none_hash(self) -> bytes:
        """The start of this entry's chain, by our functions."""
        seed = DEFAULT_NONE_HASH_SEED if self.seed is None else self.seed
        return get_hash_function(self.algorithm)(seed)

    @property
    def parent_or_start(self) -> bytes:
        return self.none_hash if self.parent is None else self.parent

    def reproduce(self) -> str:
        """The digest by our functions, hexadecimal."""
        if self.is_none_hash:
            return self.none_hash.hex()
        hash_function = get_hash_function(self.algorithm)
        return hash_block_tokens(hash_function, self.parent_or_start, self.token_ids, self.extra_keys).hex()


@dataclass(frozen=True)
class RecordedPageHashes:
    """The pages of one prompt, as SGLang names them."""

    name: str
    token_ids: tuple[int, ...]
    page_size: int
    namespace: Namespace
    bigrams: bool
    seed: str | None  # hexadecimal, of the name space; None without one
    digests: tuple[str, ...]  # hexadecimal
    event_hashes: tuple[int, ...]

    def reproduce(self) -> list[PageHash]:
        """The digests by our functions."""
        return hash_pages(self.token_ids, self.page_size, self.namespace, bigrams=self.bigrams)


def vllm_block_hashes() -> list[RecordedBlockHash]:
    """All recorded entries of vLLM 0.32.0, those with a random answer included."""
    return [
        RecordedBlockHash(
            name=entry["id"],
            algorithm=entry["algo"],
            seed=entry["seed"],
            is_none_hash=entry["kind"] == "none_hash",
            parent=None if entry.get("parent") in (None, "NONE_HASH") else bytes.fromhex(entry["parent"]),
            token_ids=tuple(entry.get("tokens", ())),
            extra_keys=_from_json(entry.get("extra_keys")),
            digest=entry["digest"],
        )
        for entry in _entries("vllm_0.32.0_block_hashes.json")
    ]


def sglang_page_hashes() -> list[RecordedPageHashes]:
    """All recorded entries of SGLang 0.5.23."""
    return [
        RecordedPageHashes(
            name=entry["id"],
            token_ids=tuple(entry["tokens"]),
            page_size=entry["page_size"],
            namespace=Namespace(entry["extra_key"], entry["cache_salt"]),
            bigrams=entry.get("bigram", False),
            seed=entry["seed_hex"],
            digests=tuple(entry["page_hashes"]),
            event_hashes=tuple(entry["event_int64"]),
        )
        for entry in _entries("sglang_0.5.23_page_hashes.json")
    ]


def _entries(file_name: str) -> list[dict[str, Any]]:
    text = (resources.files("labs.recorded") / file_name).read_text(encoding="utf-8")
    return json.loads(text)["vectors"]


def _from_json(value: Any) -> Any:
    """JSON arrays stand for tuples, {"bytes": hex} for bytes."""
    if isinstance(value, list):
        return tuple(_from_json(item) for item in value)
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"])
    return _TAGS.get(value, value) if isinstance(value, str) else value
