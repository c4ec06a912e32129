"""A unit that is not told is measured by repeats, a drafter with it."""

from __future__ import annotations

import pytest

from labs.targets.base import TargetUnavailable
from labs.targets.open_server import OpenServer
from tests.labs.servers.fake_server import FakeServer


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
    assert opened.served.unit_size == 528 and opened.served.title == "vLLM, block 528 (measured)"
    assert opened().info.config["unit_source"] == "measured"
    assert any("tells a unit of 16, which its hits do not keep to" in note for note in opened.notes())


def test_a_told_unit_whose_repeats_never_hit_is_kept_and_noted():
    fake = FakeServer()
    fake.alter = lambda reply: fake.blocks.clear() or reply  # as behind a gateway that salts each request
    opened = OpenServer(fake.run(), fake.transport)
    assert opened.served.unit_size == 16 and any(
        "a repeat of 33 tokens found 0: see `labcli probe`" in note for note in opened.notes()
    )


def test_one_lost_repeat_changes_nothing_but_is_noted():
    fake = FakeServer()
    seen = []

    def alter(reply):
        body = fake.requests[-1]
        if isinstance(body["prompt"], list) and len(body["prompt"]) == 33:
            seen.append(1)
            if len(seen) == 1:
                fake.blocks.clear()  # somebody else's prompts pushed it out
        return reply

    fake.alter = alter
    opened = OpenServer(fake.run(), fake.transport)
    assert opened.served.title == "vLLM, block 16" and opened().info.config["unit_source"] == "told"
    assert [note for note in opened.notes() if "repeat" in note] == [
        "1 of 2 repeats at the opening found less than a later one: somebody evicts here, or sends requests elsewhere"
    ]


def test_a_unit_that_is_measured_as_it_was_told_is_told():
    fake, seen = FakeServer(), []

    def alter(reply):
        body = fake.requests[-1]
        if isinstance(body["prompt"], list) and len(body["prompt"]) == 33 and len(seen) < 6:
            seen.append(1)
            fake.blocks.clear()
        return reply

    fake.alter = alter
    opened = OpenServer(fake.run(), fake.transport)
    assert opened.served.title == "vLLM, block 16"
    assert not any("multiples" in note for note in opened.notes())


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_hits_one_unit_short_are_a_fault_where_the_server_tells_that_it_has_no_drafter(kind):
    fake = FakeServer(kind=kind, unit=32, drops_unit=True)
    opened = OpenServer(fake.run(), fake.transport)
    assert not opened.served.has_drafter and "drafter" not in opened.served.title
    assert any("tells that it has no speculative drafter: something loses a unit" in note for note in opened.notes())
    fake = FakeServer(kind=kind, unit=528, told_unit=16, drops_unit=True)
    opened = OpenServer(fake.run(), fake.transport)
    assert not opened.served.has_drafter and opened.served.unit_size == 16
    assert any("found 0: see `labcli probe`" in note for note in opened.notes())


@pytest.mark.parametrize("fake", [FakeServer(has_metrics=False, drops_unit=True), FakeServer(kind="openai", drops_unit=True)])
def test_a_drafter_that_nobody_tells_is_inferred_and_said_to_be(fake):
    opened = OpenServer(fake.run(), fake.transport)
    assert opened.served.has_drafter and opened.served.title.endswith(", beside a drafter (inferred)")
    assert opened().info.config["is_drafter_inferred"] is True
    assert any("taken for a speculative drafter, which the server does not tell; without one" in note for note in opened.notes())


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_drafter_that_is_told_but_shortens_nothing_is_none(kind):
    fake = FakeServer(kind=kind, tells_drafter=True)
    opened = OpenServer(fake.run(), fake.transport)
    assert not opened.served.has_drafter and not any("drafter" in note for note in opened.notes())


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_drafter_shows_in_one_repeat(kind):
    fake = FakeServer(kind=kind, unit=32, has_drafter=True)
    opened = OpenServer(fake.run(), fake.transport)
    assert opened.served.has_drafter and opened.served.unit_size == 32 and "inferred" not in opened.served.title
    assert not OpenServer((other := FakeServer(kind=kind)).run(), other.transport).served.has_drafter
