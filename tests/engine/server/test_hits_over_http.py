"""The cached tokens that clients are told are those of the laws, for both flavors, and so are the counts of /metrics."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.kvcache.block_hash import BlockHasher
from labs.theory import drafter_hits, repeat
from tests.broken_rules import name_blocks_without_their_parents
from tests.engine.server.served import served

SERVERS = [
    ("vllm", {}, 16),
    ("vllm", {"block_size": 32}, 32),
    ("sglang", {}, 1),
    ("sglang", {"page_size": 16}, 16),
]
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 200)


def prompt(length, start=0):
    """Ids that no other prompt here begins with."""
    return [(start * 1009 + position * 7) % 40_000 + 300 for position in range(length)]


def cached(client, ids, **fields):
    usage = client.post("/v1/completions", json={"prompt": ids, "max_tokens": 1, **fields}).json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def counter(client, name, **labels):
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


@pytest.mark.parametrize("flavor, fields, unit", SERVERS)
def test_a_repeat_hits_as_the_law_says(client_of, flavor, fields, unit):
    client = client_of(flavor=flavor, **fields)
    for start, length in enumerate(LENGTHS, 1):
        assert [cached(client, prompt(length, start)) for _ in range(2)] == [0, repeat(length, unit)]


@pytest.mark.parametrize("flavor, fields, unit", SERVERS)
def test_salts_are_worlds_of_their_own(client_of, flavor, fields, unit):
    hits, client = repeat(200, unit), client_of(flavor=flavor, **fields)
    found = [cached(client, prompt(200), **({"cache_salt": salt} if salt else {})) for salt in ("a", "a", "b", None, "b", None)]
    assert found == [0, hits, 0, 0, hits, hits]


def test_sglangs_salt_and_extra_key_do_not_run_together(client_of):
    client, ids = client_of(flavor="sglang"), prompt(60, 20)
    names = [
        {"cache_salt": "ab"},
        {"extra_key": "ab"},
        {"cache_salt": "a", "extra_key": "b"},
        {"cache_salt": '\0["ab", null]'},
    ]
    assert [cached(client, ids, **name) for name in names] == [0, 0, 0, 0]
    assert [cached(client, ids, **name) for name in names] == [59] * 4
    assert cached(client, ids, cache_salt="") == 0 and cached(client, ids) == 59


def test_a_drafter_costs_one_unit():
    with served(use_eagle=True) as url, httpx.Client(base_url=url) as client:
        assert [cached(client, prompt(200)) for _ in range(2)] == [0, drafter_hits(200, 16)]


def test_with_caching_off_nothing_is_ever_cached():
    with served(enable_prefix_caching=False) as url, httpx.Client(base_url=url) as client:
        assert [cached(client, prompt(200)) for _ in range(2)] == [0, 0]


def test_without_the_cache_report_the_details_are_null_and_not_zero():
    for flavor in ("vllm", "sglang"):
        with served(flavor=flavor, cache_report=False) as url, httpx.Client(base_url=url) as client:
            for _ in range(2):
                usage = client.post("/v1/completions", json={"prompt": prompt(200), "max_tokens": 1}).json()["usage"]
                assert usage["prompt_tokens_details"] is None


def test_of_several_prompts_vllm_tells_the_last_ones_hits_and_sglang_the_sum(client_of):
    prompts = [prompt(100, 21), prompt(200, 22)]
    for flavor, told in (("vllm", repeat(200, 16)), ("sglang", repeat(100, 1) + repeat(200, 1))):
        client = client_of(flavor=flavor)
        assert [cached(client, prompts) for _ in range(2)] == [0, told]


def test_prompt_logprobs_read_nothing_from_the_cache(client_of):
    client, ids = client_of(flavor="vllm"), prompt(200, 23)
    assert [cached(client, ids) for _ in range(2)] == [0, 192]
    assert cached(client, ids, prompt_logprobs=1) == 0


def test_a_reset_forgets(client_of):
    for flavor, path in (("vllm", "/reset_prefix_cache"), ("sglang", "/flush_cache")):
        client, ids = client_of(flavor=flavor), prompt(200, 24)
        assert [cached(client, ids) for _ in range(2)][1] > 0
        assert client.post(path).status_code == 200
        assert cached(client, ids) == 0


def test_the_counters_are_the_sums_of_the_usages():
    with served(max_num_batched_tokens=64) as url, httpx.Client(base_url=url) as client:
        usages = [
            client.post("/v1/completions", json={"prompt": prompt(90 + n // 2), "max_tokens": 3}).json()["usage"]
            for n in range(8)
        ]
        hits = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
        assert hits > 0
        assert counter(client, "vllm:prefix_cache_hits_total") == hits == counter(client, "vllm:prompt_tokens_cached_total")
        assert counter(client, "vllm:prefix_cache_queries_total") == sum(usage["prompt_tokens"] for usage in usages)
        assert counter(client, "vllm:generation_tokens_total") == sum(usage["completion_tokens"] for usage in usages)
    with served(flavor="sglang") as url, httpx.Client(base_url=url) as client:
        found = [cached(client, prompt(90 + n // 2)) for n in range(8)]
        assert counter(client, "sglang:cached_tokens_total", cache_source="device") == sum(found) > 0


def _hits_behind_another_past():
    """A prompt whose first block is known, and whose other blocks are known behind another first one."""
    with served() as url, httpx.Client(base_url=url) as client:
        cached(client, prompt(200))
        cached(client, prompt(16, 5))
        return cached(client, prompt(16, 5) + prompt(200)[16:])


def test_blocks_behind_another_past_are_no_hit():
    assert _hits_behind_another_past() == 16


def test_an_engine_that_names_blocks_without_their_past_is_found_out(monkeypatch):
    monkeypatch.setattr(BlockHasher, "extend", name_blocks_without_their_parents)
    assert _hits_behind_another_past() == 192
