"""What answers at an address is found out by reading; what no reply tells is unknown, not off."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from labs.servers.server_address import ServerAddress
from labs.servers.server_client import ServerClient
from labs.servers.server_facts import find_facts
from labs.servers.server_flags import ServerFlags
from labs.targets.base import TargetUnavailable
from tests.labs.servers.fake_server import FakeServer

GOLDEN = Path(__file__).parents[2] / "golden" / "servers"


def facts_of(replies: dict, model=None):
    """Facts of a server with these replies, by path: (status, text or JSON)."""

    def handle(request):
        status, content = replies.get(f"{request.method} {request.url.path}", replies.get(request.url.path, (404, "")))
        kwargs = {"text": content} if isinstance(content, str) else {"json": content}
        return httpx.Response(status, headers={"server": replies.get("server", "uvicorn")}, **kwargs)

    return find_facts(ServerClient(ServerAddress.of("http://host:1"), transport=httpx.MockTransport(handle)), model)


def models(owner, **fields):
    return (200, {"data": [{"id": "m", "owned_by": owner, **fields}]})


def test_a_vllm_tells_its_version_block_pool_and_reset():
    page = (GOLDEN / "vllm-0.32.0-cpu/metrics.txt").read_text(encoding="utf-8")
    facts = facts_of(
        {
            "/v1/models": models("vllm", max_model_len=4096),
            "/version": (200, {"version": "0.32.0"}),
            "/metrics": (200, page),
            "/reset_prefix_cache": (405, ""),
            "/tokenize": (200, {"tokens": [81]}),
        }
    )
    assert (facts.kind, facts.version, facts.unit_size, facts.is_caching) == ("vllm", "0.32.0", 32, True)
    assert (facts.has_reset, facts.has_counters, facts.has_tokenizer, facts.has_drafter, facts.is_labcli) == (
        True,
        True,
        True,
        False,
        False,
    )
    assert facts.title == "vLLM 0.32.0" and facts.pool_tokens % 32 == 0 and facts.max_model_len == 4096


def test_a_vllm_asked_for_a_longer_unit_of_hits_is_served_in_that_unit():
    page = (GOLDEN / "vllm-0.32.0-cpu/metrics.txt").read_text(encoding="utf-8")
    longer = page.replace('prefix_match_unit="None"', 'prefix_match_unit="64"')
    assert facts_of({"/v1/models": models("vllm"), "/metrics": (200, longer)}).unit_size == 64


def test_an_sglang_tells_its_page_from_server_info_or_else_from_its_metrics():
    page = (GOLDEN / "sglang-0.5.23-cpu/metrics.txt").read_text(encoding="utf-8")
    info = {"version": "0.5.23", "page_size": 16, "max_total_num_tokens": 20000, "disable_radix_cache": True, "api_key": "hidden"}
    told = facts_of({"/v1/models": models("sglang"), "/server_info": (200, info), "/metrics": (200, page)})
    assert (told.kind, told.version, told.unit_size, told.pool_tokens, told.is_caching) == ("sglang", "0.5.23", 16, 20000, False)
    assert "hidden" not in repr(told)
    closed = facts_of({"/v1/models": models("sglang"), "/metrics": (200, page)})
    assert (closed.kind, closed.unit_size, closed.pool_tokens, closed.is_caching, closed.version) == (
        "sglang",
        1,
        20000,
        None,
        None,
    )


def test_what_is_not_told_is_unknown():
    facts = facts_of({"/v1/models": models("somebody"), "/metrics": (500, "oops"), "/version": (200, "<html>")})
    assert (facts.kind, facts.unit_size, facts.is_caching, facts.has_drafter, facts.version) == ("openai", None, None, None, None)
    assert not (facts.has_counters or facts.has_metrics or facts.has_reset or facts.has_tokenizer)
    odd = facts_of(
        {"/v1/models": models("vllm", max_model_len="many"), "/metrics": (200, 'vllm:cache_config_info{block_size="None"} 1\n')}
    )
    assert (
        odd.max_model_len is None
        and odd.unit_size is None
        and odd.pool_tokens is None
        and odd.has_metrics
        and not odd.has_counters
    )


def test_a_drafter_is_told_by_its_series_and_its_absence_by_the_cache_s_own():
    page = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="40"} 1\n'
    drafts = "vllm:spec_decode_num_drafts_total 0\n"
    queries = "vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0\n"
    told = [facts_of({"/v1/models": models("vllm"), "/metrics": (200, text)}) for text in (page, page + drafts, queries)]
    assert [one.has_drafter for one in told] == [False, True, None] and told[0].pool_tokens == 39 * 16


def test_our_own_server_is_told_by_its_header_and_has_its_own_flags():
    facts = facts_of({"/v1/models": models("vllm"), "server": "labcli/1.0"})
    assert facts.is_labcli and facts.title == "labcli (vLLM flavor)" and ServerFlags.of(facts).report == "with --cache-report"
    assert ServerFlags.of(facts_of({"/v1/models": models("vllm")})).report == "with --enable-prompt-tokens-details"


def test_a_model_is_chosen_by_its_name():
    listed = (200, {"data": [{"id": "a"}, {"id": "b", "max_model_len": 5}, {"object": "x"}]})
    assert facts_of({"/v1/models": listed}).model == "a" and facts_of({"/v1/models": listed}, "b").max_model_len == 5
    with pytest.raises(TargetUnavailable, match="serves no model 'c'; accepted: a, b"):
        facts_of({"/v1/models": listed}, "c")


@pytest.mark.parametrize(
    "reply", [(404, ""), (500, "x"), (200, {"data": []}), (200, {"data": "x"}), (200, {"data": [{"id": 5}]})]
)
def test_what_lists_no_model_is_no_server_for_labs(reply):
    with pytest.raises(TargetUnavailable, match="accepted: "):
        facts_of({"/v1/models": reply})


def test_finding_facts_computes_nothing_and_resets_nothing():
    for kind in ("vllm", "sglang", "openai"):
        fake = FakeServer(kind=kind, refusals_of_reset=99)
        client = fake.client()
        find_facts(client)
        assert client.num_sent == 0 and fake.requests == [] and fake.refusals_of_reset == 99 and "/flush_cache" not in fake.paths


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_without_a_list_is_asked_for_the_model_that_a_person_names(status):
    facts = facts_of({"/v1/models": (status, "")}, "mine")
    assert (facts.model, facts.num_models, facts.kind) == ("mine", 0, "openai")
    with pytest.raises(TargetUnavailable, match="or --model NAME where a server has no list"):
        facts_of({"/v1/models": (status, "")})


def test_a_list_that_fails_is_no_missing_one():
    with pytest.raises(TargetUnavailable, match="answered /v1/models with 500"):
        facts_of({"/v1/models": (500, "")}, "mine")


@pytest.mark.parametrize(
    "reply, words, is_broken",
    [
        ((404, ""), "", False),
        ((401, ""), "answered /metrics with 401: it wants a key", False),
        ((403, ""), "answered /metrics with 403: it is closed", False),
        ((503, ""), "answered /metrics with 503: it is busy, or down", False),
        ((307, ""), "answered /metrics with 307: it sends elsewhere", False),
        ((500, ""), "answered /metrics with 500", True),
        ((200, "vllm:prefix_cache_queries_total{"), "no page of Prometheus metrics", True),
    ],
)
def test_metrics_that_cannot_be_read_are_not_missing(reply, words, is_broken):
    facts = facts_of({"/v1/models": models("vllm"), "/metrics": reply})
    assert not facts.has_metrics and facts.is_metrics_broken is is_broken
    assert words in facts.metrics_trouble and bool(words) == bool(facts.metrics_trouble)


def test_a_release_without_counters_is_told_to_be_too_old():
    for version, words in (("0.7.3", "from 0.8 on"), ("0.8.0", "--disable-log-stats")):
        facts = facts_of({"/v1/models": models("vllm"), "/version": (200, {"version": version})})
        assert words in ServerFlags.of(facts).counters
