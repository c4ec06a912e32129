"""The recorded block hashes of vLLM 0.32.0, read."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import xxhash

from engine.kvcache.block_hash import DEFAULT_NONE_HASH_SEED, get_hash_function

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "vllm_0.32.0_block_hashes.json").read_text()
)["vectors"]
RECORDED = [vector for vector in VECTORS if vector["digest"] is not None]  # without a seed, xxhash starts at random
BLOCK_VECTORS = [vector for vector in RECORDED if vector["kind"] != "none_hash"]

DIGESTS = {
    name: (lambda data: sha256(data).digest()) if name.startswith("sha256") else xxhash.xxh3_128_digest
    for name in ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
}
# Tags are one object each, as in running code: pickle's digests depend on it.
TAGS = {"lora": "lora", "mm": "mm", "cache_salt": "cache_salt", "prompt_embeds": "prompt_embeds"}


def none_hash_of(vector: dict[str, Any]) -> bytes:
    return get_hash_function(vector["algo"])(DEFAULT_NONE_HASH_SEED if vector["seed"] is None else vector["seed"])


def parent_of(vector: dict[str, Any]) -> bytes:
    return none_hash_of(vector) if vector["parent"] == "NONE_HASH" else bytes.fromhex(vector["parent"])


def extra_keys_of(vector: dict[str, Any]) -> Any:
    return _from_json(vector["extra_keys"])


def _from_json(value: Any) -> Any:
    """JSON arrays stand for tuples, {"bytes": hex} for bytes."""
    if isinstance(value, list):
        return tuple(_from_json(item) for item in value)
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"])
    return TAGS.get(value, value) if isinstance(value, str) else value
