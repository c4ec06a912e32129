"""A target over HTTP believes a reply only as far as it can be checked, and keeps what its two witnesses say."""

from __future__ import annotations

import random
import threading

import httpx
import pytest

from engine.kvcache.cache_identity import LoRA
from labs.servers import cache_reset, counter_watch
from labs.servers.server_client import ServerRefused
from labs.targets.base import FieldRefused, TargetError, TargetUnavailable
from labs.targets.open_server import OpenServer
from tests.labs.servers.fake_server import FakeServer


def opened(fake: FakeServer, **run):
    server = OpenServer(fake.run(**run), fake.transport)
    return server, server()


def prompt_of(num_tokens: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(90) for _ in range(num_tokens)]


@pytest.mark.parametrize(
    "fake", [FakeServer(), FakeServer(kind="sglang", unit=1), FakeServer(takes_ids=False, num_front=2), FakeServer(num_front=20)]
)
def test_a_repeat_is_found_and_both_witnesses_say_so(fake):
    server, target = opened(fake)
    prompt = prompt_of(60)
    target.counters()
    cold, warm = target.complete(prompt, max_tokens=3), target.complete(prompt, max_tokens=3)
    total = 60 + server.served.num_front
    hits = (total - 1) // fake.unit * fake.unit
    assert (warm.num_prompt_tokens, warm.num_cached_tokens, warm.finish_reason) == (total, hits, "length")
    assert (warm.evidence.usage, warm.evidence.counted_hits, warm.evidence.counted_queries) == (hits, hits, total)
    assert (
        len(warm.output_token_ids) == (3 if fake.takes_ids else 0)
        and warm.output_token_ids == cold.output_token_ids
        and not warm.evidence.disagrees
    )
    counted = target.counters()
    assert (counted.queries, counted.hits) == (2 * total, hits + cold.num_cached_tokens)


def test_what_one_witness_does_not_tell_is_unknown_and_the_other_is_believed():
    for fake, usage, counted in ((FakeServer(details="never"), None, 48), (FakeServer(has_metrics=False), 48, None)):
        _, target = opened(fake)
        target.complete(prompt_of(60))
        warm = target.complete(prompt_of(60))
        assert (warm.num_cached_tokens, warm.evidence.usage, warm.evidence.counted_hits) == (48, usage, counted)
    assert target.counters().queries is None and target.counters().hits is None


def test_a_miss_that_is_told_by_silence_is_zero_once_hits_were_seen():
    server, target = opened(FakeServer(details="hits only"))
    assert [target.complete(prompt_of(60)).num_cached_tokens for _ in range(2)] == [0, 48]
    assert any("none named is read as 0" in note for note in server.notes())


def test_witnesses_that_disagree_are_both_kept_and_noted():
    server, target = opened(FakeServer(counted_share=0.5))
    for _ in range(2):
        warm = target.complete(prompt_of(60))
    assert (warm.num_cached_tokens, warm.evidence.counted_hits, warm.evidence.disagrees) == (48, 24, True)
    assert any("two witnesses disagree" in note and "usage 48, counters 24" in note for note in server.notes())


def test_counters_that_stand_still_while_replies_report_hits_are_told(monkeypatch):
    monkeypatch.setattr(counter_watch, "WAIT_S", 0.0)
    fake = FakeServer()
    server, target = opened(fake)
    fake.uncounted = tuple(range(100))
    for _ in range(3):
        target.complete(prompt_of(60))
    assert any(
        "the counters did not move for 3 requests, whose replies report 96 cached tokens" in note
        and "another process or replica" in note and "a cache of whole replies in front" in note
        for note in server.notes()
    )


def test_lookups_that_are_counted_twice_are_not_only_blamed_on_others():
    fake = FakeServer()
    server, target = opened(fake)
    fake.num_foreign_tokens = 60
    target.complete(prompt_of(60)), target.complete(prompt_of(60))
    (note,) = server.notes()
    assert note.startswith("others use this server, or it counts lookups more than once") and "usually to ×2.00 of it" in note


