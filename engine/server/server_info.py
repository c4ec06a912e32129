"""What a server says of itself: /v1/models and /server_info of both flavors, and SGLang's /model_info.

Fields and their meaning as in the real servers, filled from the engine's configuration; what this engine has no counterpart of
is left out, or None where a client would miss it. Nothing secret is in them.

Source: vLLM 0.32.0, entrypoints/serve/engine/protocol.py (ModelCard), entrypoints/serve/dev/server_info/api_router.py;
SGLang 0.5.23, srt/entrypoints/http_server.py.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from engine.llm_engine import LLMEngine
from engine.server.options import ServerOptions

VLLM_VERSION = "0.32.0"
SGLANG_VERSION = "0.5.23"

# Of the longest request, the places SGLang keeps free: one for a token to generate, and its own reserve.
_SGLANG_RESERVED_TOKENS = 6


def models_body(options: ServerOptions, engine: LLMEngine, created_s: int) -> dict[str, Any]:
    """GET /v1/models: the one model. `created_s` is the Unix time at which the server started."""
    card: dict[str, Any] = {
        "id": options.model_name,
        "object": "model",
        "created": created_s,
        "owned_by": options.flavor,
        "root": engine.config.model if options.flavor == "vllm" else options.model_name,
        "parent": None,
        "max_model_len": engine.max_model_len,
    }
    if options.flavor == "vllm":
        card["permission"] = [_permission(created_s)]
    return {"object": "list", "data": [card]}


def max_req_input_len(engine: LLMEngine) -> int:
    """Most prompt tokens SGLang takes: of the context and of the pool the smaller, less what it keeps free."""
    return max(0, min(engine.max_model_len, _pool_tokens(engine)) - _SGLANG_RESERVED_TOKENS)


def server_info(options: ServerOptions, engine: LLMEngine) -> dict[str, Any]:
    """GET /server_info of SGLang."""
    config = engine.config
    return {
        "model_path": config.model,
        "served_model_name": options.model_name,
        "tokenizer_path": config.model,
        "host": options.host,
        "port": options.port,
        "device": config.device,
        "dtype": config.dtype,
        "random_seed": config.seed,
        "context_length": config.max_model_len,
        "page_size": config.unit_size,
        "max_total_tokens": _pool_tokens(engine) if config.num_gpu_blocks is not None else None,  # as asked for
        "max_total_num_tokens": _pool_tokens(engine),
        "max_req_input_len": max_req_input_len(engine),
        "max_running_requests": config.max_num_seqs,
        "max_queued_requests": options.max_waiting,
        "max_prefill_tokens": config.max_num_batched_tokens,
        "chunked_prefill_size": config.max_num_batched_tokens if config.enable_chunked_prefill else -1,
        "schedule_policy": config.policy,
        "disable_radix_cache": not config.enable_prefix_caching,
        "radix_eviction_policy": config.radix_eviction_policy,
        "speculative_algorithm": "EAGLE" if config.use_eagle else None,
        "enable_cache_report": options.cache_report,
        "enable_metrics": options.metrics_endpoint,
        "kv_events": None,  # not published
        "internal_states": [
            {
                "effective_max_running_requests_per_dp": config.max_num_seqs,
                "memory_usage": {"token_capacity": _pool_tokens(engine)},
            }
        ],
        "version": SGLANG_VERSION,
        "frontend": "python",
    }


def model_info(options: ServerOptions, engine: LLMEngine) -> dict[str, Any]:
    """GET /model_info of SGLang."""
    return {
        "model_path": engine.config.model,
        "served_model_name": options.model_name,
        "tokenizer_path": engine.config.model,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "has_image_understanding": False,
        "has_audio_understanding": False,
    }


def vllm_server_info(engine: LLMEngine, as_text: bool) -> dict[str, Any]:
    """GET /server_info of vLLM's dev mode: its configuration as one text, or by parts; of the machine, nothing."""
    config = engine.config
    has_names = config.enable_prefix_caching and config.prefix_cache == "hash"
    by_parts = {
        "model_config": {
            "model": config.model,
            "tokenizer": config.model,
            "dtype": config.dtype,
            "seed": config.seed,
            "max_model_len": engine.max_model_len,
        },
        "cache_config": {
            "block_size": config.unit_size,
            "num_gpu_blocks": engine.manager.pool.num_blocks,
            "num_gpu_blocks_override": config.num_gpu_blocks,
            "enable_prefix_caching": config.enable_prefix_caching,
            "prefix_caching_hash_algo": config.prefix_caching_hash_algo if has_names else None,
            "prefix_match_unit": config.prefix_match_unit,
        },
        "scheduler_config": {
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "enable_chunked_prefill": config.enable_chunked_prefill,
            "policy": config.policy,
        },
    }
    whole = {name: value for part in by_parts.values() for name, value in part.items()}
    text = ", ".join(f"{name}={value!r}" for name, value in whole.items())
    return {"vllm_config": text if as_text else by_parts, "vllm_env": {}, "system_env": {}}


def _pool_tokens(engine: LLMEngine) -> int:
    return engine.manager.pool.num_usable * engine.config.unit_size


def _permission(created_s: int) -> dict[str, Any]:
    """What OpenAI's API once told of a model; vLLM still does, and makes a new id for each reply."""
    return {
        "id": f"modelperm-{uuid4().hex[:16]}",
        "object": "model_permission",
        "created": created_s,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
