"""The in-process engine: paged K/V cache, hash and radix prefix caches, continuous batching.

    from engine import EngineConfig, LLMEngine, Request, SamplingParams

Names are resolved on first use, so that nothing loads torch before a real model is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "EngineConfig": "engine.config",
    "EngineError": "engine.errors",
    "KVCacheManager": "engine.kvcache.kv_cache_manager",
    "LLMEngine": "engine.llm_engine",
    "Request": "engine.request",
    "RequestOutput": "engine.request_output",
    "SamplingParams": "engine.request",
    "Scheduler": "engine.scheduler",
    "SimulatedRunner": "engine.model.simulated_runner",
    "open_kv_cache": "engine.kvcache.open_kv_cache",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
