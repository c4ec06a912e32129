"""A unit that is not told is measured by repeats, a drafter with it."""

from __future__ import annotations

import pytest

from labs.targets.base import TargetUnavailable
from labs.targets.open_server import OpenServer
from tests.labs.targets.fake_server import FakeServer


def hidden(**fields) -> FakeServer:
    """A server that tells nothing of its cache but the cached tokens of each reply."""
    return FakeServer(**{"kind": "openai", **fields})


@pytest.mark.parametrize("num_front", [0, 3])
@pytest.mark.parametrize("has_drafter", [False, True])
@pytest.mark.parametrize("unit", [1, 2, 16, 24, 128, 784])
def test_the_unit_and_the_drafter_are_found(unit, has_drafter, num_front):
    fake = hidden(unit=unit, has_drafter=has_drafter, num_front=num_front)
    opened = OpenServer(fake.run(), fake.transport)
    assert (opened.served.unit_size, opened.served.has_drafter, opened.served.num_front) == (unit, has_drafter, num_front)
    assert any(f"hits are multiples of {unit}" in note for note in opened.notes())


def test_a_short_model_ends_the_ladder():
    fake = hidden(unit=128, max_model_len=100)
    with pytest.raises(TargetUnavailable, match="found nothing of repeated prompts up to 65 tokens; accepted: "):
        OpenServer(fake.run(), fake.transport)
    assert max(len(body["prompt"]) for body in fake.requests if isinstance(body["prompt"], list)) <= 99


def test_a_cache_that_is_off_is_not_a_unit():
    fake = hidden(is_caching=False, max_model_len=8_192)
    with pytest.raises(TargetUnavailable, match="found nothing of repeated prompts up to 4,097 tokens"):
        OpenServer(fake.run(), fake.transport)


def test_hits_that_no_unit_explains_are_refused_with_the_numbers():
    fake = hidden()

    def alter(reply):
        details = reply["usage"]["prompt_tokens_details"]
        details["cached_tokens"] = min(details["cached_tokens"], 5)
        return reply

    fake.alter = alter
    with pytest.raises(TargetUnavailable, match=r"no unit explains \(17 tokens: 5;"):
        OpenServer(fake.run(), fake.transport)


def test_a_server_that_reports_nothing_is_asked_short_prompts_alone():
    fake = hidden(details="never")
    with pytest.raises(TargetUnavailable, match="tells cached tokens neither in its replies nor in /metrics"):
        OpenServer(fake.run(), fake.transport)
    assert max(len(body["prompt"]) for body in fake.requests if isinstance(body["prompt"], list)) <= 1_025


def test_a_told_unit_that_hits_do_not_keep_to_is_measured():
    fake = FakeServer(unit=528, told_unit=16)
    opened = OpenServer(fake.run(), fake.transport)
    assert opened.served.unit_size == 528 and opened.served.title == "vLLM 0.32.0, block 528"
    assert any("tells a unit of 16, which its hits do not keep to" in note for note in opened.notes())


def test_a_told_unit_whose_repeats_never_hit_is_kept_and_noted():
    fake = FakeServer()
    fake.alter = lambda reply: fake.blocks.clear() or reply  # as behind a gateway that salts each request
    opened = OpenServer(fake.run(), fake.transport)
    assert opened.served.unit_size == 16 and any(
        "a repeat of 33 tokens found 0: see `labcli probe`" in note for note in opened.notes()
    )


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_drafter_shows_in_one_repeat(kind):
    fake = FakeServer(kind=kind, unit=32, has_drafter=True)
    opened = OpenServer(fake.run(), fake.transport)
    assert opened.served.has_drafter and opened.served.unit_size == 32
    assert not OpenServer((other := FakeServer(kind=kind)).run(), other.transport).served.has_drafter
