"""ServerFacts: what answers at an address, found out by reading alone; nothing is computed and nothing is changed.

    GET /v1/models        the model's name, its length limit, who owns it
    GET /version          vLLM's version
    GET /server_info      SGLang's version, page size, pool, flags
    GET /metrics          vLLM's cache_config_info: block size, pool, caching on or off; which counters there are
    GET /reset_prefix_cache   405: it exists (POST alone resets); 404: it does not
    POST /tokenize        whether the server shows its tokenizer

What no reply tells is None: unknown, not off. Source: contract of vLLM 0.32.0 and SGLang 0.5.23 over HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

import httpx

from labs.servers.metrics_page import MetricsPage
from labs.servers.prefix_counters import SERIES as COUNTERS
from labs.servers.prefix_counters import CounterReading
from labs.servers.server_client import LateReply, LimitReached, ServerClient, ServerRefused
from labs.targets.base import TargetError, TargetUnavailable

KIND_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "openai": "an OpenAI-compatible server"}
OURS = "labcli/"  # how our own server's Server header begins
MAX_LENGTH = 2**24  # tokens of a request; a longer limit is not believed, because prompts are made to fit it
MAX_UNIT = 2**16  # tokens of a block or page, likewise
MAX_SHOWN = 80  # characters of what a server tells of itself
NO_LIST = (404, 405, 501)  # statuses of a path that is not there


@dataclass(frozen=True)
class ServerFacts:
    """One server; None is unknown."""

    kind: str  # "vllm", "sglang" or "openai": whose names and flags it has
    is_labcli: bool  # our own server in that flavor
    version: str | None
    model: str  # the name that requests carry
    num_models: int  # that it lists; 0: it has no list
    max_model_len: int | None = None  # tokens of one request
    unit_size: int | None = None  # block or page
    is_caching: bool | None = None
    pool_tokens: int | None = None
    has_drafter: bool | None = None
    has_counters: bool = False  # /metrics has counters of tokens found
    has_metrics: bool = False  # /metrics answers at all
    metrics_trouble: str = ""  # why /metrics could not be read, where it is not simply missing, in one line
    is_metrics_broken: bool = False  # it failed by itself: it was neither closed to us, nor busy, nor late
    has_reset: bool = False
    has_tokenizer: bool = False  # /tokenize answers
    num_engines: int = 1  # label sets of the same counter: data-parallel engines behind one address
    info: Mapping[str, str] = field(default_factory=dict)  # cache settings as the server names them, for the record

    @property
    def name(self) -> str:
        """ "vLLM", "labcli (vLLM flavor)", …: the same for all its versions."""
        name = KIND_NAMES[self.kind]
        return f"labcli ({name} flavor)" if self.is_labcli else name

    @property
    def title(self) -> str:
        """ "vLLM 0.32.0", "labcli (vLLM flavor)", …"""
        return self.name + (f" {self.version}" if self.version and not self.is_labcli else "")


# SGLang's /server_info holds hundreds of fields, some of them secret (api_key): only these are read.
SGLANG_INFO = (
    "version", "page_size", "max_total_num_tokens", "max_req_input_len", "disable_radix_cache", "enable_cache_report",
    "radix_eviction_policy", "chunked_prefill_size", "schedule_policy", "speculative_algorithm", "dp_size",
    "enable_metrics", "enable_hierarchical_cache",
)  # fmt: skip
VLLM_INFO = (
    "block_size", "num_gpu_blocks", "enable_prefix_caching", "prefix_caching_hash_algo", "hash_block_size",
    "cache_hit_alignment_tokens", "kv_cache_size_tokens", "prefix_cache_retention_interval",
)  # fmt: skip

SERIES = (*COUNTERS, "vllm:cache_config_info", "sglang:page_size", "sglang:max_total_num_tokens")  # read from /metrics


def find_facts(client: ServerClient, model: str | None = None) -> ServerFacts:
    """What answers there.

    model  the name to send, where the server lists several, or has no list; None: its first

    Raises TargetUnavailable when nothing answers, a key is missing, or what answers is no server of completions.
    """
    reply = client.get("/v1/models")
    models = _listed(client, reply, model)
    chosen = _chosen(client, models, model) if models else {"id": model}
    page, trouble, is_broken = _metrics(client)
    version = _text(_optional(client, "/version"), "version")
    sglang = _sglang_info(client)
    kind = _kind(chosen, page, version, sglang)
    is_labcli = reply.headers.get("server", "").startswith(OURS)
    common: dict[str, Any] = {
        "kind": kind,
        "is_labcli": is_labcli,
        "model": chosen["id"],
        "num_models": len(models),
        "max_model_len": _positive(chosen.get("max_model_len"), MAX_LENGTH),
        "has_metrics": page is not None,
        "metrics_trouble": trouble,
        "is_metrics_broken": is_broken,
        "has_counters": page is not None and CounterReading.of(page).is_known,
        "has_tokenizer": _tokenizes(client, chosen["id"]),
    }
    if kind == "sglang":
        return ServerFacts(**common, **_sglang_facts(sglang, page))
    if kind == "vllm":
        return ServerFacts(**common, version=version, has_reset=_exists(client, "/reset_prefix_cache"), **_vllm_facts(page))
    return ServerFacts(**common, version=version)


def _listed(client: ServerClient, reply: httpx.Response, name: str | None) -> list[Mapping[str, Any]]:
    """The models that /v1/models lists; none where there is no such list, and a person has said the name."""
    try:
        listed = client.json_of("/v1/models", reply, {}).get("data")
    except ServerRefused as error:
        if name is not None and error.status in NO_LIST:
            return []  # gateways of one model often have none: whether it serves completions, the first of them tells
        accepted = "an address under which /v1/models answers"
        accepted += ", or --model NAME where a server has no list" if error.status in NO_LIST else ""
        raise TargetUnavailable(f"{error}: no OpenAI-compatible server; accepted: {accepted}") from error
    models = (
        [one for one in listed if isinstance(one, Mapping) and isinstance(one.get("id"), str)] if isinstance(listed, list) else []
    )
    if not models:
        raise TargetUnavailable(f"{client.shown} lists no model; accepted: a server that serves one")
    return models


def _chosen(client: ServerClient, models: list[Mapping[str, Any]], name: str | None) -> Mapping[str, Any]:
    if name is None:
        return models[0]
    for one in models:
        if one["id"] == name:
            return one
    names = ", ".join(one["id"][:MAX_SHOWN] for one in models[:5]) + (", …" if len(models) > 5 else "")
    raise TargetUnavailable(f"{client.shown} serves no model {name!r}; accepted: {names}")


def _kind(model: Mapping[str, Any], page: MetricsPage | None, version: str | None, sglang: Mapping[str, Any] | None) -> str:
    owner = model.get("owned_by")
    if owner == "sglang" or sglang is not None or (page is not None and page.has_prefix("sglang:")):
        return "sglang"
    # Other servers have /version too: it counts beside vLLM's own names only.
    if owner == "vllm" or (page is not None and page.has_prefix("vllm:")):
        return "vllm"
    return "openai"


def _metrics(client: ServerClient) -> tuple[MetricsPage | None, str, bool]:
    """The page, if it can be read; else what is wrong, "" where there is none, and whether it failed, and is not only closed."""
    try:
        reply = client.get("/metrics", timeout_s=15.0)
    except TargetUnavailable:
        raise
    except TargetError as error:
        return None, str(error), not isinstance(error, (LateReply, LimitReached))
    status = reply.status_code
    if status == 200:
        try:
            return MetricsPage.parse(reply.text, SERIES), "", False
        except TargetError as error:
            return None, str(error), True
    if status in NO_LIST:
        return None, "", False
    if 300 <= status < 400:
        return None, str(client.refusal("/metrics", reply, {})), False
    why = {401: "it wants a key", 403: "it is closed to this client", 429: "it is busy", 503: "it is busy, or down"}
    trouble = f"{client.shown} answered /metrics with {status}" + (f": {why[status]}" if status in why else "")
    return None, trouble, status >= 500 and status not in why


def _sglang_info(client: ServerClient) -> Mapping[str, Any] | None:
    for path in ("/server_info", "/get_server_info"):
        found = _optional(client, path)
        # vLLM's dev mode has a /server_info too, with other content.
        if found is not None and "page_size" in found and "max_total_num_tokens" in found:
            return found
    return None


def _sglang_facts(info: Mapping[str, Any] | None, page: MetricsPage | None) -> dict[str, Any]:
    info = info or {}
    unit = _positive(info.get("page_size"), MAX_UNIT)
    if unit is None and page is not None:
        unit = _positive(page.first("sglang:page_size"), MAX_UNIT)  # not the sum: each rank shows it
    pool = _positive(info.get("max_total_num_tokens"))
    if pool is None and page is not None:
        pool = _positive(page.first("sglang:max_total_num_tokens"))
    off = info.get("disable_radix_cache")
    return {
        "version": _text(info, "version"),
        "unit_size": unit,
        "is_caching": (not off) if isinstance(off, bool) else None,
        "pool_tokens": pool,
        "has_drafter": bool(info["speculative_algorithm"]) if "speculative_algorithm" in info else None,
        "has_reset": True,  # /flush_cache is always mounted, and a GET would flush
        "num_engines": _positive(info.get("dp_size")) or 1,
        "info": _shown(info, SGLANG_INFO),
    }


def _vllm_facts(page: MetricsPage | None) -> dict[str, Any]:
    if page is None:
        return {}
    configs = page.labels_of("vllm:cache_config_info")
    config = configs[0] if configs else {}
    # The alignment of hits is the block size, but where several groups of layers must agree, or a longer unit was asked for.
    names = ("cache_hit_alignment_tokens", "prefix_match_unit", "block_size")
    unit = next(filter(None, (_positive(config.get(name), MAX_UNIT) for name in names)), None)
    tokens = [_pool_tokens(one) for one in configs]
    caching = {"True": True, "False": False}.get(config.get("enable_prefix_caching", ""))
    return {
        "unit_size": unit,
        "is_caching": caching,
        # One request fits one engine's pool.
        "pool_tokens": None if not tokens or None in tokens else min(tokens),
        # Series of drafts are there when a drafter is; a page without the cache's own series shows a part alone.
        "has_drafter": page.has_prefix("vllm:spec_decode") or (False if configs else None),
        "num_engines": max(1, len(configs)),
        "info": _shown(config, VLLM_INFO),
    }


def _pool_tokens(config: Mapping[str, str]) -> int | None:
    """Tokens that requests may hold: block 0 is nobody's, and counted in vLLM's own sizes."""
    blocks, size = _positive(config.get("num_gpu_blocks")), _positive(config.get("block_size"))
    tokens = _positive(config.get("kv_cache_size_tokens")) or (blocks * size if blocks and size else None)
    return None if tokens is None else _positive(tokens - (size or 0))


def _tokenizes(client: ServerClient, model: str) -> bool:
    try:
        found = client.post_json("/tokenize", {"model": model, "prompt": "a"}).get("tokens")
    except TargetUnavailable:
        return False  # it may be closed to us where completions are not
    except TargetError:
        return False
    return isinstance(found, list) and bool(found) and all(isinstance(one, int) for one in found)


def _exists(client: ServerClient, path: str) -> bool:
    """Whether a path that takes only POST is there: GET answers 405."""
    try:
        return client.get(path).status_code == 405
    except TargetError:
        return False


def _optional(client: ServerClient, path: str) -> Mapping[str, Any] | None:
    try:
        return client.get_json(path)
    except TargetError:
        return None


def _shown(found: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    return {name: str(found[name])[:MAX_SHOWN] for name in names if name in found and found[name] is not None}


def _text(found: Mapping[str, Any] | None, name: str) -> str | None:
    value = (found or {}).get(name)
    return value[:MAX_SHOWN] if isinstance(value, str) and value else None


def _positive(value: Any, most: int = 2**53) -> int | None:
    """A whole number from 1 to `most`, also as vLLM's labels write it ("32"); else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdigit() and len(value) < 17 else None
    if isinstance(value, float):
        value = int(value) if value == value and abs(value) < 2**53 else None
    return value if isinstance(value, int) and 0 < value <= most else None
