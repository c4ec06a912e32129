"""A sweep varies one number, and tells its rates with equal neighbours together."""

from __future__ import annotations

from labs.scenarios.eviction_series import Cycle
from labs.scenarios.eviction_sweep import EvictionSweep

RATES = {"tails first": [0.99, 0.99, 0.49, 0.0], "heads first": [0.99, 0.99, 0.0, 0.0], "page 1": [0.991, 0.99, 0.0, 0.0]}


def test_working_sets_differ_in_their_prompts_and_pools_in_their_size():
    sets = EvictionSweep.over_working_sets((1, 3), prompt_tokens=97, pool_tokens=448, rounds=2)
    assert sets.cycles == {1: Cycle(1, 2, 97, 448), 3: Cycle(3, 6, 97, 448)} and sets.num_requests == 8
    pools = EvictionSweep.over_pools((448, 1024), prompt_tokens=97, num_prompts=4, rounds=3)
    assert pools.cycles == {448: Cycle(4, 12, 97, 448), 1024: Cycle(4, 12, 97, 1024)} and pools.num_requests == 24
    assert [sets.row.format(3), pools.row.format(1024)] == ["3 in turn", "pool for 1,024"]


def test_orders_that_agree_share_a_line_and_equal_neighbours_a_span():
    sweep = EvictionSweep.over_working_sets((1, 2, 3, 4), 97, 448, 2)
    assert sweep.findings(RATES) == [
        "tails first: hit rate after the first turn 99% at 1–2, 49% at 3, 0% at 4 (prompts in turn)",
        "heads first; page 1: hit rate after the first turn 99% at 1–2, 0% at 3–4 (prompts in turn)",
    ]


def test_the_chart_has_a_line_for_each_order():
    chart = EvictionSweep.over_pools((256, 304, 320, 336), 97, 4, 2).chart(RATES)
    assert [series.name for series in chart.series] == list(RATES)
    assert chart.series[0].points == ((256.0, 0.99), (304.0, 0.99), (320.0, 0.49), (336.0, 0.0))


def test_the_first_turn_of_each_prompt_is_left_out_of_the_rate():
    assert Cycle(num_prompts=2, num_requests=10, prompt_tokens=100, pool_tokens=150).later_rate(400) == 0.5
