"""Clock: whether a text holds today's date, or this minute. Of the text itself nothing is kept.

    2026-11-30    30.11.2026    11/30/2026    30 Nov 2026    November 30    1796025600    ▶ a date that is today's
    08:15    08:15:42                                                                     ▶ a time whose minute is this one's

A date of another day stands in some chat templates for good, and changes nothing. Time zones differ by whole half hours, so
of a time only the minutes past the half hour are compared; of a date one day more or less is today's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Iterator

MINUTES_APART = 2  # that a server's clock may differ from ours, with what the request took
HALF_HOUR = 30  # minutes
_TIME = re.compile(r"(?<![\d:.])\d{1,2}:([0-5]\d)(?::[0-5]\d)?(?![\d:])")
_UNIX_S = re.compile(r"(?<!\d)\d{10}(?!\d)")


@dataclass(frozen=True)
class Clock:
    """What a text tells of now."""

    has_date: bool = False
    has_time: bool = False

    @classmethod
    def of(cls, text: str, now: datetime) -> Clock:
        """What it tells of `now`, in any time zone."""
        days = [now + timedelta(days=more) for more in (-1, 0, 1)]
        has_unix = any(abs(int(found) - now.timestamp()) < 86_400 for found in _UNIX_S.findall(text))
        has_date = any(re.search(form, text, re.IGNORECASE) for day in days for form in _forms(day))
        apart = [abs(int(minute) - now.minute) % HALF_HOUR for minute in _TIME.findall(text)]
        has_time = any(min(one, HALF_HOUR - one) <= MINUTES_APART for one in apart)
        return cls(has_date or has_unix, has_time or has_unix)

    @property
    def kind(self) -> str:
        """In words; empty for none."""
        return " and ".join((*(["today's date"] if self.has_date else []), *(["the time of day"] if self.has_time else [])))


def _forms(day: datetime) -> Iterator[str]:
    """Patterns of one day's date."""
    year, month, number = day.year, f"0?{day.month}", f"0?{day.day}"
    name, nth = f"{_MONTHS[day.month - 1]}[a-z]*[.,]?", f"{number}(?:st|nd|rd|th)?"
    yield rf"(?<!\d){year}(?P<apart>[-/.]){month}(?P=apart){number}(?!\d)"
    yield rf"(?<!\d){number}(?P<apart>[-/.]) ?{month}(?P=apart) ?{year}(?!\d)"
    yield rf"(?<!\d){month}/{number}/{year}(?!\d)"
    yield rf"(?<!\d){nth}[. ]+(?:of )?{name}(?! *(?!{year})\d{{4}})"
    yield rf"\b{name} {nth}(?!\d)(?!,? *(?!{year})\d{{4}})"


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")  # in English, whatever the locale
