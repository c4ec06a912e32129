"""A server without a network: httpx's mock transport over a small cache that follows the law, and odd on request.

    fake = FakeServer(kind="vllm", unit=16, details="never")
    OpenServer(fake.run(), fake.transport)

`requests` holds the bodies it was sent; `alter` may change any reply before it goes out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Callable

import httpx

from labs.servers.server_address import ServerAddress
from labs.servers.server_client import SendLimits, ServerClient
from labs.servers.server_run import ServerRun

URL = "http://fake:8000"
VOCABULARY = 1_000


@dataclass
class FakeServer:
    kind: str = "vllm"
    unit: int = 16
    told_unit: int | None = None  # None: the unit itself
    has_drafter: bool = False
    tells_drafter: bool | None = None  # None: what is true; else what it says of itself
    drops_unit: bool = False  # an engine that loses the last unit of every match
    keeps_content: bool = False  # a reset says that it is done, and does nothing
    num_engines: int = 1  # each with a cache of its own; requests go round
    uncounted: tuple[int, ...] = ()  # numbers of requests that no counter ever sees
    told_ids: tuple[int, ...] = ()  # what /tokenize gives for every text, in place of its ids
    first_id: int = 1  # of the ids that text has
    details: str = "always"  # "always", "hits only", "never", "no usage"
    has_metrics: bool = True
    has_tokenizer: bool = True
    has_reset: bool = True
    refusals_of_reset: int = 0  # before it succeeds
    takes_ids: bool = True
    takes_extras: bool = True
    takes_streams: bool = True
    num_front: int = 0
    num_foreign_tokens: int = 0  # looked up by others during each request
    num_checks: int = 0  # health checks of SGLang during each request: one token each, counted as computed
    counted_share: float = 1.0  # of the hits that reach the counters
    lag: int = 0  # readings of /metrics before a request is counted
    is_caching: bool = True
    max_model_len: int | None = 4_096
    pool_tokens: int = 64_000
    long_words: tuple[str, ...] = ()  # words of two tokens
    alter: Callable[[dict[str, Any]], Any] = lambda reply: reply
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[httpx.Headers] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.caches: list[set[int]] = [set() for _ in range(self.num_engines)]
        self.num_served = 0
        self.queries = self.hits = self.checks = 0
        self._waiting: list[tuple[int, int, int]] = []
        self._words: dict[str, int] = {}

    @property
    def blocks(self) -> set[int]:
        return self.caches[self.num_served % self.num_engines]

    @property
    def tells(self) -> bool:
        return self.has_drafter if self.tells_drafter is None else self.tells_drafter

    @property
    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self)

    def run(self, **fields: Any) -> ServerRun:
        return ServerRun(ServerAddress.of(URL), **fields)

    def client(self, **limits: Any) -> ServerClient:
        return ServerClient(ServerAddress.of(URL), transport=self.transport, limits=SendLimits(**limits))

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.paths.append(path)
        self.headers.append(request.headers)
        found = getattr(self, "_" + path.strip("/").replace("/", "_"), None)
        if found is None:
            return httpx.Response(404, json={"detail": "Not Found"})
        return found(request, json.loads(request.content) if request.content else {})

    def _v1_models(self, request: httpx.Request, body: dict[str, Any]) -> httpx.Response:
        owner = self.kind if self.kind != "openai" else "somebody"
        return httpx.Response(200, json={"data": [{"id": "fake", "owned_by": owner, "max_model_len": self.max_model_len}]})

    def _version(self, request: httpx.Request, body: dict[str, Any]) -> httpx.Response:
        return httpx.Response(200, json={"version": "0.32.0"}) if self.kind == "vllm" else httpx.Response(404)

    def _server_info(self, request: httpx.Request, body: dict[str, Any]) -> httpx.Response:
        if self.kind != "sglang":
            return httpx.Response(404)
        info = {"version": "0.5.23", "page_size": self.told_unit or self.unit, "max_total_num_tokens": self.pool_tokens}
        info |= {"speculative_algorithm": "EAGLE" if self.tells else None, "dp_size": self.num_engines}
        return httpx.Response(200, json={**info, "disable_radix_cache": not self.is_caching, "api_key": "hidden"})

    def _tokenize(self, request: httpx.Request, body: dict[str, Any]) -> httpx.Response:
        if not self.has_tokenizer:
            return httpx.Response(404)
        return httpx.Response(200, json={"tokens": list(self.told_ids) or self._encode(body["prompt"])})

    def _metrics(self, request: httpx.Request, body: dict[str, Any]) -> httpx.Response:
        if not self.has_metrics or self.kind == "openai":
            return httpx.Response(404)
        for one in self._waiting:
            if one[0] <= 0:
                self.queries, self.hits = self.queries + one[1], self.hits + one[2]
        self._waiting = [(lag - 1, queries, hits) for lag, queries, hits in self._waiting if lag > 0]
        size = self.told_unit or self.unit
        config = f'block_size="{size}",kv_cache_size_tokens="{self.pool_tokens + size}"'  # block 0 included, as there
        lines = {
            "vllm": [
                f'vllm:prefix_cache_queries_total{{engine="0"}} {self.queries}.0',
                f'vllm:prefix_cache_hits_total{{engine="0"}} {self.hits}.0',
                *(
                    f'vllm:cache_config_info{{engine="{number}",{config},enable_prefix_caching="{self.is_caching}"}} 1.0'
                    for number in range(self.num_engines)
                ),
                *(['vllm:spec_decode_num_drafts_total{engine="0"} 0.0'] if self.tells else ()),
            ],
            "sglang": [
                f'sglang:prefill_effective_tokens_total{{mode="input"}} {self.queries + self.checks - self.hits}.0',
                f'sglang:prefill_effective_tokens_total{{mode="device_hit"}} {self.hits}.0',
                f'sglang:http_requests_total{{endpoint="/health",method="GET"}} {self.checks}.0',
            ],
        }[self.kind]
        return httpx.Response(200, text="\n".join(lines) + "\n")

    def _reset_prefix_cache(self, request: httpx.Request, body: dict[str, Any]) -> httpx.Response:
        if not self.has_reset or self.kind != "vllm":
            return httpx.Response(404)
        if request.method == "GET":
            return httpx.Response(405)
        return httpx.Response(200, json={"success": self._forget()})

    def _flush_cache(self, request: httpx.Request, body: dict[str, Any]) -> httpx.Response:
        if not self.has_reset or self.kind != "sglang":
            return httpx.Response(401)
        return httpx.Response(200, text="Cache flushed.") if self._forget() else httpx.Response(400, text="Flush cache failed.")

    def _forget(self) -> bool:
        if self.refusals_of_reset > 0:
            self.refusals_of_reset -= 1
            return False
        if not self.keeps_content:
            for cache in self.caches:
                cache.clear()
        return True

    def _v1_completions(self, request: httpx.Request, body: dict[str, Any]) -> httpx.Response:
        self.requests.append(body)
        if isinstance(body["prompt"], list) and not self.takes_ids:
            return httpx.Response(400, json={"error": {"message": "prompt must be a text"}})
        if body.get("return_token_ids") and not self.takes_extras:
            return httpx.Response(400, json={"error": {"message": "unknown field"}})
        if body.get("stream") and not self.takes_streams:
            return httpx.Response(400, json={"error": {"message": "streams are not served"}})
        ids, cached, outputs = self._serve(body["prompt"], body["max_tokens"], body.get("cache_salt"), "prompt_logprobs" in body)
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(outputs), "prompt_tokens_details": None}
        if self.details == "always" or (self.details == "hits only" and cached):
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        told = {} if not body.get("return_token_ids") else {"token_ids": outputs, "prompt_token_ids": ids}
        tops = (
            {"top_logprobs": [{f"token_id:{one}": -0.5, "token_id:0": -1.75} for one in outputs]}
            if body.get("logprobs")
            else None
        )
        choice = {"index": 0, "text": "x" * len(outputs), "finish_reason": "length", "logprobs": tops, **told}
        reply: Any = {"choices": [choice], "usage": usage if self.details != "no usage" else None}
        reply = self.alter(reply)
        if isinstance(reply, (httpx.Response, Exception)):
            if isinstance(reply, Exception):
                raise reply
            return reply
        if not body.get("stream"):
            return httpx.Response(200, json=reply)
        events = [{"choices": reply["choices"]}, {"choices": [], "usage": reply.get("usage")}]
        return httpx.Response(200, text="".join(f"data: {json.dumps(one)}\n\n" for one in events) + "data: [DONE]\n\n")

    def _generate(self, request: httpx.Request, body: dict[str, Any]) -> httpx.Response:
        if self.kind != "sglang":
            return httpx.Response(404)
        self.requests.append(body)
        ids, cached, outputs = self._serve(
            body["input_ids"],
            body["sampling_params"]["max_new_tokens"],
            body.get("cache_salt"),
            body.get("logprob_start_len") == 0,
        )
        meta = {
            "prompt_tokens": len(ids),
            "completion_tokens": len(outputs),
            "cached_tokens": cached,
            "finish_reason": {"type": "length"},
        }
        if body.get("top_logprobs_num"):
            meta["output_top_logprobs"] = [[[-0.5, one, None], [-1.75, 0, None]] for one in outputs]
        reply = {"text": "x" * len(outputs), "output_ids": outputs, "meta_info": meta}
        if not body.get("stream"):
            return httpx.Response(200, json=reply)
        return httpx.Response(200, text=f"data: {json.dumps(reply)}\n\ndata: [DONE]\n\n")

    def _serve(self, prompt: Any, max_tokens: int, salt: str | None, skips: bool) -> tuple[list[int], int, list[int]]:
        ids = [VOCABULARY - 1] * self.num_front + (list(prompt) if isinstance(prompt, list) else self._encode(prompt))
        assert max(ids) < VOCABULARY, "an id outside the vocabulary ends this server"
        names: list[int] = []
        for end in range(self.unit, len(ids) + 1, self.unit):  # each name contains the one before it
            names.append(hash((names[-1] if names else salt, *ids[end - self.unit : end])))
        matched = next((index for index, name in enumerate(names) if name not in self.blocks), len(names))
        cached = min(matched, (len(ids) - 1) // self.unit) * self.unit
        cached = max(0, cached - self.unit * (self.has_drafter or self.drops_unit)) if self.is_caching and not skips else 0
        self.blocks.update(names)
        self.num_served += 1
        self.checks += self.num_checks
        # vLLM does not count a request that skips its cache.
        queries = 0 if (skips and self.kind == "vllm") or not self.is_caching else len(ids)
        if self.num_served not in self.uncounted:
            self._waiting.append((self.lag, queries + self.num_foreign_tokens, int(cached * self.counted_share)))
        return ids, cached, [(sum(ids) + step) % VOCABULARY for step in range(max_tokens)]

    def _encode(self, text: str) -> list[int]:
        """A word a token, in the order they are first seen; long words are two."""
        ids = []
        for word in text.split():
            for part in (word, word + "+") if word in self.long_words else (word,):
                ids.append(self._words.setdefault(part, self.first_id + len(self._words) % (VOCABULARY - 1 - self.first_id)))
        return ids
