"""What each metric counts, and when."""

from __future__ import annotations

import math
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.config import EngineConfig
from engine.metrics import PrefixCacheStats, RequestMetrics
from engine.request import FinishReason, SamplingParams
from engine.server.engine_loop import EngineLoop
from engine.server.metrics.prometheus import open_metrics
from engine.server.open_engine import open_engine
from engine.server.options import ServerOptions
from engine.server.step_report import FinishedReport, StepReport

NO_LOOKUP = PrefixCacheStats()


class Scrape:
    """One rendering, asked by name and some of the labels."""

    def __init__(self, metrics):
        self.samples = [
            sample for family in text_string_to_metric_families(metrics.render()[0].decode()) for sample in family.samples
        ]

    def __call__(self, name, **labels):
        """The one value that fits; None for none."""
        values = [one.value for one in self.samples if one.name == name and labels.items() <= one.labels.items()]
        assert len(values) <= 1, name
        return values[0] if values else None


def metrics_of(flavor, **fields):
    fields = {"model": "llama-3-8b", "prefix_cache": "radix" if flavor == "sglang" else "hash", **fields}
    engine = open_engine(EngineConfig(**fields), "sim", pace=0.0)
    return open_metrics(ServerOptions(flavor=flavor), engine), engine


def step(num_step_tokens=0, lookups=NO_LOOKUP, **fields):
    pool = {"kv_cache_usage": 0.0, "num_evictable_tokens": 0}
    fixed = {"now_s": 1.0, "num_running": 0, "num_waiting": 0, "num_preempted": 0, **pool}
    return StepReport(**{**fixed, "num_step_tokens": num_step_tokens, "lookups": lookups, **fields})


def finished(times_s, started_s=1.5, reason=FinishReason.LENGTH, **fields):
    metrics = RequestMetrics(1.0, started_s, list(times_s), times_s[-1] if times_s else 9.0)
    fixed = {"num_prompt_tokens": 40, "num_cached_tokens": 16, "max_tokens": 8, "num_preemptions": 0, "is_streaming": False}
    return FinishedReport(**{**fixed, "num_output_tokens": len(times_s), "reason": reason, "metrics": metrics, **fields})


def serve(engine, metrics, prompts, max_tokens=4, is_streaming=False):
    """Prompts one after the other through the engine's loop."""
    loop = EngineLoop(engine, metrics)
    loop.start(lambda put: put())
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    for prompt in prompts:
        await_end(loop.submit([engine.make_request(prompt, params)], is_streaming))
    loop.stop()
    return Scrape(metrics)


def await_end(tickets):
    pause = threading.Event()
    while not all(ticket.is_ended for ticket in tickets):
        pause.wait(0.001)


def ids(number, length):
    return [1_000 + number * 10_000 + position for position in range(length)]


# vLLM


