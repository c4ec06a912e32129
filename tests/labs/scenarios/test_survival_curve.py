"""A survival curve tells and draws the pools in which somebody was preempted, and no others."""

from __future__ import annotations

from types import SimpleNamespace

from labs.scenarios.survival_curve import SurvivalCurve, survival_chart


def curve(title: str, **survival: float | None) -> SurvivalCurve:
    return SurvivalCurve.of(title, {int(pool[1:]): SimpleNamespace(survival=share) for pool, share in survival.items()})


def test_a_roomy_pool_is_no_point_of_the_curve():
    assert curve("hash", p1024=None, p256=0.987, p128=0.0).text == "99% at 256, 0% at 128 (pool, in tokens)"
    assert curve("hash", p1024=None).text == ""


def test_a_line_is_drawn_from_the_tightest_pool_up_and_none_where_nobody_was_preempted():
    chart = survival_chart("a title", [curve("hash", p1024=None, p256=0.5, p128=0.0), curve("tree", p256=None)])
    assert [(series.name, series.points) for series in chart.series] == [("hash", ((128.0, 0.0), (256.0, 0.5)))]