def test_more_hits_than_lookups_are_told():
    fake = FakeServer()
    server, target = opened(fake)
    fake.counted_share = 2.0
    assert [target.complete(prompt_of(60)).evidence.counted_hits for _ in range(2)] == [0, None]
    assert any("grew by more hits than lookups once" in note for note in server.notes())


def test_what_was_never_counted_blinds_one_series_and_no_more(monkeypatch):
    monkeypatch.setattr(counter_watch, "WAIT_S", 0.0)
    fake = FakeServer()
    server, target = opened(fake)
    fake.uncounted = (fake.num_served + 2,)
    series = []
    target.counters()
    for _ in range(2):
        found = [target.complete([number, *prompt_of(59)]).evidence.counted_queries for number in range(3)]
        series.append((found, target.counters().queries))
    assert series == [([60, None, None], None), ([60, 60, 60], 180)]
    assert any("the counters did not move for 1 request" in note for note in server.notes())


def test_a_reset_ends_the_wait_for_what_was_not_counted(monkeypatch):
    monkeypatch.setattr(counter_watch, "WAIT_S", 0.0)
    fake = FakeServer()
    server, target = opened(fake)
    fake.uncounted = (fake.num_served + 1,)
    target.complete(prompt_of(60)), target.reset()
    assert target.complete(prompt_of(60)).evidence.counted_queries == 60


def test_tokens_of_many_at_once_that_were_never_counted_are_told(monkeypatch):
    monkeypatch.setattr(counter_watch, "WAIT_S", 0.0)
    fake = FakeServer()
    server, target = opened(fake)
    target.counters()
    fake.uncounted = (fake.num_served + 2,)
    target.complete_all([[number, *prompt_of(59)] for number in range(4)], max_tokens=1)
    assert target.counters().queries is None and server.notes() == (
        "the counters miss 60 tokens that were sent: they were counted too late, not at all, or by another replica than the one "
        "whose /metrics was read",
    )


def test_other_traffic_leaves_the_counters_out_and_is_noted():
    server, target = opened(FakeServer(num_foreign_tokens=7))
    target.counters()
    completion = target.complete(prompt_of(60))
    assert completion.num_cached_tokens == 0 and completion.evidence.counted_queries is None
    assert target.counters().queries is None and any(note.startswith("others use this server") for note in server.notes())


def test_a_balancers_health_checks_are_no_other_traffic():
    server, target = opened(FakeServer(kind="sglang", num_checks=3))
    target.counters()
    for _ in range(2):
        warm = target.complete(prompt_of(60))
    assert (warm.evidence.counted_hits, warm.evidence.counted_queries) == (48, 60)
    counted = target.counters()
    assert (counted.queries, counted.hits) == (120, 48)
    assert [note for note in server.notes() if "counters" in note] == [
        "the server counts its own health checks as prompts of one token each: they were left out of its counters"
    ]


def test_a_prompts_log_probabilities_skip_the_cache_and_vllms_counters():
    _, target = opened(FakeServer())
    target.complete(prompt_of(60))
    target.counters()
    skipped = target.complete(prompt_of(60), prompt_logprobs=True)
    assert skipped.num_cached_tokens == 0 and skipped.evidence.counted_queries is None and target.counters().queries == 0
    _, target = opened(FakeServer(kind="sglang"))
    target.complete(prompt_of(60))
    assert target.complete(prompt_of(60), prompt_logprobs=True).num_cached_tokens == 0
    _, target = opened(FakeServer(kind="openai"))
    with pytest.raises(FieldRefused, match="prompt_logprobs is True; accepted on this server: False"):
        target.complete(prompt_of(60), prompt_logprobs=True)