def test_lookups_count_when_a_request_is_admitted_and_prompts_when_the_first_token_is_there():
    metrics, _ = metrics_of("vllm")
    metrics.observe_step(step(64, PrefixCacheStats(requests=1, queries=100, hits=32)))  # admitted, half computed
    scrape = Scrape(metrics)
    assert scrape("vllm:prefix_cache_queries_total") == 100
    assert scrape("vllm:prefix_cache_hits_total") == 32
    assert scrape("vllm:prompt_tokens_cached_by_source_total", source="device") == 32
    assert scrape("vllm:prompt_tokens_total") == 0
    assert scrape("vllm:iteration_tokens_total_count") == 0
    metrics.observe_step(step(4, first_tokens=((100, 32),), num_new_tokens=1, ttfts_s=(0.03,), streaming_ttfts=(False,)))
    scrape = Scrape(metrics)
    assert scrape("vllm:prompt_tokens_total") == 100
    assert scrape("vllm:prompt_tokens_cached_total") == 32
    assert scrape("vllm:prompt_tokens_by_source_total", source="local_compute") == 68
    assert scrape("vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 32
    assert scrape("vllm:iteration_tokens_total_sum") == 69  # 68 computed and one new
    assert scrape("vllm:time_to_first_token_seconds_bucket", le="0.02") == 0
    assert scrape("vllm:time_to_first_token_seconds_bucket", le="0.04") == 1


def test_lookups_of_preempted_requests_are_in_neither_queries_nor_hits():
    metrics, _ = metrics_of("vllm")
    again = PrefixCacheStats(preempted_requests=1, preempted_queries=50, preempted_hits=48)
    metrics.observe_step(step(8, again, num_preempted=2))
    scrape = Scrape(metrics)
    assert scrape("vllm:prefix_cache_queries_total") == scrape("vllm:prefix_cache_hits_total") == 0
    assert scrape("vllm:num_preemptions_total") == 2


def test_gauges_tell_of_the_latest_report():
    metrics, _ = metrics_of("vllm")
    metrics.observe_step(step(num_running=3, num_waiting=2, kv_cache_usage=0.25))
    metrics.observe_step(step(num_running=1, num_waiting=5, kv_cache_usage=0.125))
    scrape = Scrape(metrics)
    assert scrape("vllm:num_requests_running") == 1
    assert scrape("vllm:num_requests_waiting") == scrape("vllm:num_requests_waiting_by_reason", reason="capacity") == 5
    assert scrape("vllm:num_requests_waiting_by_reason", reason="deferred") == 0
    assert scrape("vllm:kv_cache_usage_perc") == 0.125


def test_the_phases_of_a_request_add_up():
    metrics, _ = metrics_of("vllm")
    metrics.observe_finished(finished([2.0, 2.25, 2.75]))
    scrape = Scrape(metrics)
    assert scrape("vllm:request_queue_time_seconds_sum") == 0.5
    assert scrape("vllm:request_prefill_time_seconds_sum") == 0.5
    assert scrape("vllm:request_decode_time_seconds_sum") == 0.75
    assert scrape("vllm:request_inference_time_seconds_sum") == 1.25
    assert scrape("vllm:e2e_request_latency_seconds_sum") == 1.75
    assert scrape("vllm:request_time_per_output_token_seconds_sum") == 0.375
    assert scrape("vllm:request_prefill_kv_computed_tokens_sum") == 24
    assert scrape("vllm:request_params_max_tokens_sum") == 8
    assert scrape("vllm:request_success_total", finished_reason="length") == 1


def test_an_aborted_request_is_counted_and_nothing_of_it_is_measured():
    metrics, _ = metrics_of("vllm")
    metrics.observe_finished(finished([2.0], reason=FinishReason.ABORT))
    metrics.observe_finished(finished([], started_s=None, reason=FinishReason.ABORT))
    scrape = Scrape(metrics)
    assert scrape("vllm:request_success_total", finished_reason="abort") == 2
    assert scrape("vllm:e2e_request_latency_seconds_count") == scrape("vllm:request_prompt_tokens_count") == 0


def test_a_rejection_counts_under_the_limit_that_caused_it():
    metrics, _ = metrics_of("vllm")
    metrics.reject()
    scrape = Scrape(metrics)
    assert scrape("vllm:admission_rejections_total", reason="max_num_queued_reqs") == 1
    assert scrape("vllm:admission_rejections_total", reason="max_num_queued_tokens") == 0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"block_size": "16", "num_gpu_blocks": "2049", "kv_cache_size_tokens": "32784"}),
        ({}, {"prefix_caching_hash_algo": "sha256", "enable_prefix_caching": "True", "num_gpu_blocks_override": "None"}),
        ({"block_size": 32, "num_gpu_blocks": 100}, {"block_size": "32", "num_gpu_blocks_override": "100"}),
        ({"enable_prefix_caching": False}, {"enable_prefix_caching": "False", "prefix_caching_hash_algo": "None"}),
        ({"prefix_match_unit": 64}, {"cache_hit_alignment_tokens": "None", "prefix_match_unit": "64", "hash_block_size": "None"}),
        ({"prefix_cache": "radix", "page_size": 4}, {"block_size": "4", "hash_block_size": "None"}),
        ({"max_model_len": 1000, "num_gpu_blocks": 126}, {"kv_cache_max_concurrency": "2.0", "sliding_window": "None"}),
    ],
)
def test_the_configuration_is_told_in_labels(fields, expected):
    metrics, _ = metrics_of("vllm", **fields)
    (info,) = [sample for sample in Scrape(metrics).samples if sample.name == "vllm:cache_config_info"]
    assert info.value == 1
    assert expected.items() <= info.labels.items()


