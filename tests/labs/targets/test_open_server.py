"""Opening a server says what its cache is, or which flag is missing; and what it was asked that it cannot change."""

from __future__ import annotations

import json

import httpx
import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from labs.servers import cache_reset
from labs.targets.base import TargetError, TargetUnavailable
from labs.targets.open_server import OpenServer
from labs.targets.open_target import open_target_factory
from tests.labs.servers.fake_server import FakeServer


def open_fake(fake: FakeServer, **run) -> OpenServer:
    return OpenServer(fake.run(**run), fake.transport)


@pytest.mark.parametrize(
    ("fake", "title", "prefix_cache", "unit", "publishes"),
    [
        (FakeServer(unit=32), "vLLM, block 32", "hash", 32, True),
        (FakeServer(kind="sglang", unit=1), "SGLang, page 1", "radix", 1, False),
        (FakeServer(kind="openai", unit=64), "an OpenAI-compatible server, unit 64 (measured)", "hash", 64, False),
    ],
)
def test_the_served_cache_is_described(fake, title, prefix_cache, unit, publishes):
    opened = open_fake(fake)
    assert (opened.served.title, opened.served.prefix_cache, opened.served.unit_size) == (title, prefix_cache, unit)
    assert opened.served.publishes_at_allocation is publishes and opened.kind == fake.kind
    info = opened().info
    assert (info.kind, info.unit_size, info.prefix_cache, info.model) == (fake.kind, unit, prefix_cache, "fake")
    assert info.num_blocks == (None if fake.kind == "openai" else 64_000 // unit) and info.max_model_len == 4_096


def test_what_is_recorded_holds_no_secret_and_can_be_written():
    fake = FakeServer(kind="sglang")
    run = fake.run(api_key="sk-secret")
    opened = OpenServer(run, fake.transport)
    opened().complete([1, 2, 3], cache_salt="salt-secret")
    text = json.dumps(opened().info.config) + repr(opened().info) + repr(opened.served) + repr(opened.facts) + repr(run)
    assert "secret" not in text and "hidden" not in text and "http://fake:8000" in text
    assert fake.headers[-1]["authorization"] == "Bearer sk-secret"


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (FakeServer(is_caching=False), "prefix caching off; accepted: started without --no-enable-prefix-caching"),
        (FakeServer(kind="sglang", is_caching=False), "prefix caching off; accepted: started without --disable-radix-cache"),
        (
            FakeServer(details="never", has_metrics=False),
            "accepted: started with --enable-prompt-tokens-details, or without --disable-log-stats",
        ),
        (FakeServer(takes_ids=False, details="no usage"), "accepted: a server that does one of both"),
    ],
)
def test_a_server_on_which_labs_cannot_run_says_which_flag_changes_that(fake, words):
    with pytest.raises(TargetUnavailable) as refusal:
        open_fake(fake)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_only_a_reset_will_do_but_there_is_none():
    with pytest.raises(TargetUnavailable, match="isolation is 'reset'.*accepted: started with VLLM_SERVER_DEV_MODE=1"):
        open_fake(FakeServer(has_reset=False), isolation="reset")


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (
            FakeServer(details="never"),
            "the counters of /metrics are the only witness: start it with --enable-prompt-tokens-details",
        ),
        (FakeServer(kind="sglang", details="never"), "/generate does and was asked instead: start it with --enable-cache-report"),
        (FakeServer(kind="sglang", has_metrics=False), "the replies are the only witness: start it with --enable-metrics"),
        (FakeServer(has_reset=False), "start it with VLLM_SERVER_DEV_MODE=1 for a true reset"),
        (FakeServer(num_front=2), "puts 2 tokens in front of every prompt"),
        (FakeServer(max_model_len=None), "tells no limit of a prompt's length"),
    ],
)
def test_what_is_missing_is_noted_with_the_flag_that_brings_it(fake, words):
    assert any(words in note for note in open_fake(fake).notes())


def test_a_server_in_order_gives_nothing_to_note():
    assert open_fake(FakeServer()).notes() == () == open_fake(FakeServer(kind="sglang")).notes()


def test_engine_fields_must_be_what_is_served():
    opened = open_fake(FakeServer())
    opened(
        prefix_cache="hash", block_size=16, num_gpu_blocks=100, max_model_len=2_048, enable_prefix_caching=True, use_eagle=False
    )
    assert opened.notes() == ()
    for fields, words in (
        ({"prefix_cache": "radix"}, "prefix_cache is 'radix'; accepted: 'hash', as it is served"),
        ({"block_size": 32}, "block_size is 32; accepted: 16"),
        ({"enable_prefix_caching": False}, "enable_prefix_caching is False; accepted: True"),
        ({"use_eagle": True}, "use_eagle is True; accepted: False"),
        ({"max_model_len": 10_000}, "max_model_len is 10000; accepted: none on a server"),
        ({"max_num_seqs": 4}, "max_num_seqs is 4; accepted: none on a server, which keeps its own"),
    ):
        with pytest.raises(TargetError, match=words):
            opened(**fields)


