"""SGLangMetrics: the series of SGLang 0.5.23 that this engine can fill truly, with its names, labels and buckets.

When each counts, as there:

    in each step   realtime_tokens_total: prefill_compute and decode by what was computed, again for retracted (preempted)
                   requests too; prefill_cache by what lookups found. cache_hit_rate: found / (found + computed) of the latest
                   step that computed a prompt. It is not a rate over time: a long prompt's last chunk, or one cold request,
                   makes it 0.
                   A health check (/health_generate) is counted here, and not below.
    at the end     prompt_tokens_total, generation_tokens_total, num_requests_total, cached_tokens_total (once more than 0) and
                   the histograms of requests; an aborted request too, if it had been admitted

prefill_effective_tokens_total leaves retracted requests out; it counts here with a request's first token, there with each
chunk. queue_time_seconds is observed here at a request's end, there at its first step. time_to_first_token_seconds and
inter_token_latency_seconds are those of the engine for every request; SGLang sees only what it sends, so that a request without
streaming has no gaps there. evicted_tokens_total appears with the first eviction, as there.

As in SGLang's multi-process mode a series appears with its first value, and none has a `_created` beside it.
Left out: what this engine does not have or measure (weights and graphs, hybrid models, speculation, disaggregation, LoRA pools,
routing keys, data parallelism, throughput, per-stage and HTTP series, eviction_duration_seconds).

Source: SGLang 0.5.23, srt/observability/metrics_collector.py, srt/managers/scheduler_components/metrics_reporter.py and
pool_stats_observer.py; a /metrics of that server is in tests/golden/servers/.
"""

from __future__ import annotations

import os
from typing import Iterable

from prometheus_client import CollectorRegistry, Metric, generate_latest

from engine.llm_engine import LLMEngine
from engine.request import FinishReason
from engine.server.metrics.prometheus import QUEUE_FULL
from engine.server.metrics.series import SeriesMaker
from engine.server.options import ServerOptions
from engine.server.step_report import FinishedReport, StepReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

TTFT_S = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
E2E_S = (*TTFT_S, 600, 1200, 1800, 2400)
ITL_S = (
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080,
    0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8,
)  # fmt: skip
QUEUE_S = (
    0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, *range(20, 100, 10), *range(100, 1000, 100),
    *range(1000, 2000, 200), 2000, 2500, 3000,
)  # fmt: skip
TOKENS = (
    100, 300, 500, 700, 1000, 1500, *range(2000, 10_000, 1000), *range(10_000, 30_000, 2500), 30_000, 35_000, 40_000,
    60_000, 80_000, 100_000, 200_000, 300_000, 400_000, 600_000, 800_000, 1_000_000, 1_100_000,
)  # fmt: skip

PREFILL_SOURCES = ("input", "device_hit", "host_hit", "storage_hit")


