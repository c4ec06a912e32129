"""A cache is emptied as its server does it, asked again while refused, and not waited for where there is no way."""

from __future__ import annotations

import httpx
import pytest

from labs.servers import cache_reset
from labs.servers.cache_reset import CacheReset
from labs.servers.server_facts import find_facts
from tests.labs.servers.fake_server import FakeServer


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_refused_reset_is_asked_again(kind, monkeypatch):
    monkeypatch.setattr(cache_reset, "PAUSE_S", 0.001)
    fake = FakeServer(kind=kind, refusals_of_reset=2)
    client = fake.client()
    fake.blocks.add(1)
    assert CacheReset(client, find_facts(client))() and not fake.blocks
    monkeypatch.setattr(cache_reset, "WAIT_S", 0.02)
    fake.refusals_of_reset = 10_000
    assert not CacheReset(client, find_facts(client))()


@pytest.mark.parametrize("content", ["", '{"success": true}', "null"])
def test_an_empty_body_is_success_as_in_older_releases(content):
    class Old(FakeServer):
        def _reset_prefix_cache(self, request, body):
            return httpx.Response(405 if request.method == "GET" else 200, text=content)

    client = Old().client()
    assert CacheReset(client, find_facts(client))()


def test_where_there_is_no_reset_nobody_waits_for_one():
    for fake in (FakeServer(has_reset=False), FakeServer(kind="sglang", has_reset=False), FakeServer(kind="openai")):
        client = fake.client()
        reset = CacheReset(client, find_facts(client))
        assert not reset() and not reset.exists
