"""Flags: what to switch on or off for each finding, in the words of each engine and version.

    vLLM      0.32.0; counters have their present names since 0.9.2; caching is on unless switched off, and the engine that has
              counters (V1) the one that serves, since 0.8.0
    SGLang    0.5.23
    other     what to look for, since no flag is known

    labcli    our own server takes the real engines' flags, but for those below
"""

from __future__ import annotations

from labs.servers.server_facts import ServerFacts
from labs.servers.server_flags import FIRST_COUNTERS, is_before

_VLLM = {
    "caching": "remove --no-enable-prefix-caching",
    "usage": "start vLLM with --enable-prompt-tokens-details",
    "metrics": "start vLLM without --disable-log-stats, and let /metrics through",
    "unit": "a smaller --block-size; where cache_hit_alignment_tokens of vllm:cache_config_info is a number, that is the unit",
    "pool": "more memory for K/V: --gpu-memory-utilization, --kv-cache-dtype fp8",
    "drafter": "weigh the drafter (--speculative-config) against one unit of every hit",
    "counters": "rate(vllm:prefix_cache_hits_total) / rate(vllm:prefix_cache_queries_total)",
}
_SGLANG = {
    "caching": "remove --disable-radix-cache",
    "usage": "start SGLang with --enable-cache-report; /generate tells cached_tokens without it",
    "metrics": "start SGLang with --enable-metrics, and let /metrics through",
    "unit": "a smaller --page-size",
    "pool": "more memory for K/V: --mem-fraction-static, --kv-cache-dtype, or --enable-hierarchical-cache",
    "drafter": "weigh the drafter (--speculative-algorithm) against one unit of every hit",
    "counters": "growth of sglang:prefill_effective_tokens_total: the *_hit modes over all modes",
}
_OTHER = {
    "caching": "look for the server's prefix caching setting",
    "usage": "look for the server's setting that reports cached_tokens in usage",
    "metrics": "look for the server's /metrics",
    "unit": "a smaller block or page, where the server has such a setting",
    "pool": "more memory for K/V",
    "drafter": "weigh the drafter against one unit of every hit",
    "counters": "growth of its counters over the time you ask about",
}

_OURS = {
    "metrics": "start labcli serve without --no-metrics",
    "pool": "a larger pool: --num-gpu-blocks",
    "drafter": "weigh the drafter (--speculative) against one unit of every hit",
}


def flag(name: str, facts: ServerFacts) -> str:
    """What to do about `name` on this server."""
    if facts.is_labcli and name in _OURS:
        return _OURS[name]
    if facts.kind == "vllm" and name == "metrics" and is_before(facts.version, FIRST_COUNTERS):
        return "update vLLM: before 0.8 its engine has no counters of tokens found, only the gauge vllm:gpu_prefix_cache_hit_rate"
    if facts.kind == "vllm" and name == "caching" and is_before(facts.version, (0, 8)):
        return "start vLLM with --enable-prefix-caching: before 0.8 it is off by default"
    if facts.kind == "vllm" and name == "counters" and is_before(facts.version, (0, 9, 2)):
        return "rate(vllm:gpu_prefix_cache_hits_total) / rate(vllm:gpu_prefix_cache_queries_total)"
    return {"vllm": _VLLM, "sglang": _SGLANG}.get(facts.kind, _OTHER)[name]