def test_a_served_repeat_hits_all_its_whole_blocks_but_the_last_tokens():
    metrics, engine = metrics_of("vllm")
    scrape = serve(engine, metrics, [ids(1, 200), ids(1, 200), ids(2, 32), ids(2, 32)])
    hits = 192 + 16
    assert scrape("vllm:prefix_cache_queries_total") == scrape("vllm:prompt_tokens_total") == 464
    assert scrape("vllm:prefix_cache_hits_total") == scrape("vllm:prompt_tokens_cached_total") == hits
    assert scrape("vllm:iteration_tokens_total_sum") == 464 - hits + 16
    assert scrape("vllm:generation_tokens_total") == scrape("vllm:request_generation_tokens_sum") == 16
    assert scrape("vllm:inter_token_latency_seconds_count") == 12
    assert scrape("vllm:request_success_total", finished_reason="length") == 4
    assert scrape("vllm:num_requests_running") == scrape("vllm:kv_cache_usage_perc") == 0


def test_a_request_that_was_preempted_while_served_is_looked_up_once_for_the_counters():
    metrics, engine = metrics_of("vllm", num_gpu_blocks=10)  # 144 tokens: not enough for two of 60 + 40
    loop = EngineLoop(engine, metrics)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    loop.start(lambda put: put())
    await_end(loop.submit([engine.make_request(ids(number, 60), params) for number in (1, 2)]))
    loop.stop()
    scrape = Scrape(metrics)
    assert scrape("vllm:num_preemptions_total") == scrape("vllm:request_num_preemptions_sum") > 0
    assert scrape("vllm:prefix_cache_queries_total") == scrape("vllm:prompt_tokens_total") == 120
    assert scrape("vllm:prefix_cache_hits_total") == 0
    assert scrape("vllm:generation_tokens_total") == 80


# SGLang


def test_the_hit_rate_is_that_of_the_latest_step_with_prompts_and_no_average():
    metrics, _ = metrics_of("sglang")
    rates = []
    for report in (
        step(1, PrefixCacheStats(requests=1, queries=200, hits=199), first_tokens=((200, 199),), num_new_tokens=1),
        step(1, num_new_tokens=1),  # a decode: the gauge stays
        step(200, PrefixCacheStats(requests=1, queries=200, hits=0), first_tokens=((200, 0),), num_new_tokens=1),
    ):
        metrics.observe_step(report)
        rates.append(Scrape(metrics)("sglang:cache_hit_rate"))
    assert rates == [0.995, 0.995, 0.0]
    scrape = Scrape(metrics)
    assert scrape("sglang:prefill_effective_tokens_total", mode="device_hit") == 199
    assert scrape("sglang:prefill_effective_tokens_total", mode="input") == 201
    assert scrape("sglang:realtime_tokens_total", mode="prefill_compute") == 201
    assert scrape("sglang:realtime_tokens_total", mode="decode") == 1


def test_a_retracted_request_counts_again_where_work_counts_and_not_where_prompts_count():
    metrics, _ = metrics_of("sglang")
    # One is new: 90 of 100 tokens found. One is back: 40 of 50 found. Each gets a token, the latter as if it decoded.
    both = PrefixCacheStats(requests=1, queries=100, hits=90, preempted_requests=1, preempted_queries=50, preempted_hits=40)
    metrics.observe_step(step(21, both, first_tokens=((100, 90),), num_new_tokens=2))
    scrape = Scrape(metrics)
    assert scrape("sglang:realtime_tokens_total", mode="prefill_compute") == 20
    assert scrape("sglang:realtime_tokens_total", mode="prefill_cache") == 130
    assert scrape("sglang:prefill_effective_tokens_total", mode="input") == 10
    assert scrape("sglang:cache_hit_rate") == 0.9


