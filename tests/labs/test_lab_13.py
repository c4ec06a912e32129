"""Lab 13: what skips and empties the cache, stale K/V of a real model, and engines that break the rules."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kvcache.kv_cache_manager import KVCacheManager
from engine.request import Request
from labs.lab_13_invalidation import LAB, Config
from labs.protocol import LabReport
from labs.targets.in_process import InProcessTarget
from labs.targets.open_target import open_target_factory
from tests.labs.fake_session import FakeSession

HASH, PAGE_1, PAGE_16 = "hash cache, block 16", "radix cache, page 1", "radix cache, page 16"
REPEAT = {HASH: 144, PAGE_1: 159, PAGE_16: 144}
SKIPS, EMPTIES, UPDATE = "what skips it", "what empties it", "new weights"
TINY = EngineConfig(model="synthetic:tiny", dtype="float32", device="cpu")


def run_lab(config: Config = LAB.quick) -> LabReport:
    return LAB.run(FakeSession(), config)


@pytest.fixture(scope="module")
def report() -> LabReport:
    return run_lab(Config())


@pytest.fixture(scope="module")
def real_report() -> LabReport:
    return LAB.run(FakeSession(open_target_factory("engine", TINY)), Config(prompt_tokens=100, page_sizes=(1,)))


def values(report: LabReport, cache: str, part: str, name: str) -> dict[str, int]:
    return {one.row: one.value for one in report.measurements if (one.group, one.name) == (f"{cache}: {part}", name)}


@pytest.mark.parametrize("cache", REPEAT)
def test_prompt_logprobs_reads_nothing_writes_and_is_not_counted(report, cache):
    hits, queries = (values(report, cache, SKIPS, name) for name in ("hits", "queries"))
    for row in ("prompt_logprobs, cold cache", "prompt_logprobs, warm cache", "told not to read"):
        assert (hits[row], queries[row]) == (0, 0)
    assert (hits["plain, behind it"], queries["plain, behind it"]) == (REPEAT[cache], 160)
    assert (hits["another salt"], queries["another salt"], hits["that salt again"]) == (0, 160, REPEAT[cache])


@pytest.mark.parametrize("cache", REPEAT)
def test_a_reset_is_refused_while_a_request_holds_blocks_and_accepted_after(report, cache):
    accepted, cleared, hits = (values(report, cache, EMPTIES, name) for name in ("accepted", "cleared", "hits"))
    assert list(accepted.values()) == list(cleared.values()) == [0, 1]
    assert hits == {"plain, after it": REPEAT[cache], "plain, after that": 0, "salted, after that": 0}


@pytest.mark.parametrize("cache", REPEAT)
def test_without_content_the_cache_hits_on_after_an_update_and_the_lab_says_why(report, cache):
    hits = values(report, cache, UPDATE, "hits")
    assert (hits["new weights, no reset"], hits["new weights, after a reset"]) == (REPEAT[cache], 0)
    assert values(report, cache, UPDATE, "wrong") == {}
    assert any("no K/V are kept" in line for line in report.findings)


@pytest.mark.parametrize(("cache", "repeat"), [(HASH, 96), (PAGE_1, 99)])
def test_weights_changed_without_a_reset_answer_from_stale_keys_and_values(real_report, cache, repeat):
    hits, wrong = values(real_report, cache, UPDATE, "hits"), values(real_report, cache, UPDATE, "wrong")
    assert hits == {"old weights, warm": repeat, "new weights, no reset": repeat, "new weights, after a reset": 0}
    assert wrong["old weights, warm"] == 0 and wrong["new weights, after a reset"] == 0
    assert 1 <= wrong["new weights, no reset"] <= 8 and wrong["old against new weights"] > 0
    assert real_report.agrees and real_report.cache_state == "cold"


def test_every_prediction_is_met_and_everything_was_told_to_the_session(report):
    assert report.agrees and report.cache_state == "cold"
    session = FakeSession(open_target_factory("engine", TINY))
    real = LAB.run(session, Config(prompt_tokens=40, page_sizes=(16,), output_tokens=2))
    assert session.done == session.expected and tuple(session.measurements) == real.measurements


def count_prompt_logprobs(monkeypatch):
    monkeypatch.setattr(KVCacheManager, "reads_cache", lambda self, request: self.caching_enabled)


def read_with_prompt_logprobs(monkeypatch):
    monkeypatch.setattr(Request, "skips_cache_read", property(lambda self: False))


def forget_to_write(monkeypatch):
    publish = KVCacheManager._publish

    def only_readers(self, request, num_tokens):
        if not request.skips_cache_read:
            publish(self, request, num_tokens)

    monkeypatch.setattr(KVCacheManager, "_publish", only_readers)


def reset_whatever_runs(monkeypatch):
    def reset(self):
        self.prefix_cache.events.clear()
        return True

    monkeypatch.setattr(KVCacheManager, "reset_prefix_cache", reset)


def reset_without_an_event(monkeypatch):
    reset = KVCacheManager.reset_prefix_cache

    def silent(self):
        done = reset(self)
        self.prefix_cache.events.clear()
        return done

    monkeypatch.setattr(KVCacheManager, "reset_prefix_cache", silent)


@pytest.mark.parametrize(
    "broken",
    [count_prompt_logprobs, read_with_prompt_logprobs, forget_to_write, reset_whatever_runs, reset_without_an_event],
    ids=lambda rule: rule.__name__,
)
def test_a_broken_engine_does_not_pass(monkeypatch, broken):
    broken(monkeypatch)
    assert not run_lab().agrees


def test_an_update_that_changes_nothing_is_noticed(monkeypatch):
    from engine.model import weight_update

    monkeypatch.setattr(weight_update, "updated_weights", lambda loaded, seed, change: loaded)
    report = LAB.run(FakeSession(open_target_factory("engine", TINY)), Config(prompt_tokens=40, page_sizes=(16,)))
    missed = {(one.row, one.name) for one in report.measurements if one.agrees is False}
    assert missed == {("new weights, no reset", "wrong")}


def test_a_cache_that_is_not_cold_is_reported(monkeypatch):
    monkeypatch.setattr(InProcessTarget, "reset", lambda self: True)  # says yes and does nothing
    report = run_lab()
    assert report.cache_state == "uncontrolled" and not report.agrees


@pytest.mark.parametrize(
    "config", [Config(prompt_tokens=33, block_size=7, page_sizes=(3, 5)), Config(prompt_tokens=3, output_tokens=1)]
)
def test_sizes_of_any_kind_meet_the_laws(config):
    report = run_lab(config)
    assert report.agrees and report.cache_state == "cold"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt_tokens": 2}, "prompt_tokens is 2; accepted"), ({"output_tokens": 0}, "output_tokens is 0"),
        ({"weight_change": float("nan")}, "weight_change is nan; accepted: a number from 0.1 to 10.0"),
        ({"page_sizes": (1, 1)}, "page_sizes is"),
        ({"weight_change": 0.01}, "weight_change is 0.01; accepted: a number from 0.1 to 10.0"),
        ({"page_sizes": (0,)}, "page_sizes is"), ({"block_size": 70_000}, "block_size is 70000; accepted"),
    ],
)  # fmt: skip
def test_an_impossible_configuration_is_named(fields, named):
    with pytest.raises(ValueError, match=named):
        Config(**fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt_tokens": 9000}, "prompt_tokens is 9000; accepted: at most 8184"),
        ({"output_tokens": 1_000_003}, "output_tokens is 1000003; accepted: at most 8032"),
        ({"prompt_tokens": 9000, "output_tokens": 9001}, "output_tokens is 9001; accepted: less than 8192 together with prompt"),
    ],
)
def test_lengths_that_the_model_cannot_take_are_named(fields, named):
    with pytest.raises(ConfigError, match=named):
        run_lab(Config(**fields))


def test_the_conclusion_names_the_engine_of_each_rule_and_stays_short_when_much_is_wrong(report, monkeypatch):
    asked = "vLLM's /reset_prefix_cache always answers 200", "SGLang's /flush_cache answers 400", "only paused holds its blocks"
    for text in asked:
        assert text in report.conclusion
    count_prompt_logprobs(monkeypatch)
    read_with_prompt_logprobs(monkeypatch)
    broken = run_lab(Config())
    assert sum(one.agrees is False for one in broken.measurements) > 3
    assert " more. What follows are the laws" in broken.conclusion and len(broken.conclusion) < 2_000