@pytest.mark.parametrize(("status", "kind"), [(400, FieldRefused), (422, FieldRefused), (500, ServerRefused), (401, TargetUnavailable)])
def test_only_a_refusal_of_the_request_itself_is_one_of_its_log_probabilities(status, kind):
    fake = FakeServer()
    _, target = opened(fake)
    fake.alter = lambda reply: httpx.Response(status, json={"error": {"message": "no"}})
    with pytest.raises(TargetError) as failure:
        target.complete(prompt_of(60), prompt_logprobs=True)
    assert type(failure.value) is kind


def test_salts_part_what_is_equal_and_never_appear_in_what_is_said():
    server, target = opened(FakeServer())
    found = [
        target.complete(prompt_of(60), cache_salt=salt).num_cached_tokens for salt in ("tenant-a", "tenant-a", "tenant-b", None)
    ]
    assert found == [0, 48, 0, 0]
    assert "tenant" not in repr(server.notes()) + repr(target.info) + repr(target)


def alteration(**changes):
    """Changes the first choice, or the usage where a name begins with `usage_`."""

    def alter(reply):
        for name, value in changes.items():
            part = reply["usage"] if name.startswith("usage_") else reply["choices"][0]
            part[name.removeprefix("usage_")] = value
        return reply

    return alter


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (alteration(usage_prompt_tokens=75), "counts 75 prompt tokens where 60 were sent"),
        (alteration(prompt_token_ids=[5] * 60), "was sent 60 token ids and computed others"),
        (alteration(usage_prompt_tokens_details={"cached_tokens": 512}), "reports 512 cached tokens in a prompt of 60"),
        (alteration(usage_completion_tokens=9), "generated 9 tokens where at most 2 were asked for"),
        (alteration(token_ids=[1, 2, 3]), "counts 2 generated tokens and names 3"),
        (alteration(finish_reason="abort"), "ended the request with abort"),
        (alteration(finish_reason=None), "without a finish_reason"),
        (lambda reply: {**reply, "choices": []}, "without any choice"),
        (lambda reply: httpx.Response(200, text="<html>"), "before"),
        (lambda reply: httpx.Response(500, text="it broke"), "500: it broke"),
        (lambda reply: httpx.ReadError("reset"), "closed the connection"),
    ],
)
def test_a_reply_that_cannot_be_about_the_request_ends_it_in_one_line(alter, words):
    fake = FakeServer()
    _, target = opened(fake)
    fake.alter = alter
    with pytest.raises(TargetError) as failure:
        target.complete(prompt_of(60), max_tokens=2, cache_salt="secret-salt")
    assert words in str(failure.value) and "\n" not in str(failure.value)
    assert "secret" not in str(failure.value) and str(prompt_of(60)[:4])[1:-1] not in str(failure.value)


def test_a_server_that_stops_earlier_is_believed():
    fake = FakeServer()
    _, target = opened(fake)
    fake.alter = alteration(usage_completion_tokens=1, token_ids=[5], finish_reason="stop")
    completion = target.complete(prompt_of(60), max_tokens=4)
    assert (len(completion.output_token_ids), completion.finish_reason) == (1, "stop")


def test_what_labs_may_not_ask_of_a_server_is_refused_before_anything_is_sent():
    fake = FakeServer()
    server, target = opened(fake)
    before = len(fake.requests)
    for call, words in (
        (lambda: target.complete([5], lora=LoRA("a", "path")), "lora is given; accepted: none"),
        (lambda: target.complete([5], prompt_embeds=[b""]), "prompt_embeds is given"),
        (lambda: target.complete([]), "the prompt is empty"),
        (lambda: target.complete([5, 900_000]), "1 token ids are outside the bound"),
        (lambda: target.complete([-1]), "outside the bound"),
        (lambda: target.complete([5], max_tokens=0), "max_tokens is 0"),
        (lambda: target.complete_all([[5]], max_tokens=1, cache_salts=[]), "0 cache_salts for 1 prompts"),
    ):
        with pytest.raises(TargetError, match=words):
            call()
    assert (
        len(fake.requests) == before and target.block_hashes([5]) == [] and target.tokenizer() is None and target.engine is None
    )


