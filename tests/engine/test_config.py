"""EngineConfig names the field, the value and the accepted range."""

import pytest

from engine.config import DEFAULT_POOL_TOKENS, EngineConfig
from engine.errors import ConfigError
from engine.request import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_size", 0), ("block_size", True), ("block_size", 16.0), ("page_size", 0), ("num_gpu_blocks", 1),
        ("kv_cache_memory_bytes", 0), ("max_model_len", 0), ("max_num_seqs", 0), ("max_num_batched_tokens", 0),
        ("long_prefill_token_threshold", -1), ("enable_prefix_caching", "yes"), ("policy", "lifo"), ("watermark", 1),
        ("watermark", True), ("prefix_cache", "tree"), ("prefix_caching_hash_algo", "md5"), ("dtype", "int8"), ("model", ""),
        ("seed", -1),
    ],
)  # fmt: skip
def test_a_value_outside_its_range_is_named_with_the_range(field, value):
    with pytest.raises(ConfigError, match=rf"{field} is {value!r}; accepted: ."):
        EngineConfig(**{field: value})


def test_an_unknown_field_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match="blok_size.*block_size"):
        EngineConfig().replace(blok_size=16)


def test_only_one_setting_sizes_the_pool():
    with pytest.raises(ConfigError, match="unset when num_gpu_blocks is set"):
        EngineConfig(num_gpu_blocks=10, kv_cache_memory_bytes=10)


@pytest.mark.parametrize("fields", [{"block_size": 16}, {"block_size": 32}, {"prefix_cache": "radix", "page_size": 1}])
def test_the_default_pool_is_sized_in_tokens(fields):
    config = EngineConfig(**fields)
    assert (config.num_blocks_for() - 1) * config.unit_size == DEFAULT_POOL_TOKENS


def test_a_pool_sized_in_bytes_counts_whole_blocks():
    assert EngineConfig(kv_cache_memory_bytes=10_000).num_blocks_for(bytes_per_token=100) == 6
    with pytest.raises(ConfigError, match="at least 3200"):
        EngineConfig(kv_cache_memory_bytes=3_199).num_blocks_for(bytes_per_token=100)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1), ("temperature", "a"), ("top_p", 0), ("top_p", True), ("top_k", -2), ("top_k", 1.5), ("max_tokens", -1),
        ("max_tokens", 2.5), ("max_tokens", True), ("max_tokens", "5"), ("seed", "x"), ("logprobs", 21), ("prompt_logprobs", -1),
    ],
)  # fmt: skip
def test_sampling_parameters_are_checked_too(field, value):
    with pytest.raises(ConfigError, match=f"{field} is {value!r}; accepted: "):
        SamplingParams(**{field: value})
