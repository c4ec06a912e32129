"""Lab 07 measures what vLLM's order of eviction, heads first and whole leaves keep, and notices an engine with another order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kvcache.block_pool import BlockPool
from engine.kvcache.radix_tree import RadixTree
from labs.lab_07_eviction import LAB, Config
from labs.protocol import LabReport
from labs.scenarios import empty_pools
from labs.scenarios.eviction_series import Cycle, orders_of
from labs.targets.in_process import InProcessTarget
from labs.targets.open_target import open_target_factory
from tests.labs.fake_session import FakeSession

HASH, HEADS_FIRST = "hash cache, block 16", "hash cache, block 16, heads first"
PAGE_1, PAGE_16 = "radix cache, page 1", "radix cache, page 16"
SMALL = LAB.quick


def run_lab(config: Config) -> LabReport:
    return LAB.run(FakeSession(), config)


@pytest.fixture(scope="module")
def report() -> LabReport:
    return run_lab(Config())


def measured(report: LabReport, group: str, row: str) -> dict[str, tuple]:
    return {one.name: one.samples for one in report.measurements if one.group.startswith(group) and one.row == row}


def test_two_prompts_in_turn_find_53_3_percent_where_tails_die_first(report):
    found = measured(report, "A and B in turn", HASH)
    assert (found["first"], found["later"]) == ((0, 0), (1184,) * 18)
    assert (found["total"], found["queries"]) == ((21_312,), (40_020,))
    assert f"{21_312 / 40_020:.1%}" == "53.3%" and any("(53.3%)" in line for line in report.findings)


@pytest.mark.parametrize("order", [HEADS_FIRST, PAGE_1, PAGE_16])
def test_with_the_same_memory_other_orders_find_nothing(report, order):
    found = measured(report, "A and B in turn", order)
    assert (found["total"], found["queries"]) == ((0,), (40_020,))


@pytest.mark.parametrize(
    ("column", "hits"),
    [
        ("tails_first", [192, 384, 576, 768, 480, 0, 0, 0]),
        ("heads_first", [192, 384, 576, 768, 0, 0, 0, 0]),
        ("page_1", [192, 384, 576, 768, 0, 0, 0, 0]),
        ("page_16", [192, 384, 576, 768, 0, 0, 0, 0]),
    ],
)
def test_one_prompt_too_many_costs_a_part_or_everything(report, column, hits):
    rows = [f"{count} in turn" for count in range(1, 9)]
    assert [measured(report, "More prompts", row)[column][0] for row in rows] == hits


def test_hits_fade_over_one_prompt_s_length_or_end_at_once(report):
    rows = [f"pool for {pool}" for pool in (304, 320, 336, 352, 368, 384, 400)]
    found = [measured(report, "Pools", row) for row in rows]
    assert [one["tails_first"][0] for one in found] == [0, 128, 256, 384, 512, 640, 768]
    assert [one["page_16"][0] for one in found] == [one["heads_first"][0] for one in found] == [0] * 6 + [768]


def test_only_tails_die_in_the_right_order(report):
    group = "Block maps"
    assert measured(report, group, HASH) == {"total": (640,), "evicted": (45,), "first_evicted": (0,)}
    assert measured(report, group, HEADS_FIRST)["first_evicted"] == measured(report, group, PAGE_16)["first_evicted"] == (9,)


def test_the_block_map_shows_who_holds_what_and_what_dies(report):
    maps = {chart.title.partition(":")[0]: chart.series[0] for chart in report.charts if chart.kind == "block_map"}
    assert maps[HASH].rows[:3] == ("1 A", "2 B", "3 A")
    # Ten full blocks and a partial one of sixteen; then B takes what was never used and five of A's tail.
    assert maps[HASH].cells[:3] == ("AAAAAAAAAAa.....", "cccccxxxxxAAAAAA", "AAAAAAxxxxcccccx")
    assert maps[HEADS_FIRST].cells[1] == "xxxxxcccccAAAAAA"
    assert maps[PAGE_16].cells[1] == "xxxxxxxxxxa....."


def test_the_charts_carry_the_cliff(report):
    lines = [chart for chart in report.charts if chart.kind == "lines"]
    assert len(lines) == 2 and all(len(chart.series) == 4 for chart in lines)
    fading = {series.name: [round(y, 2) for _, y in series.points] for series in lines[0].series}
    assert fading[HASH] == [0.99] * 4 + [0.49, 0, 0, 0] and fading[PAGE_1] == [0.99] * 4 + [0] * 4


def test_every_prediction_is_met_and_the_cache_was_proven_cold(report):
    assert report.agrees and report.cache_state == "cold"
    assert sum(one.predicted is not None for one in report.measurements) > 80


@pytest.mark.parametrize("block_size", [1, 7, 32])
def test_the_laws_hold_for_blocks_of_any_size(block_size):
    config = Config(
        prompt_tokens=201, pool_tokens=330, num_requests=9, sweep_prompt_tokens=98, working_sets=(3, 4, 5), rounds=2,
        sweep_pools=(330, 390, 460), map_requests=4, block_size=block_size, page_sizes=(3,),
    )  # fmt: skip
    report = run_lab(config)
    assert report.agrees and report.cache_state == "cold"


def test_a_tree_filled_to_the_last_page_is_left_to_the_model():
    orders = {order.title: order for order in orders_of(16, (1, 16))}
    full_to_the_last_page = Cycle(num_prompts=4, num_requests=12, prompt_tokens=96, pool_tokens=384)
    assert full_to_the_last_page.total(orders[PAGE_1]) is None
    assert full_to_the_last_page.total(orders[HASH]).value == 8 * 80
    target = FakeSession().open_target(prefix_cache="radix", page_size=16, num_gpu_blocks=384 // 16 + 1)
    prompts = {letter: [ord(letter), *range(95)] for letter in "ABCD"}
    found = [target.complete(prompts[letter]).num_cached_tokens for letter in full_to_the_last_page.letters]
    assert found == [served.hits for served in full_to_the_last_page.served(orders[PAGE_16])]


def free_heads_first(monkeypatch):
    original = BlockPool.free
    monkeypatch.setattr(
        BlockPool, "free", lambda self, empty, content=(): original(self, list(empty)[::-1], list(content)[::-1])
    )


def hand_out_named_blocks_first(monkeypatch):
    def free(self, empty, with_content=()):
        self.free_queue.append_n(self._release(empty))
        self.free_queue.prepend_n(self._release(with_content))

    monkeypatch.setattr(BlockPool, "free", free)


def evict_the_newest_leaf(monkeypatch):
    original = RadixTree.__init__
    monkeypatch.setattr(RadixTree, "__init__", lambda self, size, policy, **fields: original(self, size, "mru", **fields))


@pytest.mark.parametrize(
    "broken", [free_heads_first, hand_out_named_blocks_first, evict_the_newest_leaf], ids=lambda rule: rule.__name__
)
def test_an_engine_with_another_order_does_not_pass(monkeypatch, broken):
    broken(monkeypatch)
    report = run_lab(SMALL)
    assert not report.agrees and "NOT as predicted" in report.conclusion


def test_a_pool_that_cannot_be_emptied_is_told_and_does_not_stop_the_lab(monkeypatch):
    """The canary stays, and is evicted among the prompts' blocks."""
    monkeypatch.setattr(InProcessTarget, "reset", lambda self: False)
    report = run_lab(SMALL)
    assert report.cache_state == "uncontrolled" and report.charts