def test_a_pool_smaller_than_the_lab_wants_is_noted():
    opened = open_fake(FakeServer(pool_tokens=1_600))
    opened(num_gpu_blocks=101)
    assert opened.notes() == ()
    opened(num_gpu_blocks=201)
    assert opened.notes() == ("the server's pool holds 1,600 tokens and the lab wants 3,200: evictions may lower hits",)


def test_vllm_counts_a_block_that_is_nobody_s_and_one_request_fits_one_engine_s_pool():
    class Uneven(FakeServer):
        def _metrics(self, request, body):
            reply = super()._metrics(request, body)
            text = reply.text.replace('engine="1",block_size="16",kv_cache_size_tokens="64016"', 'engine="1",block_size="16",num_gpu_blocks="40"')
            return httpx.Response(200, text=text)

    assert open_fake(FakeServer(pool_tokens=39 * 16))().info.num_blocks == 39
    fake = Uneven(num_engines=2)
    fake.caches = [fake.caches[0]] * 2  # a router that finds the right one
    info = open_fake(fake)().info
    assert (info.config["pool_tokens"], info.max_model_len) == (39 * 16, 39 * 16)


def test_an_opening_repeat_leaves_room_for_the_token_that_is_generated():
    fake = FakeServer(pool_tokens=33)
    opened = open_fake(fake)
    longest = max(len(body["prompt"]) for body in fake.requests if isinstance(body["prompt"], list))
    assert opened().info.max_model_len == 33 and longest < 33


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_engines_that_share_an_address_are_refused_where_a_repeat_meets_another_one(kind):
    with pytest.raises(TargetUnavailable, match="3 engines share http://fake:8000, .*3 of 3 repeats met another one.*; accepted: "):
        open_fake(FakeServer(kind=kind, num_engines=3))


def test_engines_that_share_an_address_are_noted_where_every_repeat_met_its_own():
    fake = FakeServer(num_engines=2)
    fake.caches = [fake.caches[0]] * 2
    opened = open_fake(fake)
    assert any("2 engines share this address" in note for note in opened.notes()) and opened().info.config["num_engines"] == 2


def test_units_of_one_token_are_a_tree_s_only_where_nobody_knows_the_engine():
    kinds = {kind: open_fake(FakeServer(kind=kind, unit=1)).served.prefix_cache for kind in ("vllm", "sglang", "openai")}
    assert kinds == {"vllm": "hash", "sglang": "radix", "openai": "radix"}


def test_how_the_cache_was_emptied_is_told_for_each_record_at_its_end(monkeypatch):
    monkeypatch.setattr(cache_reset, "WAIT_S", 0.01)
    fake = FakeServer()
    opened = open_fake(fake)
    target = opened()
    assert target.reset() and opened.isolation == "reset"
    fake.refusals_of_reset = 10_000
    assert target.reset() and opened.isolation == "renamed and reset" and opened.notes()
    assert target.reset() and opened.isolation == "renamed" and opened.notes()
    fake.refusals_of_reset = 0
    assert target.reset() and opened.isolation == "reset"
    assert open_fake(FakeServer(has_reset=False)).isolation == "renamed"


def test_the_longest_request_fits_the_limit_the_pool_and_the_front():
    assert open_fake(FakeServer(pool_tokens=1_600, num_front=2))().info.max_model_len == 1_598


def test_an_url_opens_a_server_and_any_other_name_says_what_is_accepted():
    with pytest.raises(TargetUnavailable, match="nothing answers at http://127.0.0.1:1; accepted: "):
        open_target_factory("http://user:secret@127.0.0.1:1", EngineConfig())
    with pytest.raises(TargetUnavailable, match="accepted: http://HOST:PORT"):
        open_target_factory("ftp://127.0.0.1", EngineConfig())
    with pytest.raises(ConfigError, match="target is 'gpu'; accepted: engine, sim or a server's URL"):
        open_target_factory("gpu", EngineConfig())


def test_every_target_of_a_run_shares_the_one_cache():
    opened = open_fake(FakeServer())
    opened().complete(list(range(60)))
    assert opened().complete(list(range(60))).num_cached_tokens == 48
    opened.close()


def test_metrics_that_are_closed_to_us_are_told_with_their_answer():
    fake = FakeServer()
    transport = httpx.MockTransport(lambda request: httpx.Response(401) if request.url.path == "/metrics" else fake(request))
    server = OpenServer(fake.run(), transport)
    (note,) = [one for one in server.notes() if "/metrics" in one]
    assert "could not be read" in note and note.endswith("answered /metrics with 401: it wants a key")