class SGLangMetrics:
    """ServerMetrics with SGLang's names."""

    def __init__(self, options: ServerOptions, engine: LLMEngine) -> None:
        self._registry = CollectorRegistry()
        # Two processes of the real server count: one that talks to clients, one that schedules.
        self._frontend = SeriesMaker(self._registry, {"engine_type": "unified", "model_name": options.model_name})
        self._scheduler = self._frontend.with_labels(moe_ep_rank="0", pp_rank="0", tp_rank="0")
        self._unit_size = engine.config.unit_size
        self._num_blocks = engine.manager.pool.num_usable
        self._max_tokens = self._num_blocks * self._unit_size
        self._open_pool(engine)
        self._open_steps(type(engine.manager.prefix_cache).__name__)
        self._open_requests()
        self._open_times()
        self._set_pool(usage=0.0, num_evictable=0)

    def observe_step(self, report: StepReport) -> None:
        self._running.of().set(report.num_running)
        self._queued.of().set(report.num_waiting)
        self._set_pool(report.kv_cache_usage, report.num_evictable_tokens)
        self._retracted.of(str(os.getpid())).set(report.num_preempted)
        if report.num_preempted:
            self._retracted_total.of().inc(report.num_preempted)
        if report.num_evicted_tokens:
            self._evicted.of().inc(report.num_evicted_tokens)
        self._count_tokens(report)
        for ttft_s, is_streaming in zip(report.ttfts_s, report.streaming_ttfts, strict=True):
            self._ttft.of(_word(is_streaming)).observe(ttft_s)
        for itl_s in report.itls_s:
            self._itl.of().observe(itl_s)

    def observe_finished(self, report: FinishedReport) -> None:
        is_aborted = report.reason is FinishReason.ABORT
        if is_aborted and not report.is_health_check:
            self._aborted.of().inc()
        started_s = report.metrics.first_scheduled_s
        if started_s is None:
            return  # it never left the queue
        self._queue_time.of().observe(started_s - report.metrics.arrival_s)
        if report.is_health_check:
            return  # its steps are counted, it is not
        streaming = _word(report.is_streaming)
        self._prompt.of(streaming).inc(report.num_prompt_tokens)
        self._generated.of(streaming).inc(report.num_output_tokens)
        self._requests.of(streaming).inc()
        if report.num_cached_tokens:
            self._cached.of("device").inc(report.num_cached_tokens)
        self._prompt_sizes.of().observe(report.num_prompt_tokens)
        self._uncached_sizes.of().observe(report.num_prompt_tokens - report.num_cached_tokens)
        self._generated_sizes.of().observe(report.num_output_tokens)
        if report.metrics.e2e_s is not None:
            self._e2e.of(streaming).observe(report.metrics.e2e_s)
        if report.metrics.tpot_s is not None and not is_aborted:  # an aborted request's mean is of a part
            self._tpot.of(streaming).observe(report.metrics.tpot_s)

    def reject(self, reason: str = QUEUE_FULL) -> None:
        pass  # SGLang has no series for it

    def render(self) -> tuple[bytes, str]:
        return generate_latest(_AsIfMultiprocess(self._registry)), CONTENT_TYPE

    def _count_tokens(self, report: StepReport) -> None:
        # A request that decodes computes one token and gets one; the step's other tokens are prompts, or their recomputation.
        num_decoded = report.num_new_tokens - len(report.first_tokens)
        num_prefilled = report.num_step_tokens - num_decoded
        lookups = report.lookups
        num_found = lookups.hits + lookups.preempted_hits
        self._realtime.of("prefill_compute").inc(num_prefilled)
        self._realtime.of("prefill_cache").inc(num_found)
        self._realtime.of("decode").inc(num_decoded)
        num_recomputed = min(lookups.preempted_queries - lookups.preempted_hits, num_prefilled)
        num_effective = lookups.hits + num_prefilled - num_recomputed
        if num_effective > 0:
            self._hit_rate.of().set(lookups.hits / num_effective)
        for num_prompt, num_cached in report.first_tokens:
            self._effective.of("input").inc(num_prompt - num_cached)
            self._effective.of("device_hit").inc(num_cached)

    def _set_pool(self, usage: float, num_evictable: int) -> None:
        num_used = round(usage * self._num_blocks) * self._unit_size
        self._usage.of().set(round(usage, 2))
        self._full_usage.of().set(num_used / self._max_tokens)
        self._used_tokens.of().set(num_used)
        self._pool_used.of().set(num_used)
        self._pool_evictable.of().set(num_evictable)
        self._pool_available.of().set(self._max_tokens - num_used - num_evictable)

    def _open_pool(self, engine: LLMEngine) -> None:
        gauge = self._scheduler.gauge
        gauge("sglang:max_total_num_tokens", "Tokens the pool can hold.").of().set(self._max_tokens)
        gauge("sglang:page_size", "Tokens of a page.").of().set(self._unit_size)
        gauge("sglang:num_pages", "Pages of the pool.").of().set(self._num_blocks)
        gauge("sglang:context_len", "Most tokens of a request.").of().set(engine.max_model_len)
        self._running = gauge("sglang:num_running_reqs", "Requests that are being computed.")
        self._queued = gauge("sglang:num_queue_reqs", "Requests in the queue.")
        self._hit_rate = gauge("sglang:cache_hit_rate", "Share of prompt tokens that were found, in the latest step with any.")
        for series in (self._running, self._queued, self._hit_rate):
            series.of().set(0)
        self._usage = gauge("sglang:token_usage", "Share of the pool's tokens that requests hold, to two digits.")
        self._full_usage = gauge("sglang:full_token_usage", "The same, in full.")
        self._used_tokens = gauge("sglang:num_used_tokens", "Tokens of the pool that requests hold.")
        self._pool_available = gauge("sglang:kv_available_tokens", "Tokens of the pool that hold nothing.")
        self._pool_evictable = gauge("sglang:kv_evictable_tokens", "Tokens of the pool that are cached, and held by no request.")
        self._pool_used = gauge("sglang:kv_used_tokens", "Tokens of the pool that requests hold.")

    def _open_steps(self, cache_type: str) -> None:
        counter = self._scheduler.counter
        self._retracted = self._scheduler.gauge("sglang:num_retracted_reqs", "Requests preempted in the latest step.", "pid")
        self._retracted_total = counter("sglang:num_retracted_requests_total", "Preemptions.")
        self._realtime = counter(
            "sglang:realtime_tokens_total", "Tokens computed or found.", "mode", ("prefill_compute", "prefill_cache", "decode")
        )
        self._effective = counter(
            "sglang:prefill_effective_tokens_total", "Prompt tokens computed or found, each once.", "mode", PREFILL_SOURCES
        )
        ranks = SeriesMaker(self._registry, {"cache_type": cache_type, "dp_rank": "0", "pp_rank": "0", "tp_rank": "0"})
        self._evicted = ranks.counter("sglang:evicted_tokens_total", "Cached tokens given up to make room.")

    def _open_requests(self) -> None:
        counter, histogram = self._frontend.counter, self._frontend.histogram
        self._prompt = counter("sglang:prompt_tokens_total", "Prompt tokens of requests that ended.", "is_streaming")
        self._generated = counter("sglang:generation_tokens_total", "Tokens generated for them.", "is_streaming")
        self._requests = counter("sglang:num_requests_total", "Requests that ended.", "is_streaming")
        self._cached = counter("sglang:cached_tokens_total", "Prompt tokens found, of requests that ended.", "cache_source")
        self._aborted = counter("sglang:num_aborted_requests_total", "Requests aborted.")
        self._prompt_sizes = histogram("sglang:prompt_tokens_histogram", "Prompt tokens of a request.", TOKENS)
        self._uncached_sizes = histogram("sglang:uncached_prompt_tokens_histogram", "Those of them that were computed.", TOKENS)
        self._generated_sizes = histogram("sglang:generation_tokens_histogram", "Tokens generated for a request.", TOKENS)

    def _open_times(self) -> None:
        histogram, streaming = self._frontend.histogram, "is_streaming"
        self._queue_time = self._scheduler.histogram("sglang:queue_time_seconds", "From arrival to the first step.", QUEUE_S)
        self._ttft = histogram("sglang:time_to_first_token_seconds", "From arrival to the first token.", TTFT_S, streaming)
        self._e2e = histogram("sglang:e2e_request_latency_seconds", "From arrival to the end.", E2E_S, streaming)
        self._tpot = histogram("sglang:request_time_per_output_token_seconds", "Mean of a request's gaps.", ITL_S, streaming)
        self._itl = histogram("sglang:inter_token_latency_seconds", "Between two tokens of a request.", ITL_S)


class _AsIfMultiprocess:
    """A registry as prometheus_client's multi-process mode shows it: no `_created`, nothing of a series without values."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            if metric.samples:
                yield metric


def _word(value: bool) -> str:
    return "true" if value else "false"