def test_cached_tokens_are_counted_at_the_end_and_not_shown_before_there_are_any():
    metrics, _ = metrics_of("sglang")
    metrics.observe_finished(finished([2.0], num_cached_tokens=0))
    assert Scrape(metrics)("sglang:cached_tokens_total") is None
    metrics.observe_finished(finished([2.0, 3.0], is_streaming=True))
    scrape = Scrape(metrics)
    assert scrape("sglang:cached_tokens_total", cache_source="device") == 16
    assert [scrape("sglang:prompt_tokens_total", is_streaming=word) for word in ("true", "false")] == [40, 40]
    assert scrape("sglang:uncached_prompt_tokens_histogram_sum") == 64
    assert scrape("sglang:num_requests_total", is_streaming="true") == 1
    assert scrape("sglang:request_time_per_output_token_seconds_count", is_streaming="false") is None  # one token: no gap
    assert scrape("sglang:request_time_per_output_token_seconds_sum", is_streaming="true") == 1.0


def test_an_aborted_request_counts_as_one_and_as_served_only_if_it_had_been_admitted():
    metrics, _ = metrics_of("sglang")
    metrics.observe_finished(finished([], started_s=None, reason=FinishReason.ABORT))
    assert Scrape(metrics)("sglang:num_requests_total") is None
    metrics.observe_finished(finished([2.0, 3.0], reason=FinishReason.ABORT))
    scrape = Scrape(metrics)
    assert scrape("sglang:num_aborted_requests_total") == 2
    assert scrape("sglang:num_requests_total") == 1
    assert scrape("sglang:request_time_per_output_token_seconds_count") is None  # the mean of a part


def test_the_pools_tokens_are_available_evictable_or_used():
    metrics, _ = metrics_of("sglang", page_size=16, num_gpu_blocks=65)
    metrics.observe_step(step(kv_cache_usage=3 / 64, num_evictable_tokens=160))
    scrape = Scrape(metrics)
    assert scrape("sglang:max_total_num_tokens") == 1024
    assert scrape("sglang:num_pages") == 64
    assert scrape("sglang:page_size") == 16
    assert scrape("sglang:kv_used_tokens") == scrape("sglang:num_used_tokens") == 48
    assert scrape("sglang:kv_evictable_tokens") == 160
    assert scrape("sglang:kv_available_tokens") == 816
    assert scrape("sglang:token_usage") == 0.05
    assert math.isclose(scrape("sglang:full_token_usage"), 3 / 64)


def test_a_served_repeat_hits_all_but_its_last_token_and_evictions_are_counted():
    metrics, engine = metrics_of("sglang", num_gpu_blocks=401)
    scrape = serve(engine, metrics, [ids(1, 200), ids(1, 200)], max_tokens=1, is_streaming=True)
    assert scrape("sglang:cached_tokens_total") == scrape("sglang:realtime_tokens_total", mode="prefill_cache") == 199
    assert scrape("sglang:prefill_effective_tokens_total", mode="input") == 201
    assert scrape("sglang:time_to_first_token_seconds_count", is_streaming="true") == 2
    assert scrape("sglang:kv_evictable_tokens") == 200
    assert scrape("sglang:evicted_tokens_total") is None
    # 300 more do not fit beside the 200: the one leaf goes, whole.
    scrape = serve(engine, metrics, [ids(2, 300)], max_tokens=1)
    assert scrape("sglang:evicted_tokens_total") == 200
    assert scrape("sglang:kv_evictable_tokens") == 300
    assert scrape("sglang:kv_available_tokens") == 100


@pytest.mark.parametrize("flavor", ["vllm", "sglang"])
def test_two_servers_in_one_process_count_apart(flavor):
    first, _ = metrics_of(flavor)
    second, _ = metrics_of(flavor)
    first.observe_step(step(num_running=7))
    name = {"vllm": "vllm:num_requests_running", "sglang": "sglang:num_running_reqs"}[flavor]
    assert (Scrape(first)(name), Scrape(second)(name)) == (7, 0)
