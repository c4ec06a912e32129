"""EngineConfig: every choice that decides what the engine computes, checked when it is built.

Names are vLLM's where vLLM has one; `prefix_cache` and `page_size` are ours. A wrong value raises
ConfigError (a ValueError) that names the field, the value and the accepted range.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from engine.errors import ConfigError

HASH_ALGORITHMS = ("sha256", "sha256_cbor", "xxhash", "xxhash_cbor")
PREFIX_CACHES = ("hash", "radix")
POLICIES = ("fcfs", "priority", "lpm", "dfs-weight")
PUBLISH_RULES = ("auto", "allocation", "step")
RADIX_EVICTION_POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru")
KEY_PARTS = ("parent", "lora", "images", "image_offsets", "salt", "embeddings")
PARTS_OF_NAMES = ("parent", "image_offsets")  # the radix cache has no names: its paths hold both
ATTENTION_BACKENDS = ("auto", "sdpa", "flashinfer", "triton")
DTYPES = ("auto", "bfloat16", "float16", "float32")

# Holds ten unrelated 2,200-token requests with room to spare: no lab that is not about eviction evicts.
DEFAULT_POOL_TOKENS = 32_768


_BOOLEANS = (
    "enable_chunked_prefill", "scheduler_reserve_full_isl", "enable_prefix_caching", "use_eagle",
    "enable_kv_cache_events", "free_heads_first",
)  # fmt: skip


@dataclass(frozen=True)
class EngineConfig:
    """What to serve and how; see each field's comment for unit and default's reason."""

    model: str = "smollm2"  # a bundled name, "synthetic:<shape>", a folder, or a hub id
    dtype: str = "auto"  # bfloat16 where this machine multiplies it fast, else float32
    device: str = "auto"  # "cuda" if there is one, else "cpu"
    seed: int = 0
    compile: bool | None = None  # kernels compiled for this processor; None: where there is a C++ compiler

    attention_backend: str = "auto"  # auto: the fastest that runs on the device; see model/attention_backend.py

    block_size: int = 16  # tokens per block of the hash cache
    page_size: int = 1  # tokens per page of the radix cache; takes block_size's place there
    num_gpu_blocks: int | None = None  # blocks (pages) in the pool, the null block included
    kv_cache_memory_bytes: int | None = None  # the other way to size the pool; not both
    max_model_len: int | None = None  # tokens of one request; None: what the model allows

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 4096  # token budget of one step; holds a lab's longest prompt whole
    long_prefill_token_threshold: int = 0  # most tokens of one request in a step; 0: no cap
    enable_chunked_prefill: bool = True
    scheduler_reserve_full_isl: bool = True  # admit a request only if all its tokens fit
    policy: str = "fcfs"  # who is admitted first: lpm (longest cached prefix) and dfs-weight are SGLang's
    watermark: float = 0.0  # share of the pool kept back from newcomers

    enable_prefix_caching: bool = True
    prefix_cache: str = "hash"
    prefix_caching_hash_algo: str = "sha256"
    # Without effect where caching is off:
    radix_eviction_policy: str = "lru"  # which leaves the radix cache gives up first; the hash cache has one order
    publish_rule: str = "auto"  # full blocks are findable from allocation on (vLLM), or after the step; auto: as the engine's own
    prefix_match_unit: int | None = None  # tokens of which a hit is a multiple; None: block or page
    use_eagle: bool = False  # a speculative drafter runs along: every hit is one match unit shorter
    enable_kv_cache_events: bool = False  # keep what was stored and removed, for take_kv_events
    free_heads_first: bool = False  # wrong on purpose, to show what freeing tails first is worth
    leave_out_of_key: str | None = None  # wrong on purpose: a block's name without that part of KEY_PARTS
    hash_bits: int | None = None  # wrong on purpose: names cut to so many bits, until two blocks get one name

    def __post_init__(self) -> None:
        _check_text("model", self.model)
        _check_choice("dtype", self.dtype, DTYPES)
        _check_text("device", self.device)
        _check_int("seed", self.seed, 0, 2**63 - 1)
        _check_int("block_size", self.block_size, 1, 65_536)
        _check_int("page_size", self.page_size, 1, 65_536)
        _check_optional_int("num_gpu_blocks", self.num_gpu_blocks, 2)  # the null block and one to use
        _check_optional_int("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1)
        if self.num_gpu_blocks is not None and self.kv_cache_memory_bytes is not None:
            raise ConfigError(
                "kv_cache_memory_bytes", self.kv_cache_memory_bytes, "unset when num_gpu_blocks is set (one sizes the pool)"
            )
        _check_optional_int("max_model_len", self.max_model_len, 1)
        _check_int("max_num_seqs", self.max_num_seqs, 1)
        _check_int("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _check_int("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        for name in _BOOLEANS:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, getattr(self, name), "true or false")
        _check_choice("attention_backend", self.attention_backend, ATTENTION_BACKENDS)
        _check_choice("policy", self.policy, POLICIES)
        if self.compile is not None and not isinstance(self.compile, bool):
            raise ConfigError("compile", self.compile, "true, false or none")
        if isinstance(self.watermark, bool) or not isinstance(self.watermark, (int, float)) or not 0 <= self.watermark < 1:
            raise ConfigError("watermark", self.watermark, "a number from 0 up to, not including, 1")
        _check_choice("prefix_cache", self.prefix_cache, PREFIX_CACHES)
        _check_choice("prefix_caching_hash_algo", self.prefix_caching_hash_algo, HASH_ALGORITHMS)
        _check_choice("radix_eviction_policy", self.radix_eviction_policy, RADIX_EVICTION_POLICIES)
        _check_choice("publish_rule", self.publish_rule, PUBLISH_RULES)
        if self.publish_rule == "allocation" and self.prefix_cache == "radix":
            raise ConfigError("publish_rule", self.publish_rule, "auto or step with prefix_cache radix")
        if self.policy == "dfs-weight" and (self.prefix_cache != "radix" or not self.enable_prefix_caching):
            raise ConfigError("policy", self.policy, "fcfs, priority, lpm; dfs-weight with prefix_cache radix: it walks the tree")
        if self.free_heads_first and (self.prefix_cache != "hash" or not self.enable_prefix_caching):
            raise ConfigError("free_heads_first", True, "false, or true with prefix_cache hash: nothing else depends on the order")
        self._check_key()
        unit = self.prefix_match_unit
        _check_optional_int("prefix_match_unit", unit, 1)
        if unit is not None and unit % self.unit_size:
            raise ConfigError("prefix_match_unit", unit, f"a multiple of the block or page size, {self.unit_size}")

    def _check_key(self) -> None:
        has_hashes = self.enable_prefix_caching and self.prefix_cache == "hash"
        if self.leave_out_of_key is not None:
            _check_choice("leave_out_of_key", self.leave_out_of_key, KEY_PARTS)
            if not self.enable_prefix_caching:
                raise ConfigError("leave_out_of_key", self.leave_out_of_key, "none with prefix caching off: nothing has a key")
            if self.leave_out_of_key in PARTS_OF_NAMES and not has_hashes:
                others = ", ".join(part for part in KEY_PARTS if part not in PARTS_OF_NAMES)
                accepted = f"{others} with prefix_cache radix: a path contains its past, and images where they stand"
                raise ConfigError("leave_out_of_key", self.leave_out_of_key, accepted)
        _check_optional_int("hash_bits", self.hash_bits, 1, self._name_bits)
        if self.hash_bits is not None and not has_hashes:
            raise ConfigError("hash_bits", self.hash_bits, "none; a number with prefix_cache hash: nothing else has names")

    @property
    def _name_bits(self) -> int:
        return 128 if self.prefix_caching_hash_algo.startswith("xxhash") else 256

    @property
    def unit_size(self) -> int:
        """Tokens in one block of the pool: the granularity of every hit."""
        return self.page_size if self.prefix_cache == "radix" else self.block_size

    def num_blocks_for(self, bytes_per_token: int | None = None) -> int:
        """Blocks in the pool, the null block included.

        bytes_per_token  K/V bytes of one token over all layers; needed only with kv_cache_memory_bytes.
        Raises ConfigError when the memory holds fewer than two blocks.
        """
        if self.num_gpu_blocks is not None:
            return self.num_gpu_blocks
        if self.kv_cache_memory_bytes is None:
            return -(-DEFAULT_POOL_TOKENS // self.unit_size) + 1
        assert bytes_per_token is not None, "a pool sized in bytes needs the model's K/V bytes per token"
        block_bytes = bytes_per_token * self.unit_size
        num_blocks = self.kv_cache_memory_bytes // block_bytes
        if num_blocks < 2:
            raise ConfigError(
                "kv_cache_memory_bytes", self.kv_cache_memory_bytes, f"at least {2 * block_bytes}: two blocks of {block_bytes} bytes"
            )
        return num_blocks

    def replace(self, **changes: Any) -> EngineConfig:
        """A checked copy with some fields changed. Raises ConfigError for an unknown field."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise ConfigError(name, changes[name], "one of the engine's fields: " + ", ".join(known))
        return replace(self, **changes)


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ConfigError(field, value, "a non-empty text")


def _check_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(field, value, ", ".join(choices))


def _check_int(field: str, value: object, low: int, high: int | None = None) -> None:
    # bool is an int in Python, but `block_size=True` is a mistake, not one.
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise ConfigError(field, value, f"a whole number from {low}" + (f" to {high}" if high is not None else ""))


def _check_optional_int(field: str, value: object, low: int, high: int | None = None) -> None:
    if value is not None:
        _check_int(field, value, low, high)
