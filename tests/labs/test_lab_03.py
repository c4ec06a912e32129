"""Lab 03 shows 124 of 125 blocks, tells the last-token rule from a drafter, and notices an engine that has neither right."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kvcache.kv_cache_manager import KVCacheManager
from engine.kvcache.prefix_cache import NO_MATCH
from labs.lab_03_aligned_prompt import CHECKS, LAB, Config
from labs.protocol import LabReport
from labs.targets.in_process import InProcessTarget
from labs.targets.open_target import open_target_factory
from tests.labs.fake_session import FakeSession

HASH, DRAFTER, LARGE = "hash cache, block 16", "hash cache, block 16, with a drafter", "hash cache, block 1024"
PAGE_1, PAGE_16 = "radix cache, page 1", "radix cache, page 16"


@pytest.fixture(scope="module")
def report() -> LabReport:
    return LAB.run(FakeSession(), Config())


def measured(report: LabReport, group: str, name: str) -> list[float]:
    return [one.value for one in report.measurements if (one.group, one.name) == (group, name)]


@pytest.mark.parametrize(
    ("cache", "hits"),
    [
        (HASH, [1984, 1984, 2000, 2192]),
        (DRAFTER, [1968, 1968, 1984, 2176]),
        (PAGE_1, [1998, 1999, 2000, 2199]),
        (PAGE_16, [1984, 1984, 2000, 2192]),
        (LARGE, [0, 1024, 1024, 3072]),
    ],
)
def test_a_repeat_finds_whole_blocks_and_never_its_last_token(report, cache, hits):
    assert measured(report, cache, "hits") == hits


def test_the_aligned_prompt_shows_124_of_125_blocks_and_one_token_more_all(report):
    assert measured(report, HASH, "blocks") == [124, 124, 125, 137]
    assert measured(report, HASH, "full_blocks") == [124, 125, 125, 137]
    assert measured(report, LARGE, "blocks") == [0, 1, 1, 3] and measured(report, LARGE, "full_blocks") == [1, 1, 1, 4]
    finding = next(line for line in report.findings if line.startswith(f"{HASH}:"))
    assert "2,000 tokens find 124 of their 125 full block(s)" in finding and "expected, not a fault" in finding
    assert "2,001 tokens find 125 of their 125" in finding


def test_the_staircase_tells_the_last_token_rule_from_the_drafter_s_tax(report):
    assert measured(report, CHECKS, "lengths") == [32] * 4
    hits = dict(zip((HASH, DRAFTER, PAGE_1, PAGE_16), measured(report, CHECKS, "hits")))
    assert hits == {HASH: 16 * 16 + 32, DRAFTER: 16, PAGE_1: 32 * 33 // 2, PAGE_16: 16 * 16 + 32}
    readings = {line.partition(":")[0]: line for line in report.findings}
    assert "compute 1 to 16 of their tokens again: the last-token rule and nothing else" in readings[HASH]
    assert "compute 17 to 32 of their tokens again: the last-token rule, and a drafter's block more" in readings[DRAFTER]


def test_every_prediction_is_met_from_a_cold_cache_and_the_staircase_is_drawn(report):
    assert report.agrees and report.cache_state == "cold"
    (chart,) = report.charts
    assert [line.name for line in chart.series] == [HASH, DRAFTER, PAGE_1, PAGE_16]
    assert {len(line.points) for line in chart.series} == {32} and chart.series[0].points[15:17] == ((17.0, 16.0), (18.0, 16.0))


def break_cap(self, request):
    return self.prefix_cache.match(request, request.num_tokens)


def break_drafter(self, request):
    return self.prefix_cache.match(request, request.num_tokens - 1)


@pytest.mark.parametrize("broken", [break_cap, break_drafter], ids=lambda rule: rule.__name__)
def test_a_broken_engine_does_not_pass(monkeypatch, broken):
    monkeypatch.setattr(KVCacheManager, "get_computed_blocks", broken)
    report = LAB.run(FakeSession(), LAB.quick)
    assert not report.agrees and "NOT as predicted" in report.conclusion
    wrong = {one.group for one in report.measurements if one.agrees is False} - {CHECKS}
    assert DRAFTER in wrong and (HASH in wrong) is (broken is break_cap)
    drafter = next(line for line in report.findings if line.startswith(f"{DRAFTER}:"))
    assert ("NOT what" if broken is break_cap else "the last-token rule and nothing else") in drafter


def find_nothing(self, request):
    return NO_MATCH


def test_an_engine_without_hits_is_not_said_to_be_without_fault(monkeypatch):
    monkeypatch.setattr(KVCacheManager, "get_computed_blocks", find_nothing)
    report = LAB.run(FakeSession(), LAB.quick)
    findings = {line.partition(":")[0]: line for line in report.findings}
    assert "64 tokens find 0 of their 4 full block(s), 0.0% of the tokens: NOT as predicted, 3 block(s)" in findings[HASH]
    assert "NOT what a page of one token would lose" in findings[PAGE_1]
    # A block of 64 finds nothing of 64 tokens with a right engine too.
    assert [title for title, line in findings.items() if "expected, not a fault" in line] == ["hash cache, block 64"]


def lose_a_block_to_no_drafter(self, request, original=KVCacheManager.get_computed_blocks):
    found = original(self, request)
    if self.use_eagle:
        return found
    kept = found.num_tokens - self.unit_size
    return self.prefix_cache.match(request, kept) if kept > 0 else NO_MATCH


def test_a_drafter_s_tax_without_a_drafter_is_not_what_the_cache_should_pay(monkeypatch):
    monkeypatch.setattr(KVCacheManager, "get_computed_blocks", lose_a_block_to_no_drafter)
    findings = {line.partition(":")[0]: line for line in LAB.run(FakeSession(), LAB.quick).findings}
    assert "at every such length, NOT what this cache should do" in findings[HASH]
    assert findings[DRAFTER].endswith("at every such length")


def test_blocks_of_one_token_are_called_so_and_cost_a_drafter_two():
    report = LAB.run(FakeSession(), Config(prompt_tokens=(8, 9), block_size=1, large_block_size=2))
    findings = dict(line.split(": ", 1) for line in report.findings)
    assert "a block of one token: a repeat loses its last token alone" in findings["hash cache, block 1"]
    assert "loses its last token, and one more for the drafter" in findings["hash cache, block 1, with a drafter"]
    assert "a page of one token: a repeat loses its last token alone" in findings[PAGE_1]


def test_on_sim_equal_tokens_prove_nothing(report):
    found = [one for one in report.measurements if one.name == "other_token"]
    assert found and all(one.predicted is None and "cannot fail" in one.note for one in found)


def change_warm_tokens(monkeypatch):
    original = InProcessTarget.complete

    def complete(self, prompt_token_ids, **fields):
        completion = original(self, prompt_token_ids, **fields)
        if completion.num_cached_tokens and (self.info.dtype != "float32" or change_warm_tokens.everywhere):
            other = (completion.output_token_ids[0] ^ 1, *completion.output_token_ids[1:])
            completion = type(completion)(**{**completion.__dict__, "output_token_ids": other})
        return completion

    monkeypatch.setattr(InProcessTarget, "complete", complete)


@pytest.mark.parametrize("everywhere", [True, False])
def test_another_first_token_when_warm_is_wrong_unless_float32_says_the_same(monkeypatch, everywhere):
    change_warm_tokens.everywhere = everywhere
    change_warm_tokens(monkeypatch)
    config = EngineConfig(model="synthetic:tiny", dtype="bfloat16", device="cpu")
    session = FakeSession(open_target_factory("engine", config))
    report = LAB.run(session, Config(prompt_tokens=(33,), short_prompt_tokens=(17,), block_size=4, page_sizes=(4,)))
    other = measured(report, CHECKS, "other_token")
    assert (max(other) == 0) is (not everywhere) and session.done == session.expected
    assert report.agrees is (not everywhere)


@pytest.mark.parametrize("full", [True, False])
def test_every_prediction_is_met_on_real_keys_and_values_at_full_length_or_shorter(full):
    config = EngineConfig(model="synthetic:tiny", dtype="float32", device="cpu")
    session = FakeSession(open_target_factory("engine", config))
    sizes = Config(prompt_tokens=(47, 48, 49), short_prompt_tokens=(32,), large_block_size=32, full=full)
    report = LAB.run(session, sizes)
    assert report.agrees and report.cache_state == "cold" and session.done == session.expected
    assert measured(report, HASH, "hits") == [32, 32, 48]
    assert measured(report, PAGE_1, "hits") == ([46, 47, 48] if full else [31])
    assert measured(report, "hash cache, block 32", "hits") == ([0, 32, 32, 96] if full else [])


@pytest.mark.parametrize("block_size", [1, 7, 64, 784])
def test_blocks_of_any_size_start_cold_and_follow_the_law(block_size):
    config = Config(prompt_tokens=(63, 64, 784), block_size=block_size, page_sizes=(3,), large_block_size=2)
    report = LAB.run(FakeSession(), config)
    assert report.agrees and report.cache_state == "cold"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt_tokens": (1,)}, "prompt_tokens is"), ({"prompt_tokens": ()}, "prompt_tokens is"),
        ({"prompt_tokens": (5, 5)}, "prompt_tokens is"), ({"block_size": 0}, "block_size is 0"),
        ({"short_prompt_tokens": (1,)}, "short_prompt_tokens is"), ({"page_sizes": (4, 4)}, "page_sizes is"),
        ({"page_sizes": (70_000,)}, "page_sizes is"), ({"large_block_size": 1}, "large_block_size is 1"),
    ],
)  # fmt: skip
def test_an_impossible_configuration_is_named(fields, named):
    with pytest.raises(ValueError, match=f"{named}.*accepted"):
        Config(**fields)


@pytest.mark.parametrize("fields", [{"prompt_tokens": (8192,)}, {"block_size": 4096}, {"large_block_size": 2048}])
def test_a_prompt_that_cannot_fit_the_model_is_named_by_the_lab_s_field(fields):
    (name,) = fields
    with pytest.raises(ConfigError, match=f"{name} is .*8192"):
        LAB.run(FakeSession(), Config(**fields))
