"""Targets on servers of the simulated engine, over a socket: hits are those of the laws, by both witnesses."""

from __future__ import annotations

import random

import pytest

from engine.kvcache import kv_cache_manager
from labs import theory
from labs.servers.server_address import ServerAddress
from labs.servers.server_client import SendLimits
from labs.servers.server_run import ServerRun
from labs.targets.base import TargetUnavailable
from labs.targets.open_server import OpenServer
from tests.engine.server.served import served, serving


def open_url(url: str, **run) -> OpenServer:
    return OpenServer(ServerRun(ServerAddress.of(url), limits=SendLimits(timeout_s=30.0), **run))


def prompts(target, lengths, seed=0):
    rng = random.Random(seed)
    return [[rng.randrange(target.info.vocab_size) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize(
    ("fields", "unit"),
    [({}, 16), ({"block_size": 32}, 32), ({"flavor": "sglang"}, 1), ({"flavor": "sglang", "page_size": 16}, 16)],
)
@pytest.mark.parametrize("has_drafter", [False, True])
def test_repeats_hit_as_the_law_says_and_both_witnesses_agree(fields, unit, has_drafter):
    law = theory.drafter_hits if has_drafter else theory.repeat
    with served(use_eagle=has_drafter, **fields) as url:
        opened = open_url(url)
        target = opened()
        assert (opened.served.unit_size, opened.served.has_drafter, opened.notes()) == (unit, has_drafter, ())
        assert target.reset()
        for prompt in prompts(target, (1, 2 * unit, 2 * unit + 1, 100)):
            target.counters()
            cold, warm = target.complete(prompt, max_tokens=2), target.complete(prompt, max_tokens=2)
            expected = law(len(prompt), unit)
            assert (warm.num_cached_tokens, warm.evidence.usage, warm.evidence.counted_hits) == (expected,) * 3
            assert warm.output_token_ids == cold.output_token_ids and len(warm.output_token_ids) == 2
            assert (counted := target.counters()).queries == 2 * len(prompt) and counted.hits == expected + cold.num_cached_tokens
        opened.close()


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"cache_report": False}, "the counters of /metrics are the only witness: start it with --cache-report"),
        ({"metrics_endpoint": False}, "the replies are the only witness: start it with --metrics"),
        ({"flavor": "sglang", "cache_report": False, "metrics_endpoint": False}, "/generate does and was asked instead"),
        ({"reset_endpoint": False}, "start it with --reset for a true reset"),
    ],
)
def test_with_one_thing_missing_hits_are_known_all_the_same(fields, note):
    with served(**fields) as url:
        opened = open_url(url)
        target = opened()
        (prompt,) = prompts(target, (100,))
        for _ in range(2):
            assert target.reset()
            found = [target.complete(prompt).num_cached_tokens for _ in range(2)]
            assert found == [0, theory.repeat(100, opened.served.unit_size)]
        assert any(note in one for one in opened.notes())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"enable_prefix_caching": False}, "prefix caching off; accepted: started with --prefix-caching"),
        (
            {"cache_report": False, "metrics_endpoint": False},
            "neither in its replies nor in /metrics; accepted: started with --cache-report, or with --metrics",
        ),
        ({"api_key": "sk-1"}, "an API key is needed; accepted: a valid key in the environment variable LABCLI_API_KEY"),
    ],
)
def test_where_labs_cannot_run_the_missing_flag_is_named(fields, words):
    with served(**fields) as url, pytest.raises(TargetUnavailable) as refusal:
        open_url(url)
    assert words in str(refusal.value)


def test_salts_part_prompts_and_a_key_opens_the_door():
    with served(api_key="sk-1") as url:
        opened = open_url(url, api_key="sk-1")
        target = opened()
        (prompt,) = prompts(target, (100,))
        target.reset()
        assert [target.complete(prompt, cache_salt=salt).num_cached_tokens for salt in ("a", "a", "b", None)] == [0, 96, 0, 0]
        assert "sk-1" not in repr(target.info) + repr(opened.notes())


@pytest.mark.parametrize("flavor", ["vllm", "sglang"])
def test_many_at_once_are_counted_together(flavor):
    with served(flavor=flavor) as url:
        opened = open_url(url, concurrency=8)
        target = opened()
        target.reset(), target.counters()
        warm, *others = prompts(target, [64] * 16)
        unit = opened.served.unit_size
        heads = [[number, *prompt] for number, prompt in enumerate([warm, *others])]  # pairwise different from the first token on
        cold = target.complete_all(heads, max_tokens=2)
        again = target.complete_all(heads, max_tokens=2, cache_salts=[None] * len(heads))
        assert {one.num_cached_tokens for one in cold} == {0} and {one.num_cached_tokens for one in again} == {
            theory.repeat(65, unit)
        }
        counted = target.counters()
        assert (counted.queries, counted.hits) == (2 * 16 * 65, 16 * theory.repeat(65, unit)) and opened.notes() == ()


def test_log_probabilities_of_the_prompt_skip_the_cache():
    with served() as url:
        target = open_url(url)()
        (prompt,) = prompts(target, (100,))
        target.complete(prompt)
        assert target.complete(prompt, prompt_logprobs=True).num_cached_tokens == 0
        assert target.complete(prompt).num_cached_tokens == 96


def test_an_engine_that_loses_a_block_of_every_match_is_not_taken_for_one_with_a_drafter(monkeypatch):
    def short(self, request):
        match = self.prefix_cache.match(request, request.num_tokens - 1)
        return self.prefix_cache.match(request, max(0, match.num_tokens - self.match_unit))

    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "get_computed_blocks", short)
    for fields in ({}, {"flavor": "sglang", "page_size": 16}):
        with served(**fields) as url:
            opened = open_url(url)
            assert not opened.served.has_drafter and any("something loses a unit" in note for note in opened.notes())


def test_opening_leaves_nothing_that_a_labs_prompt_could_find():
    with serving(flavor="sglang") as running:
        target = open_url(running.url)()  # no reset: page 1 would find one equal first token
        assert {target.complete([first, 1, 2, 3]).num_cached_tokens for first in range(0, 200, 7)} == {0}
