"""Lab 11 explains each difference between the caches by kind, and notices an engine with another rule."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kvcache import kv_cache_manager, radix_cache
from engine.kvcache.block_pool import BlockPool
from engine.kvcache.prefix_cache import NO_MATCH, HashPrefixCache, PublishRule
from engine.kvcache.radix_tree import RadixTree
from labs import theory
from labs.lab_11_hash_map_or_tree import LAB, Config
from labs.protocol import LabReport
from labs.targets.open_target import SIM_MODEL, open_target_factory
from tests.labs.fake_session import FakeSession

HASH, PAGE_1, PAGE_16 = "hash cache, block 16", "radix cache, page 1", "radix cache, page 16"
FAST = {"lookup_tokens": (100, 200), "lookup_trials": 1}


def run_lab(config: Config, **engine_fields) -> LabReport:
    return LAB.run(FakeSession(open_target_factory("sim", EngineConfig(model=SIM_MODEL, **engine_fields))), config)


@pytest.fixture(scope="module")
def report() -> LabReport:
    return run_lab(Config(**FAST))


def measured(report: LabReport, group: str, name: str) -> dict[str, int]:
    return {one.row: one.value for one in report.measurements if (one.group, one.name) == (group, name)}


def test_each_cache_finds_what_its_rules_say(report):
    assert measured(report, HASH, "hits") == {
        "shared prompt": 5 * 400, "repeats": 2 * 304, "mixed prefixes": 624, "twins at once": 7 * 304,
        "two in turns": 4 * 176, "queue, as it came": 6 * 176, "queue, lpm": 6 * 352,
    }  # fmt: skip
    assert measured(report, PAGE_1, "hits") == {
        "shared prompt": 5 * 405, "repeats": 2 * 319, "mixed prefixes": 710, "twins at once": 4 * 319,
        "two in turns": 0, "queue, as it came": 0, "queue, lpm": 6 * 361,
    }  # fmt: skip
    assert measured(report, PAGE_16, "hits")["twins at once"] == 4 * 304


def test_twins_follow_the_law_of_equal_prompts_at_once(report):
    seats = theory.first_step_requests(8, 320, 4 * 320, 4)
    assert measured(report, HASH, "hits")["twins at once"] == theory.concurrent_repeat_hits(8, 1, 320, 16)
    assert measured(report, PAGE_1, "hits")["twins at once"] == theory.concurrent_repeat_hits(8, seats, 320, 1)


def test_every_difference_is_the_sum_of_its_kinds(report):
    group = f"{HASH} − {PAGE_1}"
    found = {one.row: one for one in report.measurements if one.group == group}
    assert found["shared prompt"].predicted.law == "rounding −25 = −25"
    assert found["repeats"].predicted.law == "last token −30 = −30"
    assert found["twins at once"].predicted.law == "twins +960, last token −108 = +852"
    assert found["two in turns"].predicted.law == "rounding −4, last token +4, eviction +704 = +704"
    rows = [row for row in found if row != "the whole workload"]
    assert found["the whole workload"].value == sum(found[row].value for row in rows) == 2417
    assert set(measured(report, f"{HASH} − {PAGE_16}", "hash − radix").values()) >= {0, 912, 704}


def test_a_map_asks_once_a_block_and_a_tree_once_a_node(report):
    # 445 tokens: the first asks once in vain, each later one finds 25 blocks and misses one.
    assert measured(report, HASH, "probes")["shared prompt"] == 1 + 5 * 26
    # The second parts the run; from then on each finds the shared node and misses behind it.
    assert measured(report, PAGE_1, "probes")["shared prompt"] == 1 + 5 * 2
    assert measured(report, HASH, "probes")["repeats"] == 1 + 2 * 19
    assert measured(report, PAGE_1, "probes")["repeats"] == 1 + 2 * 1


def test_the_map_keeps_copies_and_the_tree_keeps_one(report):
    assert measured(report, HASH, "copies") == {"shared prompt": 0, "repeats": 2, "mixed prefixes": 0, "twins at once": 7}
    assert set(measured(report, PAGE_1, "copies").values()) == set(measured(report, PAGE_16, "copies").values()) == {0}


def test_every_prediction_is_met_and_the_cache_was_proven_cold(report):
    assert report.agrees and report.cache_state == "cold"
    assert sum(one.predicted is not None for one in report.measurements) > 100
    assert [chart.kind for chart in report.charts] == ["bars", "bars", "lines"]


def test_findings_and_chart_show_what_was_measured_beside_the_laws(report):
    told = next(line for line in report.findings if line.startswith(f"over the whole workload, {HASH} − {PAGE_1}"))
    assert "+2,417 tokens found; by the laws: " in told and told.endswith("= +2,417")
    found = {series.name: dict(zip(series.rows, series.values)) for series in report.charts[0].series}
    assert found[HASH]["twins at once"] == (7 * 304,) and found[PAGE_1]["two in turns"] == (0,)
    of_map, of_tree = (
        next(line for line in report.findings if line.startswith(f"{title}:") and "probes" in line) for title in (HASH, PAGE_1)
    )
    assert "its names made before" in of_map and "names" not in of_tree


def test_an_engine_that_finds_nothing_is_not_told_the_forecast(monkeypatch):
    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "get_computed_blocks", lambda self, request: NO_MATCH)
    report = run_lab(Config(**FAST))
    told = [line for line in report.findings if line.startswith("over the whole workload")]
    assert len(told) == 2 and all(": 0 tokens found, NOT what the laws say: " in line for line in told)
    (chart,) = report.charts
    assert {value for series in chart.series for value in series.values} == {(0,)}
    assert len(report.conclusion) < 2_000 and " more. What follows are the laws" in report.conclusion


def test_the_conclusion_says_where_longest_prefix_first_exists(report):
    for text in ("its default is fcfs", "above 128 waiting requests", "vLLM has no such policy", "here 16 tokens"):
        assert text in report.conclusion


@pytest.mark.parametrize("fields", [
    {"block_size": 7, "page_sizes": (3, 5)}, {"seed": 1, "num_turns": 5}, {"seed": 2, "block_size": 1, "page_sizes": (2,)},
    {"block_size": 784, "turn_tokens": 900, "page_sizes": (1,)}, {"num_twins": 9, "twin_seats": 4, "num_queued": 6},
    {"num_twins": 3, "twin_seats": 8, "repeat_tokens": 321}, {"shared_tokens": 1, "user_tokens": 1, "mixed_tokens": 2},
    {"user_tokens": 300, "turn_tokens": 350}, {"turn_tokens": 448, "block_size": 64, "page_sizes": (64,)},
    {"turn_tokens": 340, "block_size": 170, "page_sizes": (170, 300)},
])  # fmt: skip
def test_other_sizes_are_predicted_as_well(fields):
    report = run_lab(Config(**{**FAST, **fields}))
    assert [one for one in report.measurements if one.agrees is False] == []
    assert report.cache_state == "cold"


def drop_the_cap(monkeypatch):
    def lookup(self, request):
        return self.prefix_cache.match(request, request.num_tokens)

    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "get_computed_blocks", lookup)


def free_heads_first(monkeypatch):
    original = BlockPool.free
    monkeypatch.setattr(
        BlockPool, "free", lambda self, empty, with_content=(): original(self, list(empty)[::-1], list(with_content)[::-1])
    )


def learn_of_twins_at_once(monkeypatch):
    monkeypatch.setattr(radix_cache.RadixPrefixCache, "publish_rule", PublishRule.AT_ALLOCATION)


def look_everything_up(monkeypatch):
    original = HashPrefixCache.match

    def match(self, request, max_tokens):
        for name in request.block_hashes:
            self.find(name)
        return original(self, request, max_tokens)

    monkeypatch.setattr(HashPrefixCache, "match", match)


def evict_part_of_a_leaf(monkeypatch):
    original = RadixTree.evict

    def evict(self, num_tokens):
        for leaf in [one for one in self.evictable_leaves if len(one.tokens) > num_tokens]:
            self._split(leaf, (len(leaf.tokens) - num_tokens) // self.page_size * self.page_size)
            break
        return original(self, num_tokens)

    monkeypatch.setattr(RadixTree, "evict", evict)


def admit_as_they_came(monkeypatch):
    monkeypatch.setattr("engine.scheduler.admission_order", lambda policy, waiting, manager: list(waiting))


BROKEN = [drop_the_cap, free_heads_first, learn_of_twins_at_once, look_everything_up, evict_part_of_a_leaf, admit_as_they_came]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda rule: rule.__name__)
def test_a_broken_engine_does_not_pass(monkeypatch, broken):
    broken(monkeypatch)
    report = run_lab(Config(**FAST))
    assert not report.agrees and report.conclusion.startswith("NOT as predicted")


def test_an_older_rule_for_twins_is_noticed():
    missed = [one for one in run_lab(Config(**FAST), publish_rule="step").measurements if one.agrees is False]
    assert {one.row for one in missed if one.group == HASH} == {"twins at once"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_requests": 1}, "num_requests is 1"), ({"page_sizes": ()}, "page_sizes"),
        ({"block_size": 5_000}, "block_size is 5000"), ({"num_queued": 65}, "num_queued is 65"),
        ({"turn_tokens": 71}, "turn_tokens is 71"), ({"page_sizes": (1, 1)}, "page_sizes is"),
        ({"num_repeats": 20_000}, "num_repeats is 20000"), ({"num_mixed": 20_000}, "num_mixed is 20000"),
        ({"lookup_tokens": (0,)}, "lookup_tokens is"), ({"twin_seats": 0}, "twin_seats is 0"),
    ],
)  # fmt: skip
def test_an_impossible_configuration_is_named(fields, named):
    with pytest.raises(ValueError, match=f"{named}.*accepted"):
        Config(**fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"turn_tokens": 9000}, "turn_tokens is 9000; accepted: at most 8191"),
        ({"shared_tokens": 9000}, "shared_tokens is 9000; accepted: at most 8151"),
        ({"user_tokens": 9000, "turn_tokens": 9100}, "user_tokens is 9000; accepted: at most 7786"),
    ],
)
def test_a_prompt_that_cannot_fit_is_named_by_the_lab_s_field(fields, named):
    with pytest.raises(ConfigError, match=named):
        run_lab(Config(**fields))
