"""Rates over counters: of the latest requests, in whole readings."""

from engine.metrics import PrefixCacheStats, RecentHitRate


def reading(requests, queries, hits, **more):
    return PrefixCacheStats(requests=requests, queries=queries, hits=hits, **more)


def test_the_recent_hit_rate_is_that_of_the_latest_requests_in_whole_readings():
    recent = RecentHitRate(max_requests=5)
    assert recent.is_empty and recent.hit_rate == 0.0
    recent.observe(reading(1, 20, 9))
    assert recent.hit_rate == 0.45
    recent.observe(reading(4, 80, 16))
    assert recent.hit_rate == 0.25
    recent.observe(reading(1, 20, 4))  # six requests: the first reading leaves
    assert recent.hit_rate == 0.2
    recent.observe(reading(100, 1_000, 500))  # larger than the window, and still one reading
    assert recent.hit_rate == 0.5 and not recent.is_empty


def test_empty_readings_are_ignored_and_a_reset_starts_anew():
    recent = RecentHitRate(max_requests=5)
    recent.observe(reading(5, 100, 30))
    for _ in range(10):
        recent.observe(reading(0, 0, 0, preempted_requests=3, preempted_queries=90, preempted_hits=90))
    assert recent.hit_rate == 0.3
    recent.observe(reading(1, 10, 9, reset=True))
    assert recent.hit_rate == 0.9
    recent.observe(reading(0, 0, 0, reset=True))
    assert recent.is_empty and recent.hit_rate == 0.0
