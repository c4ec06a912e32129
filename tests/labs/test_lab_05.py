"""Lab 05: a prefix shorter than a block finds nothing, a match loses half a block, and the hits tell the unit in force."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kvcache.kv_cache_manager import KVCacheManager
from engine.kvcache.prefix_cache import NO_MATCH
from labs.lab_05_block_size import LAB, Config
from labs.protocol import LabReport
from labs.scenarios.match_sweep import fitted_unit
from labs.targets.open_target import open_target_factory
from tests.labs.fake_session import FakeSession

BLOCK_16, BLOCK_784, UNIT = "hash cache, block 16", "hash cache, block 784", "hash cache, block 16, match unit 1,056"
HASH_SWEEP, RADIX_SWEEP = "all remainders, hash cache", "all remainders, radix cache"


@pytest.fixture(scope="module")
def report() -> LabReport:
    return LAB.run(FakeSession(), Config())


def measured(report: LabReport, group: str, row: str, name: str) -> tuple[float, ...]:
    return next(one.samples for one in report.measurements if (one.group, one.row, one.name) == (group, row, name))


@pytest.mark.parametrize("cache", [BLOCK_16, "radix cache, page 1", "radix cache, page 16"])
def test_forty_nine_requests_find_their_240_shared_tokens(report, cache):
    assert measured(report, cache, "50 share 240 of 900", "first") == (0,)
    assert measured(report, cache, "50 share 240 of 900", "later") == (240,) * 49
    assert measured(report, cache, "50 share 240 of 900", "queries") == (45_000,)


def test_blocks_of_784_find_nothing_of_them_and_the_next_length_finds_all(report):
    assert measured(report, BLOCK_784, "50 share 240 of 900", "later") == (0,) * 49
    assert measured(report, BLOCK_784, "2 share 784 of 800", "later") == (784,)
    finding = next(line for line in report.findings if line.startswith(BLOCK_784))
    assert "shared prefix (240) is shorter than one block (784): nothing can be reused" in finding
    assert "49 later request(s) share it; the next prefix length that would hit is 784" in finding


def test_a_match_unit_of_1056_finds_nothing_of_908_shared_tokens_and_one_unit_of_1308(report):
    assert measured(report, UNIT, "8 share 908 of 924", "total") == (0,)
    assert measured(report, UNIT, "8 share 1,308 of 1,324", "later") == (1056,) * 7
    assert measured(report, UNIT, "8 share 1,308 of 1,324", "total") == (7 * 1056,)
    assert measured(report, UNIT, "all series", "fitted_unit") == (1056,)
    assert any(line.startswith(UNIT) and "(908) is shorter than one match unit (1,056)" in line for line in report.findings)
    assert any(line.startswith(UNIT) and "blocks of 16, yet" in line and "units of 1,056" in line for line in report.findings)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32, 64])
def test_a_match_loses_half_a_block_on_average_and_tells_its_size(report, size):
    for group, row in ((HASH_SWEEP, f"block {size}"), (RADIX_SWEEP, f"page {size}")):
        assert measured(report, group, row, "mean_loss") == ((size - 1) / 2,)
        assert measured(report, group, row, "fitted_unit") == (size,)
        assert measured(report, group, row, "requests") == (max(16, size),)
    assert measured(report, HASH_SWEEP, f"block {size}", "names") == (900 // size,)


def test_a_block_longer_than_any_prompt_is_refused_before_any_traffic(report):
    assert measured(report, "the longest prompt, before any traffic", "block 8,320, max_model_len 4,096", "names") == (0,)
    assert any("no prompt can ever fill a block" in line for line in report.findings)


def test_every_prediction_is_met_from_a_cold_cache_and_two_charts_are_drawn(report):
    assert report.agrees and report.cache_state == "cold"
    bars, lines = report.charts
    assert dict(zip(bars.series[1].rows, bars.series[1].values))[f"{BLOCK_784}: share 240"] == (0,)
    assert lines.series[0].points == lines.series[1].points == lines.series[2].points


@pytest.mark.parametrize(("block", "says"), [
    (254, "1 block(s) of the longest prompt can fill; by the law its repeat finds 254 tokens"),
    (255, "the longest prompt fills a block exactly, and its last token is always computed, so by the law nothing can ever be"),
    (256, "no prompt can ever fill a block, so nothing can ever be reused; take blocks below 255"),
])  # fmt: skip
def test_a_block_that_the_longest_prompt_fills_and_never_finds_is_told(block, says):
    report = LAB.run(FakeSession(), Config(num_requests=2, oversized_block=block, short_model_len=256))
    assert report.agrees and any(says in line for line in report.findings)


def test_simulated_times_are_called_accounting_and_a_real_model_s_shorter_series_shortened(report):
    assert any("accounting, not physics" in line for line in report.findings)
    session = FakeSession(open_target_factory("engine", EngineConfig(model="synthetic:tiny", dtype="float32", device="cpu")))
    real = LAB.run(session, replace(LAB.quick, real_requests=2))
    assert real.agrees and any("at most 2 requests a series (num_requests is 4" in line for line in real.findings)
    assert not any("physics" in line for line in real.findings)


def find_nothing(self, request):
    return NO_MATCH


def test_an_engine_that_finds_nothing_is_not_said_to_reuse(monkeypatch):
    monkeypatch.setattr(KVCacheManager, "get_computed_blocks", find_nothing)
    report = LAB.run(FakeSession(), LAB.quick)
    finding = next(line for line in report.findings if line.startswith(f"{BLOCK_16}:"))
    assert "NOT as predicted: of 48 shared tokens 0 are reused, 48 are due with a block of 16" in finding
    assert len(report.conclusion) < 1_500 and " more. What follows" in report.conclusion


def ignore_the_match_unit(self, request):
    return self.prefix_cache.match(request, request.num_tokens - 1)


def give_up_a_unit(self, request):
    match = self.prefix_cache.match(request, request.num_tokens - 1)
    kept = (match.num_tokens // self.match_unit - 1) * self.match_unit
    return self.prefix_cache.match(request, kept) if kept > 0 else NO_MATCH


@pytest.mark.parametrize("broken", [ignore_the_match_unit, give_up_a_unit], ids=lambda rule: rule.__name__)
def test_a_broken_engine_does_not_pass(monkeypatch, broken):
    monkeypatch.setattr(KVCacheManager, "get_computed_blocks", broken)
    report = LAB.run(FakeSession(), LAB.quick)
    wrong = {(one.group, one.name) for one in report.measurements if one.agrees is False}
    assert ("hash cache, block 16, match unit 96", "later") in wrong and "NOT as predicted" in report.conclusion
    assert ((HASH_SWEEP, "mean_loss") in wrong) is (broken is give_up_a_unit)


def test_a_unit_is_fitted_only_where_the_lengths_can_tell_it():
    assert fitted_unit([(908, 924, 0)], 1056, "", "") is None
    assert fitted_unit([(908, 924, 0), (1308, 1324, 1056)], 1056, "", "").agrees
    wrong = fitted_unit([(908, 924, 896), (1308, 1324, 1296)], 1056, "", "")
    assert wrong.samples == (16,) and not wrong.agrees
    assert fitted_unit([(908, 924, 7), (1308, 1324, 1056)], 1056, "", "").samples == (0,)
    report = LAB.run(FakeSession(), Config(num_requests=2, match_shared_tokens=(908,), block_sizes=(3,)))
    assert report.agrees and any("several units would explain that" in line for line in report.findings)


@pytest.mark.parametrize(
    "fields", [{"block_size": 48, "match_unit": 96}, {"page_sizes": (7, 512)}, {"block_sizes": (3, 5, 7, 100)}, {"seed": 9}]
)
def test_other_sizes_follow_the_laws_too(fields):
    report = LAB.run(FakeSession(), Config(num_requests=3, **fields))
    assert report.agrees and report.cache_state == "cold"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_requests": 1}, "num_requests is 1"), ({"num_requests": 1_003}, "num_requests is 1003"),
        ({"num_match_requests": 60_000}, "num_match_requests is 60000"), ({"real_requests": 60_000}, "real_requests is 60000"),
        ({"shared_tokens": 900}, "shared_tokens is 900"),
        ({"match_unit": 100}, "match_unit is 100"), ({"block_sizes": (2, 2)}, "block_sizes is"),
        ({"block_sizes": (2048,)}, "block_sizes is"), ({"page_sizes": ()}, "page_sizes is"),
        ({"large_block_size": 0}, "large_block_size is 0"), ({"match_shared_tokens": (0,)}, "match_shared_tokens is"),
    ],
)  # fmt: skip
def test_an_impossible_configuration_is_named(fields, named):
    with pytest.raises(ValueError, match=f"{named}.*accepted"):
        Config(**fields)


@pytest.mark.parametrize(
    "fields", [{"large_block_size": 8190}, {"prompt_tokens": 8192}, {"match_unit": 8192}, {"page_sizes": (9000,)}]
)
def test_a_prompt_that_cannot_fit_the_model_is_named_by_the_lab_s_field(fields):
    (name,) = fields
    with pytest.raises(ConfigError, match=f"{name} is .*8192"):
        LAB.run(FakeSession(), Config(**fields))
