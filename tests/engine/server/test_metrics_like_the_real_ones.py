"""Every series has the name, type, labels and buckets that the real server's /metrics showed."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.config import EngineConfig
from engine.metrics import PrefixCacheStats, RequestMetrics
from engine.request import FinishReason
from engine.server.metrics.prometheus import open_metrics
from engine.server.open_engine import open_engine
from engine.server.options import ServerOptions
from engine.server.step_report import FinishedReport, StepReport

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "servers"
CAPTURED = {"vllm": "vllm-0.32.0-cpu/metrics.txt", "sglang": "sglang-0.5.23-cpu/metrics.txt"}

# In SGLang's source, and not in the capture: nothing was retracted or aborted there.
NOT_CAPTURED = {"sglang:num_retracted_requests", "sglang:num_aborted_requests"}

VLLM_LEFT_OUT = (
    "python_", "process_", "http_", "vllm:estimated_", "vllm:mm_cache_", "vllm:engine_sleep_state",
)  # fmt: skip
CONTRACT_SGLANG = {
    "page_size", "num_pages", "max_total_num_tokens", "context_len", "cache_hit_rate", "cached_tokens", "prompt_tokens",
    "generation_tokens", "num_requests", "prefill_effective_tokens", "realtime_tokens", "token_usage", "num_used_tokens",
    "kv_available_tokens", "kv_evictable_tokens", "kv_used_tokens", "num_running_reqs", "num_queue_reqs", "num_retracted_reqs",
    "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds", "queue_time_seconds",
    "prompt_tokens_histogram", "uncached_prompt_tokens_histogram", "generation_tokens_histogram",
}  # fmt: skip


def families(text):
    """name -> (type, {sample name -> (names of labels, bounds of buckets)})."""
    found = {}
    for family in text_string_to_metric_families(text):
        samples = {}
        for sample in family.samples:
            labels, bounds = samples.setdefault(sample.name, (set(), set()))
            labels.update(sample.labels)
            bounds.add(sample.labels.get("le"))
        found[family.name] = (family.type, samples)
    return found


def captured(flavor):
    text = (GOLDEN / CAPTURED[flavor]).read_text(encoding="utf-8")
    if flavor == "sglang":  # evictions happened in another run
        probe = (GOLDEN / "sglang-0.5.23-cpu/probe3_page16.txt").read_text(encoding="utf-8")
        lines = [line.strip() for line in probe.splitlines()]
        evicted = [line for line in lines if line.startswith("sglang:evicted_tokens_total")]
        text += "\n".join(["# TYPE sglang:evicted_tokens_total counter", *evicted, ""])
    return families(text)


def step(**fields):
    fixed = {"now_s": 1.0, "num_running": 1, "num_waiting": 0, "kv_cache_usage": 0.5, "num_evictable_tokens": 16}
    counts = {"num_step_tokens": 40, "num_preempted": 1, "lookups": PrefixCacheStats(requests=1, queries=40, hits=16)}
    firsts = {"ttfts_s": (0.2, 0.3), "streaming_ttfts": (True, False), "first_tokens": ((40, 16), (20, 0)), "num_new_tokens": 3}
    return StepReport(**{**fixed, **counts, **firsts, "itls_s": (0.01,), "num_evicted_tokens": 32, **fields})


def finished(**fields):
    metrics = RequestMetrics(arrival_s=1.0, first_scheduled_s=1.5, token_times_s=[2.0, 2.25, 2.75], finished_s=2.75)
    fixed = {"num_prompt_tokens": 40, "num_cached_tokens": 16, "num_output_tokens": 3, "max_tokens": 8, "num_preemptions": 0}
    return FinishedReport(**{**fixed, "reason": FinishReason.LENGTH, "is_streaming": False, "metrics": metrics, **fields})


def rendered(flavor):
    """Our rendering once everything has happened."""
    # The buckets of vLLM's token histograms end at the longest request: 4096 tokens where the capture was made.
    config = EngineConfig(model="smollm2-135m", max_model_len=4096, prefix_cache="radix" if flavor == "sglang" else "hash")
    metrics = open_metrics(ServerOptions(flavor=flavor), open_engine(config, "sim", pace=0.0))
    metrics.observe_step(step())
    for reason in FinishReason:
        for is_streaming in (False, True):
            metrics.observe_finished(finished(reason=reason, is_streaming=is_streaming))
    metrics.reject()
    return metrics.render()


@pytest.mark.parametrize("flavor", CAPTURED)
def test_names_types_labels_and_buckets_are_the_captured_ones(flavor):
    real, ours = captured(flavor), families(rendered(flavor)[0].decode())
    assert not {name for name in ours if name not in real} - NOT_CAPTURED
    for name in ours.keys() - NOT_CAPTURED:
        assert ours[name] == real[name], name


def test_of_vllm_nothing_is_missing_but_what_is_said_to_be_left_out():
    missing = captured("vllm").keys() - families(rendered("vllm")[0].decode()).keys()
    assert not {name for name in missing if not name.startswith(VLLM_LEFT_OUT)}


def test_of_sglang_there_is_all_that_the_contract_names():
    ours = families(rendered("sglang")[0].decode())
    assert not {f"sglang:{name}" for name in CONTRACT_SGLANG} - ours.keys()


def test_the_values_of_closed_labels_are_the_captured_ones():
    real = text_string_to_metric_families((GOLDEN / CAPTURED["vllm"]).read_text(encoding="utf-8"))
    ours = text_string_to_metric_families(rendered("vllm")[0].decode())
    closed = ("reason", "source", "finished_reason")

    def values(found):
        return {
            (sample.name, label, sample.labels[label])
            for family in found
            for sample in family.samples
            for label in closed
            if label in sample.labels
        }

    assert values(ours) == values(real)


def test_series_come_in_the_order_of_the_real_server():
    real = list(captured("vllm"))
    ours = list(families(rendered("vllm")[0].decode()))
    assert ours == [name for name in real if name in ours]


@pytest.mark.parametrize(("flavor", "version"), [("vllm", "1.0.0"), ("sglang", "0.0.4")])
def test_the_content_type_is_the_real_servers(flavor, version):
    assert rendered(flavor)[1] == f"text/plain; version={version}; charset=utf-8"


def test_sglang_shows_no_creation_times_and_vllm_does():
    assert b"_created" not in rendered("sglang")[0]
    assert b"vllm:prefix_cache_hits_created{" in rendered("vllm")[0]
