"""Summaries of samples: right values, and warnings when they mean little."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.measure import Spread, auc, percentiles, ratio_of_medians, sim_times_note, time_repeats


def test_a_summary_holds_the_median_the_ends_and_the_median_distance():
    spread = Spread.of([4.0, 1.0, 2.0, 10.0, 3.0])
    assert (spread.count, spread.median, spread.minimum, spread.maximum) == (5, 3.0, 1.0, 10.0)
    assert spread.mad == 1.0  # of the distances 1, 2, 1, 7, 0
    assert spread.relative == pytest.approx(1 / 3)


def test_one_slow_run_moves_neither_centre_nor_spread():
    quiet = Spread.of([1.00, 1.01, 1.02, 1.03, 1.04])
    disturbed = Spread.of([1.00, 1.01, 1.02, 1.03, 50.0])
    assert (disturbed.median, disturbed.mad) == (quiet.median, pytest.approx(quiet.mad))
    assert disturbed.maximum == 50.0


@given(samples=st.lists(st.floats(0.001, 1e6), min_size=1, max_size=30), factor=st.sampled_from([2.0, 1024.0]))
def test_the_relative_spread_does_not_depend_on_the_unit(samples, factor):
    scaled = Spread.of([sample * factor for sample in samples])
    assert scaled.relative == pytest.approx(Spread.of(samples).relative)


@pytest.mark.parametrize(
    "samples, warning",
    [
        ([1.0], "few samples (1"),
        ([1.0, 1.0, 1.0, 1.0], "few samples (4"),
        ([1.0, 1.0, 1.0, 1.0, 1.0], ""),
        ([1.0, 1.01, 0.99, 1.02, 0.98], ""),
        ([1.0, 2.0, 0.5, 1.5, 0.6], "unstable"),
    ],
)
def test_the_note_warns_of_few_and_of_scattered_samples_only(samples, warning):
    note = Spread.of(samples).stability_note
    assert note.startswith(warning) and bool(note) == bool(warning)
    assert "\n" not in note


def test_samples_around_zero_have_no_relative_spread():
    assert Spread.of([0.0, 0.0, 1.0]).relative == 0.0


def test_percentiles_interpolate_between_neighbours():
    assert percentiles(range(101), (1, 50, 90, 99)) == {1: 1, 50: 50, 90: 90, 99: 99}
    assert percentiles([1.0, 2.0], (50,)) == {50: 1.5}
    assert percentiles([7.0]) == {50: 7.0, 90: 7.0, 99: 7.0}


def test_a_ratio_of_medians_has_an_interval_around_it_that_its_seed_reproduces():
    slow, fast = [10.0, 11.0, 9.0, 10.5, 9.5], [1.0, 1.1, 0.9, 1.05, 0.95]
    ratio = ratio_of_medians(slow, fast)
    assert ratio.value == 10.0
    assert 9.0 / 1.1 <= ratio.low < 10.0 < ratio.high <= 11.0 / 0.9
    assert ratio_of_medians(slow, fast) == ratio
    assert ratio_of_medians(slow, fast, seed=1) != ratio


def test_a_ratio_of_steady_samples_has_no_width():
    ratio = ratio_of_medians([6.0, 6.0, 6.0], [2.0, 2.0])
    assert (ratio.low, ratio.value, ratio.high) == (3.0, 3.0, 3.0)


def test_repeats_leave_the_warm_up_out():
    now, durations_s = [0.0], iter([9.0, 7.0, 1.0, 2.0, 3.0])

    def run():
        now[0] += next(durations_s)

    assert time_repeats(run, 3, num_warm_ups=2, clock=lambda: now[0]) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Spread.of([]),
        lambda: percentiles([]),
        lambda: percentiles([1.0], (100,)),
        lambda: ratio_of_medians([], [1.0]),
        lambda: ratio_of_medians([1.0], []),
        lambda: ratio_of_medians([1.0], [1.0, 0.0]),
    ],
)
def test_what_cannot_be_summarised_is_refused_with_what_is_accepted(call):
    with pytest.raises(ValueError, match="accepted: "):
        call()


@pytest.mark.parametrize(
    "positives, negatives, area",
    [
        ([3.0, 4.0], [1.0, 2.0], 1.0), ([1.0, 2.0], [3.0, 4.0], 0.0), ([1.0, 1.0], [1.0], 0.5),
        ([1.0, 3.0], [2.0], 0.5), ([2.0, 3.0], [2.0, 1.0], 0.875),
    ],
)  # fmt: skip
def test_the_auc_counts_pairs_and_ties_half(positives, negatives, area):
    assert auc(positives, negatives) == area


def test_an_auc_of_nothing_is_refused():
    with pytest.raises(ValueError, match="samples are empty; accepted"):
        auc([], [1.0])


@given(samples=st.lists(st.integers(0, 9), min_size=1, max_size=20), others=st.lists(st.integers(0, 9), min_size=1, max_size=20))
def test_the_auc_of_the_other_side_is_the_rest(samples, others):
    assert auc(samples, others) == pytest.approx(1 - auc(others, samples))


def test_only_simulated_times_are_called_accounting():
    assert "accounting, not physics" in sim_times_note("sim") and sim_times_note("engine") == ""
