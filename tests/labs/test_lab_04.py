"""Lab 04 measures the integers of the published laws, and notices every engine that breaks one."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kvcache import block_hash, kv_cache_manager
from engine.kvcache.cache_identity import CacheIdentity
from labs.lab_04_prefix_cache_hit_rate import LAB, Config
from labs.protocol import LabReport
from labs.targets.open_target import SIM_MODEL, open_target_factory
from tests.broken_rules import name_blocks_without_their_parents
from tests.labs.fake_session import FakeSession

HASH, PAGE_1, PAGE_16 = "hash cache, block 16", "radix cache, page 1", "radix cache, page 16"


def run_lab(config: Config) -> LabReport:
    return LAB.run(FakeSession(), config)


@pytest.fixture(scope="module")
def report() -> LabReport:
    return run_lab(Config())


def measured(report: LabReport, group: str, row: str) -> dict[str, object]:
    return {one.name: one.samples for one in report.measurements if (one.group, one.row) == (group, row)}


@pytest.mark.parametrize("cache", [HASH, PAGE_1, PAGE_16])
def test_the_shared_fraction_is_the_hit_rate(report, cache):
    found = measured(report, cache, "shared system prompt, 10 requests")
    assert (found["first"], found["later"], found["total"], found["queries"]) == ((0,), (2000,) * 9, (18_000,), (22_000,))


@pytest.mark.parametrize(
    ("row", "first", "later"),
    [
        ("fresh salt per request", 0, {HASH: 0, PAGE_1: 0, PAGE_16: 0}),
        ("one fixed new salt", 0, {HASH: 2000, PAGE_1: 2000, PAGE_16: 2000}),
        ("unique token prepended", 0, {HASH: 0, PAGE_1: 0, PAGE_16: 0}),
        ("shared token prepended", 0, {HASH: 2000, PAGE_1: 2001, PAGE_16: 2000}),
        ("unique token appended", 2000, {HASH: 2000, PAGE_1: 2000, PAGE_16: 2000}),
        ("shared token appended", 2000, {HASH: 2000, PAGE_1: 2001, PAGE_16: 2000}),
        ("repeat of 2,000 tokens", 0, {HASH: 1984, PAGE_1: 1999, PAGE_16: 1984}),
        ("shift by k = 1…32", 0, {HASH: 0, PAGE_1: 0, PAGE_16: 0}),
    ],
)
def test_every_way_to_break_it_costs_what_the_law_says(report, row, first, later):
    for cache, tokens in later.items():
        found = measured(report, cache, row)
        assert found["first"] == (first,) and set(found["later"]) == {tokens}


def test_on_sim_times_are_accounting_and_equal_outputs_prove_nothing(report):
    assert any("accounting, not physics" in line for line in report.findings)
    outputs = [one for one in report.measurements if one.row.startswith("greedy output")]
    assert len(outputs) == 3 and all(one.predicted is None and "cannot fail" in one.note for one in outputs)


def test_equal_page_sizes_are_refused():
    with pytest.raises(ValueError, match="page_sizes is .*; accepted: numbers that differ"):
        Config(page_sizes=(1, 1))


def test_every_prediction_is_met_and_the_cache_was_proven_cold(report):
    assert report.agrees and report.cache_state == "cold"
    assert sum(one.predicted is not None for one in report.measurements) > 100


def test_the_verdict_tells_a_salt_from_a_token_in_front(report):
    salted = next(line for line in report.findings if line.startswith(f"{HASH}: fresh salt"))
    prepended = next(line for line in report.findings if line.startswith(f"{HASH}: unique token prepended"))
    assert "a salt, not the text" in salted and "identity differs in cache salt" in salted and "position 2,000" in salted
    assert "something in front" in prepended and "identity equal" in prepended and "position 0" in prepended
    for line in (salted, prepended):
        assert "block 0 is " in line and " ≠ " in line


def test_two_runs_say_the_same(report):
    again = run_lab(Config())
    assert [one.samples for one in again.measurements if one.unit == "tokens"] == [
        one.samples for one in report.measurements if one.unit == "tokens"
    ]
    assert again.details["workloads"] == report.details["workloads"]


def break_parent(monkeypatch):
    monkeypatch.setattr(block_hash.BlockHasher, "extend", name_blocks_without_their_parents)


def break_cap(monkeypatch):
    def lookup(self, request):
        return self.prefix_cache.match(request, request.num_tokens)

    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "get_computed_blocks", lookup)


def break_salt(monkeypatch):
    original = CacheIdentity.extra_keys
    monkeypatch.setattr(
        CacheIdentity, "extra_keys", lambda self, start, end: None if self.cache_salt else original(self, start, end)
    )


@pytest.mark.parametrize("broken", [break_parent, break_cap, break_salt], ids=lambda rule: rule.__name__)
def test_a_broken_engine_does_not_pass(monkeypatch, broken):
    broken(monkeypatch)
    small = Config(shared_tokens=160, user_tokens=32, short_shared_tokens=96, num_requests=3, max_shift=20, page_sizes=(16,))
    assert not run_lab(small).agrees


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_requests": 1}, "num_requests is 1"), ({"page_sizes": ()}, "page_sizes"), ({"block_size": 0}, "block_size is 0"),
        ({"page_sizes": (16, 100_000)}, "page_sizes is"), ({"max_shift": 200_000}, "max_shift is 200000"),
    ],
)
def test_an_impossible_configuration_is_named(fields, named):
    with pytest.raises(ValueError, match=f"{named}.*accepted"):
        Config(**fields)


def test_a_cache_that_is_not_cold_is_reported(monkeypatch):
    from labs.targets.in_process import InProcessTarget

    monkeypatch.setattr(InProcessTarget, "reset", lambda self: True)  # says yes and does nothing
    session = FakeSession(open_target_factory("sim", EngineConfig(model=SIM_MODEL)))
    report = LAB.run(session, LAB.quick)
    assert report.cache_state == "uncontrolled" and "cold" not in session.states


def test_a_pool_too_small_for_the_lab_misses_predictions_and_says_why():
    report = run_lab(Config(pool_tokens=5000))
    assert not report.agrees
    assert any("were evicted" in line for line in report.findings)


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"pool_tokens": 100}, "pool_tokens is 100; accepted: at least 2233"), ({"shared_tokens": 9000}, "shared_tokens is 9000; accepted: at most")],
)
def test_a_prompt_that_cannot_fit_is_named_by_the_lab_s_field(fields, named):
    with pytest.raises(ConfigError, match=named):
        run_lab(Config(**fields))


@pytest.mark.parametrize("block_size", [7, 64, 784])
def test_a_cold_start_is_proven_for_blocks_of_any_size(block_size):
    report = run_lab(Config(block_size=block_size, page_sizes=(3,), num_requests=3))
    assert report.agrees and report.cache_state == "cold"
