"""A server's target for labs' tests, without a network: one engine in this process behind the manners of a server.

What it hides and pretends is chosen by name: replies without usage, no counters, no ids of generated tokens, tokens in front
of each prompt, a drafter, others' traffic, counters that stand still, salts that are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Sequence

from engine.config import EngineConfig
from labs.targets.base import CacheCounters, Completion, Evidence, FieldRefused, ServedCache, Target, TargetError, TargetInfo
from labs.targets.open_target import SIM_MODEL, open_target_factory

FLAVORS = {"vllm": ("hash", "block"), "sglang": ("radix", "page")}


@dataclass(frozen=True)
class FakeServer:
    """An OpenTarget: every call gives another target over the same engine, as every connection meets the same server."""

    kind: str = "vllm"
    unit: int = 16
    has_drafter: bool = False
    num_front: int = 0
    tells_usage: bool = True
    tells_counters: bool = True
    tells_ids: bool = True
    keeps_salts: bool = True
    is_counting: bool = True  # False: the counters stand still
    num_counts: int = 1  # times that each lookup is counted
    counts_skips: bool = False  # count a request that does not read the cache, too
    num_foreign: int = 0  # tokens that others look up beside each request
    max_model_len: int = 8_192
    isolation: str = "reset"
    last_reset: str = "reset"  # what it says became of each
    num_blocks: int = 20_000
    title: str = ""

    def __post_init__(self) -> None:
        prefix_cache, unit_name = FLAVORS[self.kind]
        fields: dict[str, Any] = {"prefix_cache": prefix_cache, f"{unit_name}_size": self.unit, "use_eagle": self.has_drafter}
        blocks = max(16, 400_000 // self.unit)
        opened = open_target_factory("sim", EngineConfig(model=SIM_MODEL, max_model_len=self.max_model_len))
        object.__setattr__(self, "_inside", opened(**fields, num_gpu_blocks=blocks))
        object.__setattr__(self, "asked", [])

    @property
    def served(self) -> ServedCache:
        prefix_cache, unit_name = FLAVORS[self.kind]
        title = f"a fake {self.kind}, {unit_name} {self.unit}"
        return ServedCache(title, prefix_cache, self.unit, self.has_drafter, prefix_cache == "hash", self.num_front)

    def __call__(self, **engine_fields: Any) -> Target:
        refused = set(engine_fields) - {"num_gpu_blocks"}
        if refused:
            raise TargetError(f"a server's cache is as it is; {', '.join(sorted(refused))} cannot be set")
        return _FakeTarget(self)

    def notes(self) -> tuple[str, ...]:
        return ("a note of the server",)


class _FakeTarget:
    engine = None

    def __init__(self, server: FakeServer) -> None:
        self._server, self._inside = server, server._inside
        self._queries = self._hits = 0
        self.last_reset = ""
        inside = self._inside.info
        self.info = TargetInfo(
            server.kind, inside.prefix_cache, server.unit, None, inside.vocab_size - 1,
            server.max_model_len - server.num_front, "served", "unknown", "a server", {"isolation": server.isolation},
        )  # fmt: skip

    def complete(self, prompt_token_ids: Sequence[int], *, max_tokens: int = 1, cache_salt: str | None = None,
                 logprob_gaps: bool = False, prompt_logprobs: bool = False, **identity: Any) -> Completion:  # fmt: skip
        server = self._server
        server.asked.append(tuple(prompt_token_ids))
        if any(identity.values()):
            raise TargetError("a server takes no adapters, images or embeddings")
        if prompt_logprobs and server.kind != "vllm":
            raise FieldRefused("this server takes no prompt_logprobs")
        prompt = (self._inside.info.vocab_size - 1,) * server.num_front + tuple(prompt_token_ids)
        salt = cache_salt if server.keeps_salts else None
        self._inside.counters()
        found = self._inside.complete(
            prompt, max_tokens=max_tokens, cache_salt=salt, logprob_gaps=logprob_gaps, prompt_logprobs=prompt_logprobs
        )
        return self._told(found, len(prompt) if prompt_logprobs else 0)

    def complete_all(self, prompts: Sequence[Sequence[int]], *, max_tokens: int,
                     cache_salts: Sequence[str | None] | None = None) -> list[Completion]:  # fmt: skip
        salts = cache_salts or [None] * len(prompts)
        return [self.complete(prompt, max_tokens=max_tokens, cache_salt=salt) for prompt, salt in zip(prompts, salts, strict=True)]

    def counters(self) -> CacheCounters:
        queries, hits = self._queries, self._hits
        self._queries = self._hits = 0
        return CacheCounters(queries, hits) if self._server.tells_counters else CacheCounters(None, None)

    def reset(self) -> bool:
        self.last_reset = self._server.last_reset
        return self._inside.reset()

    def rename(self) -> bool:
        return False

    def block_hashes(self, prompt_token_ids: Sequence[int], **identity: Any) -> list[str]:
        return []

    def tokenizer(self) -> None:
        return None

    def close(self) -> None:
        pass

    def _told(self, found: Completion, num_skipped: int) -> Completion:
        """What a server with these manners tells of a completion."""
        server, counted = self._server, self._inside.counters()
        if server.is_counting:
            self._queries += server.num_counts * counted.queries + server.num_foreign
            self._queries += num_skipped if server.counts_skips else 0
            self._hits += counted.hits
        usage = found.num_cached_tokens if server.tells_usage else None
        knows = server.tells_counters and not server.num_foreign and server.num_counts == 1
        hits, queries = (counted.hits, counted.queries) if server.is_counting else (0, counted.queries)
        evidence = Evidence(usage, hits, queries) if knows else Evidence(usage, None, None)
        ids = found.output_token_ids if server.tells_ids else ()
        cached = usage if usage is not None else evidence.counted_hits
        return replace(found, evidence=evidence, num_cached_tokens=cached, output_token_ids=ids)
