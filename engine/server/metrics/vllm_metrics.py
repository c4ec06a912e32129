"""VLLMMetrics: the series of vLLM 0.32.0 that this engine can fill truly, with its names, labels and buckets.

When each counts, as there:

    at admission     prefix_cache_queries, prefix_cache_hits, prompt_tokens_cached_by_source: lookups of requests that were
                     not preempted, the whole prompt for a query; a request that skips the lookup is in neither
    at first token   prompt_tokens, prompt_tokens_by_source, prompt_tokens_cached, time_to_first_token_seconds
    at each token    generation_tokens, inter_token_latency_seconds, iteration_tokens_total (prompt tokens that were computed,
                     all at once with the first token, and new tokens; a step without a new token is not observed)
    at the end       request_success and the histograms of requests

Two things differ, where vLLM tells less than happened. An aborted request counts in request_success{abort}: vLLM forgets those
whose client has gone. A preemption counts in its step: vLLM counts it with that request's next token.

The series of drafts are there beside a drafter alone, as there, and stay zero: this engine has what a drafter does to the
prefix cache, and drafts nothing.

Always zero, as on a vLLM without what they are about: external_prefix_cache_*, the sources external_kv_transfer, host, p2p,
disk and external_unspecified, num_requests_waiting_by_reason{deferred}, the reasons error and repetition.
Left out: estimated_flops and bytes, mm_cache_*, engine_sleep_state, python_*, process_* and http_* series.

Source: vLLM 0.32.0, v1/metrics/loggers.py, stats.py and buckets.py; a /metrics of that server is in tests/golden/servers/.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.request import FinishReason
from engine.server.metrics.prometheus import QUEUE_FULL, QUEUE_FULL_OF_TOKENS
from engine.server.metrics.series import SeriesMaker
from engine.server.options import ServerOptions
from engine.server.step_report import FinishedReport, StepReport

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

REQUEST_LATENCY_S = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
STEP_TOKENS = (1, *(2**power for power in range(3, 15)))
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)

FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
CACHE_SOURCES = ("device", "host", "p2p", "disk", "external_unspecified")
WAITING_REASONS = ("capacity", "deferred")

# Attributes of vLLM's cache configuration that this engine has no counterpart of; vLLM's workers alone know two of them,
# the unit of hashes and the alignment of hits, and never tell the process that shows them.
_ABSENT = (
    "cache_hit_alignment_tokens", "hash_block_size",
    "enable_mamba_shared_prefix_checkpoint", "gpu_memory_utilization", "kv_cache_dtype_skip_layers", "kv_cache_layout",
    "kv_offloading_backend", "kv_offloading_size", "kv_sharing_fast_prefill", "mamba_block_size", "mamba_cache_dtype",
    "mamba_cache_mode", "mamba_page_size_padded", "mamba_ssm_cache_dtype", "num_cpu_blocks", "prefix_cache_retention_interval",
    "replayssm_buffer_len", "skip_page_size_padded", "sliding_window", "swa_bounded_replay", "use_kda_recoverssm",
    "use_replayssm", "user_specified_block_size",
)  # fmt: skip


class VLLMMetrics:
    """ServerMetrics with vLLM's names."""

    def __init__(self, options: ServerOptions, engine: LLMEngine) -> None:
        self._registry = CollectorRegistry()
        self._server_maker = SeriesMaker(self._registry, {"model_name": options.model_name}, shows_zero=True)
        self._maker = self._server_maker.with_labels(engine="0")
        token_buckets = _request_tokens(engine.max_model_len)
        self._open_state()
        self._open_tokens()
        if engine.config.use_eagle:
            for what in ("drafts", "draft_tokens", "accepted_tokens"):
                self._maker.counter(f"vllm:spec_decode_num_{what}", "Of a speculative drafter; it drafts nothing here.")
        self._open_requests(token_buckets)
        self._open_times(token_buckets)
        info = SeriesMaker(self._registry, cache_config_labels(engine))
        info.gauge("vllm:cache_config_info", "The cache's configuration; the value is always 1.").of().set(1)

    def observe_step(self, report: StepReport) -> None:
        self._running.of().set(report.num_running)
        self._waiting.of().set(report.num_waiting)
        self._waiting_by_reason.of("capacity").set(report.num_waiting)
        self._usage.of().set(report.kv_cache_usage)
        self._queries.of().inc(report.lookups.queries)
        self._hits.of().inc(report.lookups.hits)
        self._cached_by_source.of("device").inc(report.lookups.hits)
        self._preemptions.of().inc(report.num_preempted)
        self._generated.of().inc(report.num_new_tokens)
        num_prompt = sum(prompt for prompt, _ in report.first_tokens)
        num_cached = sum(cached for _, cached in report.first_tokens)
        self._prompt.of().inc(num_prompt)
        self._prompt_by_source.of("local_compute").inc(num_prompt - num_cached)
        self._prompt_by_source.of("local_cache_hit").inc(num_cached)
        self._cached.of().inc(num_cached)
        if report.num_new_tokens:
            self._step_tokens.of().observe(num_prompt - num_cached + report.num_new_tokens)
        for ttft_s in report.ttfts_s:
            self._ttft.of().observe(ttft_s)
        for itl_s in report.itls_s:
            self._itl.of().observe(itl_s)

    def observe_finished(self, report: FinishedReport) -> None:
        self._success.of(report.reason.value).inc()
        times_s = report.metrics.token_times_s
        started_s = report.metrics.first_scheduled_s
        # vLLM observes no times and sizes of an aborted request; one without a token has none to observe.
        if report.reason is FinishReason.ABORT or not times_s or started_s is None:
            return
        self._request_prompt.of().observe(report.num_prompt_tokens)
        self._request_generated.of().observe(report.num_output_tokens)
        self._request_most_generated.of().observe(report.num_output_tokens)
        self._request_n.of().observe(1)
        self._request_max_tokens.of().observe(report.max_tokens)
        self._request_preemptions.of().observe(report.num_preemptions)
        self._request_computed.of().observe(report.num_prompt_tokens - report.num_cached_tokens)
        self._tpot.of().observe(report.metrics.tpot_s or 0.0)  # one token: no gap, and vLLM observes a zero
        self._e2e.of().observe(report.metrics.e2e_s)
        self._queue_time.of().observe(started_s - report.metrics.arrival_s)
        self._prefill_time.of().observe(times_s[0] - started_s)
        self._decode_time.of().observe(times_s[-1] - times_s[0])
        self._inference_time.of().observe(times_s[-1] - started_s)

    def reject(self, reason: str = QUEUE_FULL) -> None:
        self._rejections.of(reason).inc()

    def render(self) -> tuple[bytes, str]:
        return generate_latest(self._registry), CONTENT_TYPE

    def _open_state(self) -> None:
        gauge = self._maker.gauge
        self._running = gauge("vllm:num_requests_running", "Requests that are being computed.")
        self._waiting = gauge("vllm:num_requests_waiting", "Requests in the queue.")
        self._waiting_by_reason = gauge(
            "vllm:num_requests_waiting_by_reason", "Requests in the queue, by what they wait for.", "reason", WAITING_REASONS
        )
        self._usage = gauge("vllm:kv_cache_usage_perc", "Share of the pool's blocks that requests hold; 1 is all of them.")

    def _open_tokens(self) -> None:
        counter = self._maker.counter
        self._queries = counter("vllm:prefix_cache_queries", "Tokens of requests that looked their prefix up.")
        self._hits = counter("vllm:prefix_cache_hits", "Tokens found by these lookups.")
        counter("vllm:external_prefix_cache_queries", "Tokens looked up in a cache outside this server; it has none.")
        counter("vllm:external_prefix_cache_hits", "Tokens found in a cache outside this server; it has none.")
        self._preemptions = counter("vllm:num_preemptions", "Preemptions: a request gave its blocks back and waits again.")
        self._prompt = counter("vllm:prompt_tokens", "Prompt tokens of requests that got their first token.")
        self._prompt_by_source = counter(
            "vllm:prompt_tokens_by_source", "The same, by where their K/V came from.", "source", PROMPT_SOURCES
        )
        self._cached = counter("vllm:prompt_tokens_cached", "Those of them that were found in a cache.")
        self._cached_by_source = counter(
            "vllm:prompt_tokens_cached_by_source", "Tokens found by lookups, by the cache that had them.", "source", CACHE_SOURCES
        )
        self._generated = counter("vllm:generation_tokens", "Tokens generated.")

    def _open_requests(self, token_buckets: tuple[int, ...]) -> None:
        histogram = self._maker.histogram
        self._success = self._maker.counter(
            "vllm:request_success", "Requests that ended, by reason.", "finished_reason", FINISHED_REASONS
        )
        self._rejections = self._server_maker.counter(
            "vllm:admission_rejections", "Requests turned away at a queue's limit.", "reason", (QUEUE_FULL, QUEUE_FULL_OF_TOKENS)
        )
        self._request_prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", token_buckets)
        self._request_generated = histogram("vllm:request_generation_tokens", "Tokens generated for a request.", token_buckets)
        self._step_tokens = histogram("vllm:iteration_tokens_total", "Tokens of a step.", STEP_TOKENS)
        self._request_most_generated = histogram(
            "vllm:request_max_num_generation_tokens", "Tokens of a request's longest choice; there is one.", token_buckets
        )
        self._request_n = histogram("vllm:request_params_n", "Choices a request asks for.", CHOICES)
        self._request_max_tokens = histogram("vllm:request_params_max_tokens", "Most tokens a request asks for.", token_buckets)

    def _open_times(self, token_buckets: tuple[int, ...]) -> None:
        histogram, latency_s = self._maker.histogram, REQUEST_LATENCY_S
        self._ttft = histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", TTFT_S)
        self._itl = histogram("vllm:inter_token_latency_seconds", "Between two tokens of a request.", ITL_S)
        self._tpot = histogram("vllm:request_time_per_output_token_seconds", "The mean of these in one request.", ITL_S)
        self._e2e = histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token.", latency_s)
        self._queue_time = histogram("vllm:request_queue_time_seconds", "From arrival to the first step.", latency_s)
        self._inference_time = histogram("vllm:request_inference_time_seconds", "From there to the last token.", latency_s)
        self._prefill_time = histogram("vllm:request_prefill_time_seconds", "From the first step to the first token.", latency_s)
        self._decode_time = histogram("vllm:request_decode_time_seconds", "From the first token to the last.", latency_s)
        self._request_preemptions = histogram("vllm:request_num_preemptions", "How often a request was preempted.", PREEMPTIONS)
        self._request_computed = histogram(
            "vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that were computed, not found.", token_buckets
        )


