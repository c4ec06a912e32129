"""Lab 08 predicts who is preempted when and what it finds again, and notices counters that mix resumed requests in."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from engine.errors import ConfigError
from engine.kvcache.kv_cache_manager import KVCacheManager
from engine.model.simulated_runner import SimulatedRunner
from engine.scheduler import Scheduler
from labs import theory
from labs.caches import hash_cache, radix_cache
from labs.lab_08_preemption import LAB, Config
from labs.protocol import LabReport
from labs.scenarios.preemption_series import Pair, send_at_once
from labs.targets.in_process import InProcessTarget
from tests.labs.fake_session import FakeSession

HASH, PAGE_1, PAGE_16 = "hash cache, block 16", "radix cache, page 1", "radix cache, page 16"
SMALL = LAB.quick


def run_lab(config: Config) -> LabReport:
    return LAB.run(FakeSession(), config)


@pytest.fixture(scope="module")
def report() -> LabReport:
    return run_lab(Config())


def column(report: LabReport, group: str, name: str) -> list[float]:
    return [one.samples[0] for one in report.measurements if one.group.startswith(group) and one.name == name]


def test_the_newer_of_two_is_preempted_once_when_both_have_filled_their_blocks(report):
    group = f"{HASH}: two"
    assert column(report, group, "preempted") == [0] + [1] * 8
    assert column(report, group, "outputs") == [64, 49, 49, 33, 33, 17, 17, 1, 1]
    assert column(report, group, "looked_up") == [0, 113, 113, 97, 97, 81, 81, 65, 65]


def test_it_finds_what_the_older_one_did_not_grow_into(report):
    assert column(report, f"{HASH}: two", "found") == [0, 112, 96, 80, 64, 48, 32, 16, 0]
    assert column(report, f"{HASH}: two", "computed_twice") == [0, 0, 16, 16, 32, 32, 48, 48, 64]
    # 112 of 113 tokens: nothing is computed but the newest one.
    told = next(line for line in report.findings if line.startswith(f"{HASH}, two requests"))
    assert "99% at 240" in told and "0% at 128" in told


@pytest.mark.parametrize("cache", [PAGE_1, PAGE_16])
def test_a_tree_keeps_the_prompt_whole_or_nothing_and_never_the_outputs(report, cache):
    assert column(report, f"{cache}: two", "found") == [0, 64, 64, 64, 64, 0, 0, 0, 0]


@pytest.mark.parametrize("cache", [HASH, PAGE_1, PAGE_16])
def test_first_lookups_of_unique_prompts_find_nothing_however_many_are_preempted(report, cache):
    group = f"{cache}: 8 unique"
    assert column(report, group, "hits") == [0] * 8 and column(report, group, "queries") == [520] * 8
    assert column(report, group, "unaccounted") == [0] * 8
    preempted, looked_up = column(report, group, "preempted"), column(report, group, "looked_up")
    assert preempted[0] == 0 and min(preempted[1:]) > 0 and min(looked_up[1:]) > 65
    twice, found = column(report, group, "computed_twice"), column(report, group, "found")
    assert [one + other + count for one, other, count in zip(twice, found, preempted)] == looked_up


def test_a_rate_that_adds_resumed_requests_shows_hits_that_are_none(report):
    assert max(column(report, f"{HASH}: 8 unique", "naive_rate")) > 0.25
    assert any("hit 0 of 520 tokens; a rate that adds" in line and line.endswith("30%") for line in report.findings)


def test_a_request_that_waits_is_counted_once(report):
    group = "No room for the second"
    assert column(report, group, "refused") == [16] * 3 and column(report, group, "queries") == [160] * 3
    assert any("counted once, 160 tokens" in line and "would be 1,440" in line for line in report.findings)


def test_outputs_do_not_depend_on_preemption(report):  # here they cannot: see test_lab_08_engine
    assert set(column(report, "", "differ")) == {0}


def test_every_prediction_is_met_and_the_cache_was_proven_cold(report):
    assert report.agrees and report.cache_state == "cold"
    assert sum(one.predicted is not None for one in report.measurements) > 250


def test_the_charts_show_survival_the_wrong_rate_and_the_blocks(report):
    kinds = [chart.kind for chart in report.charts]
    assert kinds == ["lines", "lines", "block_map", "bars"]
    survival = {series.name: series.points for series in report.charts[0].series}
    assert survival[HASH][0] == (128.0, 0.0) and survival[HASH][-1] == (240.0, 112 / 113)
    assert len(report.charts[1].series) == 3
    states = report.charts[2].series[0]
    # Both are in use; the newer one's blocks are kept, evicted one by one, and taken up again.
    assert states.rows[0] == "1" and states.cells[0] == "AAAAAAAA...."
    assert any("cccc" in cells and "x" in cells for cells in states.cells) and len(states.cells) <= 24


@pytest.mark.parametrize(
    "cache", [hash_cache(16), hash_cache(5), radix_cache(1), radix_cache(4), radix_cache(16)], ids=lambda one: one.title
)
def test_the_laws_of_two_requests_hold_for_all_sizes(cache):
    """Every pool from one request's size to both's, against the engine."""
    session = FakeSession()
    for prompt_tokens, output_tokens in ((33, 30), (48, 17), (20, 64)):
        for pool_tokens in range(prompt_tokens + output_tokens + cache.unit, 2 * (prompt_tokens + output_tokens) + 40, 7):
            pair = Pair(cache, prompt_tokens, output_tokens, pool_tokens)
            if pair.waits:
                continue
            target = session.open_target(**cache.engine_fields, num_gpu_blocks=pair.num_usable + 1)
            prompts = [tuple(range(start, start + prompt_tokens)) for start in (100, 300)]
            result = send_at_once(target, prompts, [output_tokens] * 2)
            expected = {name: law.value for name, law in pair.predictions().items()}
            assert len(result.watch.preemptions) == expected["preempted"]
            assert [one.num_outputs for one in result.watch.preemptions] == [expected["outputs"]] * expected["preempted"]
            counted = result.counters
            assert (counted.preempted_queries, counted.preempted_hits) == (expected["looked_up"], expected["found"])
            assert result.num_computed_twice == expected["computed_twice"]


def test_a_block_lacks_when_each_request_has_filled_its_own():
    assert theory.outputs_before_preemption(2, 64, 16, 15) == 49
    assert theory.outputs_before_preemption(3, 64, 16, 15) == 17
    assert theory.resumed_hits_tails_first(64, 64, 16, 15) == 112
    assert theory.resumed_hits_whole_leaf(64, 64, 16, 12) == 64 and theory.resumed_hits_whole_leaf(64, 64, 16, 11) == 0


def count_resumed_requests_as_new(monkeypatch):
    monkeypatch.setattr(
        KVCacheManager, "record_lookup", lambda self, request, hits: self.stats.record(request.num_tokens, hits, preempted=False)
    )


def count_every_try(monkeypatch):
    original = KVCacheManager.get_computed_blocks

    def lookup(self, request):
        match = original(self, request)
        self.stats.record(request.num_tokens, match.num_tokens, preempted=request.num_preemptions > 0)
        return match

    monkeypatch.setattr(KVCacheManager, "get_computed_blocks", lookup)
    monkeypatch.setattr(KVCacheManager, "record_lookup", lambda self, request, hits: None)


def preempt_the_oldest(monkeypatch):
    monkeypatch.setattr(Scheduler, "_choose_victim", lambda self: self.running[0])


def forget_what_is_preempted(monkeypatch):
    original = Scheduler._preempt

    def preempt(self, request):
        self.manager.unpublish(request, 0)
        original(self, request)

    monkeypatch.setattr(Scheduler, "_preempt", preempt)


@pytest.mark.parametrize(
    "broken",
    [count_resumed_requests_as_new, count_every_try, preempt_the_oldest, forget_what_is_preempted],
    ids=lambda rule: rule.__name__,
)
def test_an_engine_that_preempts_or_counts_otherwise_does_not_pass(monkeypatch, broken):
    broken(monkeypatch)
    report = run_lab(SMALL)
    assert not report.agrees and "NOT as predicted" in report.conclusion


class OpenRealClock:
    """Simulated targets that pass for real ones."""

    kind = "engine"
    served = None

    def __init__(self) -> None:
        self._open = FakeSession().open_target

    def __call__(self, **engine_fields):
        return self._open(**engine_fields)


def answer_otherwise_after_a_preemption(monkeypatch):
    original = SimulatedRunner._sample

    def sample(self, request):
        token, logprobs = original(self, request)
        return (token ^ 1 if request.num_preemptions else token), logprobs

    monkeypatch.setattr(SimulatedRunner, "_sample", sample)


def test_wrong_outputs_after_a_preemption_are_noticed_where_tokens_depend_on_keys_and_values(monkeypatch):
    answer_otherwise_after_a_preemption(monkeypatch)
    report = LAB.run(FakeSession(OpenRealClock()), SMALL)
    assert {one.name for one in report.measurements if one.agrees is False} == {"differ"}


def test_on_sim_outputs_are_counted_and_not_judged(report):
    differ = [one for one in report.measurements if one.name == "differ"]
    assert {one.predicted for one in differ} == {None} and all("not judged on sim" in one.note for one in differ)
    times = [one for one in report.measurements if one.unit == "s"]
    assert times and all("accounting, not physics" in one.note for one in times)
    assert any("times as long (on sim the times check the accounting" in line for line in report.findings)


def test_what_the_tightest_pool_costs_is_counted_in_steps_and_requests_at_once(report):
    told = next(line for line in report.findings if line.startswith(f"{HASH}: in the tightest pool"))
    at_once, roomy, steps, roomy_steps = map(
        float, re.search(r"; ([\d.]+) requests .* roomiest's ([\d.]+), in (\d+) steps instead of (\d+);", told).groups()
    )
    assert at_once < roomy <= 8 and steps > roomy_steps
    # Each request is served once for its prompt, which fits one step, and once for each further token.
    assert roomy * roomy_steps == pytest.approx(sum(outputs_of_many()), rel=0.02)


def outputs_of_many() -> list[int]:
    from labs.lab_08_preemption import Bench

    return list(Bench(FakeSession(), Config()).crowd.output_tokens)


def test_one_pool_is_compared_with_nothing():
    findings = run_lab(replace(SMALL, churn_pools=(160,))).findings
    assert any("in the tightest pool" in line and line.endswith("recovered") for line in findings)
    assert not any("times as long" in line for line in findings)


def test_a_canary_that_proves_nothing_is_forgotten_too(monkeypatch):
    monkeypatch.setattr("labs.scenarios.empty_pools.prove_cold", lambda *_: False)
    resets = []
    monkeypatch.setattr(InProcessTarget, "reset", lambda self: resets.append(1) or True)
    report = run_lab(SMALL)
    assert report.cache_state == "uncontrolled" and len(resets) == 2 * (len(SMALL.pool_tokens) + 1 + len(SMALL.churn_pools))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"pool_tokens": (256, 127)}, r"pool_tokens is \(256, 127\); accepted: whole numbers from 128"),
        ({"churn_pools": (100,)}, r"churn_pools is \(100,\); accepted: whole numbers from 144"),
        ({"wait_pool_tokens": 160}, "wait_pool_tokens is 160; accepted: at most 159: the second request must wait"),
        ({"wait_pool_tokens": 95}, "wait_pool_tokens is 95; accepted: whole numbers from 96"),
        ({"block_size": 128}, "pool_tokens is .*; accepted: whole numbers from 256"),
        ({"num_requests": 1}, "num_requests is 1; accepted: a whole number from 2"),
        ({"output_tokens": 1}, "output_tokens is 1; accepted"),
        ({"churn_pools": (1024, 1024)}, "churn_pools is .*; accepted: numbers that differ"),
        ({"page_sizes": ()}, r"page_sizes is \(\); accepted"),
        ({"block_size": 0}, "block_size is 0; accepted"),
    ],
)
def test_an_impossible_configuration_is_named(fields, named):
    with pytest.raises(ValueError, match=named):
        Config(**fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt_tokens": 3000, "pool_tokens": (7000,)}, "prompt_tokens is 3000; accepted: at most 2048 where prompts share"),
        ({"output_tokens": 9000, "pool_tokens": (10_000,)}, "output_tokens is 9000; accepted: at most 8128 with this model"),
        ({"churn_output_tokens": 6000, "churn_pools": (10_000,)}, "churn_output_tokens is 6000; accepted: at most 5418"),
    ],
)
def test_prompts_and_outputs_that_do_not_fit_are_named(fields, named):
    with pytest.raises(ConfigError, match=named):
        run_lab(Config(**fields))
