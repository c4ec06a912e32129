"""Today's date and this minute are found in a text, in whatever form; other days' dates are not."""

from datetime import datetime

import pytest

from labs.probe.clock import Clock

NOW = datetime(2026, 11, 30, 8, 47)


@pytest.mark.parametrize(
    "text",
    ["It is 2026-11-30.", "Today: 30.11.2026", "11/30/2026", "Today Date: 30 Nov 2026", "Monday, November 30, 2026", "the 30th of November",
     "2026/11/29", "December 1st, 2026"],
)  # fmt: skip
def test_todays_date_is_found_in_any_form_and_time_zone(text):
    assert Clock.of(text, NOW) == Clock(has_date=True)


@pytest.mark.parametrize(
    "text",
    ["", "Cutting Knowledge Date: December 2023", "Today Date: 26 Jul 2024", "2025-11-30", "30 Nov 2025", "November 30, 2019",
     "version 2026.11.300", "call 12026-11-30", "you may march on"],
)  # fmt: skip
def test_another_days_date_is_none_of_today(text):
    assert Clock.of(text, NOW) == Clock()


@pytest.mark.parametrize("text", ["08:47", "now 09:17:59", "at 3:46 pm", "[18:48]"])
def test_this_minute_is_found_in_any_time_zone(text):
    assert Clock.of(text, NOW) == Clock(has_time=True)


@pytest.mark.parametrize("text", ["open from 9:00 to 18:30", "::47", "ratio 1:470"])
def test_another_time_is_no_clock(text):
    assert Clock.of(text, NOW) == Clock()


def test_seconds_since_1970_are_both():
    assert Clock.of(f"ts={int(NOW.timestamp()) + 40}", NOW).kind == "today's date and the time of day"
    assert Clock.of("id=1234567890", NOW) == Clock()


def test_date_and_time_together():
    assert Clock.of("It is 2026-11-30T08:47:12Z.", NOW) == Clock(True, True)
