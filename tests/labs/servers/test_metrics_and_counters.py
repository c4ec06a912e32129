"""Pages of metrics are read by exact names; what is not there is unknown, and growth is of one source alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from labs.servers.metrics_page import MetricsPage
from labs.servers.prefix_counters import SERIES, CounterReading
from labs.targets.base import TargetError

GOLDEN = Path(__file__).parents[2] / "golden" / "servers"
VLLM = (GOLDEN / "vllm-0.32.0-cpu/metrics.txt").read_text(encoding="utf-8")
SGLANG = (GOLDEN / "sglang-0.5.23-cpu/metrics.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [VLLM, SGLANG])
def test_only_the_wanted_series_are_read_and_all_are_named(text):
    page = MetricsPage.parse(text, SERIES)
    assert page.samples and set(page.samples) <= set(SERIES) & page.names and len(page.names) > 100
    assert page.has_prefix("vllm:") is (text == VLLM) and page.has_prefix("sglang:") is (text == SGLANG)
    assert all(
        len(found) == sum(line.startswith(name + "{") for line in text.splitlines()) for name, found in page.samples.items()
    )


def test_the_captured_pages_give_the_counts_they_hold():
    assert CounterReading.of(MetricsPage.parse(SGLANG, SERIES)) == CounterReading(2264 + 2761, 2761, "prefills")
    assert CounterReading.of(MetricsPage.parse(VLLM, SERIES)).source == "lookups"


def reading(*lines):
    return CounterReading.of(MetricsPage.parse("\n".join(lines) + "\n", SERIES))


def test_engines_are_summed_and_created_series_are_none():
    found = reading(
        'vllm:prefix_cache_queries_total{engine="0"} 100.0',
        'vllm:prefix_cache_queries_total{engine="1"} 50.0',
        'vllm:prefix_cache_queries_created{engine="0"} 1.7e9',
        'vllm:prefix_cache_hits_total{engine="0"} 64.0',
        'vllm:prefix_cache_hits_total{engine="1"} 0.0',
        'vllm:external_prefix_cache_hits_total{engine="0"} 999.0',
    )
    assert (found.queries, found.hits) == (150, 64)


def test_names_of_older_releases_are_known():
    assert reading("vllm:gpu_prefix_cache_queries 10", "vllm:gpu_prefix_cache_hits 4") == CounterReading(10, 4, "lookups")
    assert reading("sglang:prompt_tokens_total 10", "sglang:cached_tokens_total 4") == CounterReading(10, 4, "finished requests")
    assert reading("sglang:prompt_tokens_total 10") == CounterReading(10, 0, "finished requests")


def test_a_rate_of_the_latest_batch_a_gauge_or_an_empty_page_is_unknown_and_never_zero():
    assert not reading("sglang:cache_hit_rate 0.995", "vllm:gpu_prefix_cache_hit_rate 0.5").is_known
    assert reading("") == CounterReading(None, None, "finished requests") and not reading("").is_known
    assert not reading("vllm:prefix_cache_queries_total NaN", "vllm:prefix_cache_hits_total 3").is_known


def test_growth_is_unknown_when_a_counter_fell_or_another_source_answers():
    before, after = CounterReading(100, 50, "lookups"), CounterReading(160, 90, "lookups")
    assert after.growth_since(before) == CounterReading(60, 40, "lookups")
    assert not before.growth_since(after).is_known
    assert not after.growth_since(CounterReading(100, 50, "prefills")).is_known
    assert not after.growth_since(CounterReading(None, None)).is_known


def test_the_health_checks_of_sglang_are_told_apart():
    page = [
        'sglang:prefill_effective_tokens_total{mode="input"} %d', 'sglang:prefill_effective_tokens_total{mode="device_hit"} 16',
        'sglang:http_requests_total{endpoint="/health",method="GET"} %d', 'sglang:http_requests_total{endpoint="/metrics"} 99',
        'sglang:http_requests_active{endpoint="/health",method="GET"} %d',
    ]  # fmt: skip
    before, after = ("\n".join(page) % numbers for numbers in ((100, 7, 1), (142, 8, 0)))
    grown = reading(after).growth_since(reading(before))
    assert (grown.queries, grown.num_checks) == (42, 2), "one began meanwhile, one had not ended"
    assert grown.without_checks(40).queries == 40 and grown.without_checks(39) == grown and grown.without_checks(50) == grown


def test_a_page_that_is_none_is_a_failure():
    with pytest.raises(TargetError, match="no page of Prometheus metrics"):
        MetricsPage.parse('name{label="unclosed 5\n', ["name"])


def test_a_setting_is_read_once_though_every_rank_shows_it():
    page = MetricsPage.parse('sglang:page_size{tp_rank="0"} 16.0\nsglang:page_size{tp_rank="1"} 16.0\n', ["sglang:page_size"])
    assert page.first("sglang:page_size") == 16.0 and page.first("sglang:other") is None
