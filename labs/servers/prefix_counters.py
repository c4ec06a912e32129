"""A server's counters of tokens looked up and found, by engine and version, and how much they grew.

    vLLM      vllm:prefix_cache_{queries,hits}_total, tokens, at admission; before 0.9.2 with `gpu_` in front
    SGLang    sglang:prefill_effective_tokens_total{mode}: input was computed, *_hit was found; older: cached and prompt tokens

Counters run since the server started: only their growth says something about a run. A counter that fell was restarted.
SGLang's gauge cache_hit_rate is the latest batch's rate, thus no rate of anything a person asks; it is not read.

SGLang answers a health check by computing one token of its own, which joins `input` though nobody sent it: a balancer that
asks every few seconds would look like other people's traffic. So the checks are read too, and told apart (`without_checks`).
Source: SGLang 0.5.23, srt/entrypoints/http_server.py (health_generate); seen on a running one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from labs.servers.metrics_page import MetricsPage

VLLM_QUERIES = (
    "vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries",
    "vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries",
)  # fmt: skip
VLLM_HITS = (
    "vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits",
    "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits",
)  # fmt: skip
SGLANG_EFFECTIVE = ("sglang:prefill_effective_tokens_total",)
SGLANG_HIT_MODES = ("device_hit", "host_hit", "storage_hit")
SGLANG_CACHED = ("sglang:cached_tokens_total",)
SGLANG_PROMPT = ("sglang:prompt_tokens_total",)
SGLANG_BEGUN, SGLANG_ACTIVE = ("sglang:http_requests_total",), ("sglang:http_requests_active",)
SGLANG_CHECKS = ("/health", "/health_generate")
# All that a reading needs.
SERIES = (*VLLM_QUERIES, *VLLM_HITS, *SGLANG_EFFECTIVE, *SGLANG_CACHED, *SGLANG_PROMPT, *SGLANG_BEGUN, *SGLANG_ACTIVE)


@dataclass(frozen=True)
class CounterReading:
    """Lifetime counts at one moment, in tokens; None where the page has no such series."""

    queries: int | None
    hits: int | None
    source: str = ""  # whose series: counts of two sources have nothing in common
    num_checks: int = field(default=0, compare=False)  # health checks begun that are among the queries, one token each
    num_checks_active: int = field(default=0, compare=False)  # of these the ones that have not ended

    @classmethod
    def of(cls, page: MetricsPage) -> CounterReading:
        """From whichever engine's series the page has."""
        queries, hits, source = page.total(VLLM_QUERIES), page.total(VLLM_HITS), "lookups"
        if queries is None and hits is None:
            computed, source = page.total(SGLANG_EFFECTIVE, mode="input"), "prefills"
            hits = page.total(SGLANG_EFFECTIVE, mode=SGLANG_HIT_MODES)
            queries = None if computed is None or hits is None else computed + hits
            begun, active = (page.total(names, endpoint=SGLANG_CHECKS) for names in (SGLANG_BEGUN, SGLANG_ACTIVE))
            if queries is not None:
                return cls(_whole(queries), _whole(hits), source, _whole(begun) or 0, _whole(active) or 0)
        if queries is None and hits is None:
            # Cached tokens appear with the first hit: with a prompt counter on the page, none yet means 0.
            queries, hits, source = page.total(SGLANG_PROMPT), page.total(SGLANG_CACHED), "finished requests"
            hits = 0 if hits is None and queries is not None else hits
        return cls(_whole(queries), _whole(hits), source)

    @property
    def is_known(self) -> bool:
        return self.queries is not None and self.hits is not None

    def has_fallen_since(self, earlier: CounterReading) -> bool:
        """Whether a counter is lower than it was, which no counter of one running server ever is."""
        is_comparable = self.is_known and earlier.is_known and self.source == earlier.source
        return is_comparable and (self.queries < earlier.queries or self.hits < earlier.hits)

    def growth_since(self, earlier: CounterReading) -> CounterReading:
        """What was counted since; unknown where either reading is, or where a counter fell: the server was restarted."""
        if not (self.is_known and earlier.is_known) or self.source != earlier.source or self.has_fallen_since(earlier):
            return CounterReading(None, None)
        queries, hits = self.queries - earlier.queries, self.hits - earlier.hits
        num_checks = max(0, self.num_checks - earlier.num_checks + earlier.num_checks_active)
        return CounterReading(queries, hits, self.source, num_checks)

    def without_checks(self, num_sent: int) -> CounterReading:
        """This growth as that of `num_sent` tokens, where all beyond them can be the server's own checks; else as it is."""
        is_checks = self.is_known and 0 < self.queries - num_sent <= self.num_checks
        return replace(self, queries=num_sent) if is_checks else self


def _whole(value: float | None) -> int | None:
    # NaN, infinities and numbers below zero are no counts.
    return int(value) if value is not None and 0 <= value < 2**63 else None