def cache_config_labels(engine: LLMEngine) -> dict[str, str]:
    """Labels of vllm:cache_config_info: the cache's configuration in vLLM's words, as texts.

    block_size, and what follows from it, is the page size with the radix cache. "None" stands for what is not set and
    for what this engine does not have.
    """
    config: EngineConfig = engine.config
    unit_size, num_blocks = config.unit_size, engine.manager.pool.num_blocks
    has_names = config.enable_prefix_caching and config.prefix_cache == "hash"
    known = {
        "_block_size_resolved": True,
        "block_size": unit_size,
        "cache_dtype": "auto",  # that of the model
        "effective_attention_block_size": unit_size,
        "enable_prefix_caching": config.enable_prefix_caching,
        "is_attention_free": False,
        "kv_cache_max_concurrency": num_blocks / -(-engine.max_model_len // unit_size),
        "kv_cache_memory_bytes": config.kv_cache_memory_bytes,
        "kv_cache_size_tokens": num_blocks * unit_size,  # the null block included, as there
        "num_gpu_blocks": num_blocks,
        "num_gpu_blocks_override": config.num_gpu_blocks,
        "prefix_caching_hash_algo": config.prefix_caching_hash_algo if has_names else None,
        "prefix_match_unit": config.prefix_match_unit,
    }
    return {"engine": "0", **{name: str(value) for name, value in {**dict.fromkeys(_ABSENT), **known}.items()}}


def _request_tokens(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, ... up to the longest request."""
    series = (digit * 10**power for power in range(len(str(max_model_len))) for digit in (1, 2, 5))
    return tuple(value for value in series if value <= max_model_len)