def test_an_id_that_the_server_generated_may_be_sent_back():
    fake = FakeServer()
    _, target = opened(fake)
    for strange in (0, 998):  # a special token below the alphabet, and one above it
        fake.alter = lambda reply, strange=strange: {**reply, "choices": [{**reply["choices"][0], "token_ids": [strange]}]}
        output = target.complete(prompt_of(60)).output_token_ids
        fake.alter = lambda reply: reply
        assert len(output) == 1 and not 0 <= output[0] <= target.info.vocab_size
        assert target.complete([*prompt_of(60), *output]).num_cached_tokens == 48
        assert fake.requests[-1]["prompt"][-1] == strange


@pytest.mark.parametrize(
    "fake", [FakeServer(has_reset=False), FakeServer(kind="openai", unit=1), FakeServer(takes_ids=False, has_reset=False)]
)
def test_without_a_reset_a_renaming_makes_everything_cold(fake):
    server, target = opened(fake)
    prompts = [[number, *prompt_of(60)] for number in range(20)]
    for _ in range(3):
        colds = [target.complete(prompt).num_cached_tokens for prompt in prompts]
        warms = [target.complete(prompt).num_cached_tokens for prompt in prompts]
        assert set(colds) == {0} and set(warms) == {60 // fake.unit * fake.unit}
        assert target.reset()
    assert target.info.config["isolation"] == "renamed"
    assert any("the cache could not be emptied" in note for note in server.notes())


def test_generated_ids_stand_for_the_same_ids_after_a_renaming():
    _, target = opened(FakeServer(has_reset=False))
    for _ in range(3):
        turn = target.complete(prompt_of(31), max_tokens=3).output_token_ids
        again = target.complete([*prompt_of(31), *turn, 4])
        assert again.num_cached_tokens == 16
        target.reset()


def test_a_reset_is_the_servers_own_where_it_has_one():
    fake = FakeServer()
    _, target = opened(fake)
    target.complete(prompt_of(60))
    assert target.reset() and not fake.blocks and target.info.config["isolation"] == "reset"
    assert target.complete(prompt_of(60)).num_cached_tokens == 0


def test_a_reset_that_is_refused_for_good_becomes_a_renaming_unless_only_a_reset_will_do(monkeypatch):
    monkeypatch.setattr(cache_reset, "WAIT_S", 0.01)
    for isolation, done in (("auto", True), ("reset", False)):
        fake = FakeServer()
        _, target = opened(fake, isolation=isolation)
        target.complete(prompt_of(60))
        fake.refusals_of_reset = 10_000
        assert target.reset() is done
        assert target.complete(prompt_of(60)).num_cached_tokens == (0 if done else 48)


def test_a_reset_that_lies_is_told_and_asked_no_more():
    fake = FakeServer(keeps_content=True)
    server, target = opened(fake)
    assert target.complete(prompt_of(60)).num_cached_tokens == 0 and target.reset()
    assert target.complete(prompt_of(60)).num_cached_tokens == 48
    assert target.rename() and target.complete(prompt_of(60)).num_cached_tokens == 0
    asked = fake.paths.count("/reset_prefix_cache")
    assert target.reset() and target.complete(prompt_of(60)).num_cached_tokens == 0
    assert fake.paths.count("/reset_prefix_cache") == asked and target.info.config["isolation"] == "renamed"
    (note,) = [one for one in server.notes() if "found after a reset that the server accepted" in one]
    assert all(cause in note for cause in ("was not emptied", "another replica's", "more than once")), "what was seen, and its causes"
    assert not opened(FakeServer(), isolation="reset")[1].rename(), "only a reset will do"


def test_two_runs_of_one_lab_send_nothing_alike():
    fake = FakeServer(kind="sglang", unit=1)
    sent = []
    for _ in range(2):
        _, target = opened(fake)
        begin = len(fake.requests)
        found = [target.complete(prompt_of(60), cache_salt=salt).num_cached_tokens for salt in ("tenant-a", None, "tenant-a")]
        assert found == [0, 0, 59]
        sent.append(fake.requests[begin:])
    assert not {one["cache_salt"] for one in sent[0]if one.get("cache_salt")} & {one.get("cache_salt") for one in sent[1]}
    assert sent[0][0]["prompt"] != sent[1][0]["prompt"] and {one["cache_salt"] for one in sent[0][::2]} != {"tenant-a"}


def test_renaming_by_choice_never_asks_for_a_reset():
    fake = FakeServer()
    server, target = opened(fake, isolation="rename")
    target.complete(prompt_of(60))
    assert target.reset() and fake.blocks and target.complete(prompt_of(60)).num_cached_tokens == 0
    assert not any("could not be emptied" in note for note in server.notes())


def test_all_at_once_come_back_in_order_with_the_counters_of_all_together():
    fake = FakeServer()
    _, target = opened(fake, concurrency=8)
    target.counters()
    completions = target.complete_all([[number, *prompt_of(40 + number)] for number in range(24)], max_tokens=2)
    assert [completion.num_prompt_tokens for completion in completions] == [41 + number for number in range(24)]
    assert all(completion.evidence.counted_hits is None and completion.evidence.usage == 0 for completion in completions)
    counted = target.counters()
    assert (counted.queries, counted.hits) == (sum(41 + number for number in range(24)), 0)


def test_one_prompt_at_once_has_the_counters_for_itself():
    _, target = opened(FakeServer())
    (completion,) = target.complete_all([prompt_of(40)], max_tokens=1, cache_salts=["s"])
    assert completion.evidence.counted_queries == 40


def test_one_failing_request_ends_all():
    fake = FakeServer()
    _, target = opened(fake, concurrency=4)
    before, lock = len(fake.requests), threading.Lock()

    def alter(reply):
        with lock:
            return httpx.Response(500, text="overloaded") if len(fake.requests) > before + 5 else reply

    fake.alter = alter
    with pytest.raises(TargetError, match="500: overloaded"):
        target.complete_all([[number, 1] for number in range(200)], max_tokens=1)
    assert len(fake.requests) < before + 20


def test_the_limit_of_requests_ends_a_run():
    from labs.servers.server_client import LimitReached, SendLimits

    fake = FakeServer()
    _, target = opened(fake, limits=SendLimits(max_requests=8))
    with pytest.raises(LimitReached, match="8 requests were sent"):
        for _ in range(20):
            target.complete(prompt_of(10))


def test_counters_that_never_move_are_unknown_and_the_run_goes_on(monkeypatch):
    monkeypatch.setattr(counter_watch, "WAIT_S", 0.02)
    fake = FakeServer()
    server, target = opened(fake)
    fake.is_caching = False  # from here on nothing is counted
    found = [target.complete(prompt_of(60)) for _ in range(5)]
    assert {one.evidence.counted_queries for one in found} == {None} and target.counters().queries is None


def test_greedy_gaps_come_with_the_ids():
    _, target = opened(FakeServer())
    completion = target.complete(prompt_of(30), max_tokens=4, logprob_gaps=True)
    assert completion.top_logprob_gaps == (1.25,) * 4 and len(completion.output_token_ids) == 4


def test_a_restart_between_two_requests_is_noted_and_its_counts_are_unknown():
    fake = FakeServer()
    server, target = opened(fake)
    target.counters()
    target.complete(prompt_of(60))
    fake.queries = fake.hits = 0
    fake.blocks.clear()
    after = target.complete(prompt_of(60))
    assert (after.evidence.usage, after.evidence.counted_hits) == (0, None)
    counted = target.counters()
    assert counted.queries is None and counted.growth is None
    assert any("the counters fell once while the lab ran: the server was restarted" in note for note in server.notes())
    target.complete(prompt_of(60))
    counted = target.counters()
    assert (counted.queries, counted.hits) == (60, 48) and not any("fell" in note for note in server.notes())