def test_a_canary_that_never_was_warm_is_reset_away_all_the_same(monkeypatch):
    """Else it would be in the way of everything that the lab counts."""
    monkeypatch.setattr(empty_pools, "prove_cold", lambda session, target, canary: bool(target.complete(canary)) and False)
    report = run_lab(SMALL)
    assert report.cache_state == "uncontrolled" and report.agrees


SIZES = [
    {"block_size": 64}, {"map_pool_tokens": 320}, {"map_prompt_tokens": 128},
    *({**vars(SMALL), "map_requests": 10, "map_prompt_tokens": tokens, "map_pool_tokens": pool}
      for tokens, pool in [(97, 192), (96, 192), (112, 256), (65, 128)]),
]  # fmt: skip


@pytest.mark.parametrize("fields", SIZES, ids=lambda fields: str([*fields.values()][-4:]))
def test_a_block_that_is_filled_anew_with_what_it_held_counts_as_evicted_on_both_sides(fields):
    assert run_lab(Config(**fields)).agrees


def test_where_both_prompts_fit_nothing_is_said_to_die():
    report = run_lab(replace(SMALL, pool_tokens=400, map_pool_tokens=400))
    assert report.agrees and "both fit" in report.conclusion and "evicts tails" not in report.conclusion
    maps = [chart.title for chart in report.charts if chart.kind == "block_map"]
    assert len(maps) == 3 and all(title.endswith(": nothing dies") for title in maps)
    assert all("nothing need die" in line for line in report.findings[:3])


def test_a_pool_of_one_prompt_s_size_has_no_part_to_spare():
    report = run_lab(replace(SMALL, pool_tokens=113, map_pool_tokens=113))
    assert report.agrees and not any("a part would have fitted" in line for line in report.findings)
    assert any(chart.title == f"{HASH}: nothing is found again" for chart in report.charts)


def test_a_finding_says_when_the_hits_are_not_those_of_the_sizes(monkeypatch):
    free_heads_first(monkeypatch)
    assert "0 of 582 tokens found (0.0%), NOT the 192 that follow from the sizes" in run_lab(SMALL).findings[0]


def test_what_a_real_model_is_spared_is_said():
    session = FakeSession(open_target_factory("engine", EngineConfig(model="synthetic:tiny", device="cpu")))
    short = replace(SMALL, short_prompt_tokens=65, short_pool_tokens=112)
    report = LAB.run(session, short)
    assert any("have 65 tokens and a pool for 112 with all but" in line and "--full" in line for line in report.findings)
    assert not any("physics" in line for line in report.findings) and any("physics" in line for line in run_lab(SMALL).findings)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"page_sizes": (1, 1)}, r"page_sizes is \(1, 1\); accepted: numbers that differ"),
        ({"pool_tokens": 2001}, "pool_tokens is 2001; accepted: whole numbers from 2017"),
        ({"sweep_pools": (448, 100)}, r"sweep_pools is \(448, 100\); accepted: whole numbers from 113"),
        ({"prompt_tokens": 16}, "prompt_tokens is 16; accepted: a whole number above 16"),
        ({"working_sets": (2, 27)}, r"working_sets is \(2, 27\); accepted: whole numbers from 1 to 26"),
        ({"working_sets": ()}, r"working_sets is \(\); accepted"),
        ({"num_requests": 2}, "num_requests is 2; accepted: a whole number from 3"),
        ({"map_requests": 25}, "map_requests is 25; accepted: a whole number from 3 to 24"),
        ({"page_sizes": (1, 0)}, r"page_sizes is \(1, 0\); accepted"),
    ],
)
def test_an_impossible_configuration_is_named(fields, named):
    with pytest.raises(ValueError, match=named):
        Config(**fields)


def test_a_prompt_longer_than_the_model_is_named():
    with pytest.raises(ConfigError, match="prompt_tokens is 9000; accepted: at most 8191 with this model"):
        run_lab(Config(prompt_tokens=9000, pool_tokens=12_000))
