"""Typed number: a number as people write it on a command line, read exactly, or refused in one line.

    2000   2,000   2_000   2e3      one whole number; separators stand between groups of three digits
    0.45   4.5e-1   .45             where a share or a rate is asked for

`1,5` is none: it would be 15 to some and 1.5 to others. Digits are those from 0 to 9.
"""

from __future__ import annotations

import re
from decimal import Decimal

from labcli.fault import UsageFault

_GROUPS = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:_[0-9]{3})+|[0-9]+"
NUMBER = rf"(?:(?:{_GROUPS})(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{{1,4}})?"
_SIGNED = re.compile(rf"[-+]?{NUMBER}")
_MOST_CHARACTERS = 400  # longer, it is no number that a person typed


def read_whole(option: str, text: str, low: int, high: float, why: str = "") -> int:
    """A whole number in [low, high]. Raises UsageFault that names the option, what was typed, and what is accepted."""
    value = read_decimal(text)
    if value is None or not low <= value <= Decimal(high) or value != value.to_integral_value():
        raise UsageFault(f"{option} is {_typed(text, value)}", f"a whole number from {low} to {_bound(high)}{why}{_forms(value)}")
    return int(value)


def read_number(option: str, text: str, low: float, high: float, what: str = "") -> float:
    """A number in [low, high]. Raises UsageFault as read_whole does."""
    value = read_decimal(text)
    if value is None or not low <= float(value) <= high:
        raise UsageFault(f"{option} is {_typed(text, value)}", f"a number from {_bound(low)} to {_bound(high)}{what}")
    return float(value)


def read_decimal(text: str) -> Decimal | None:
    """The exact number, or None when the text is none."""
    text = text.strip()
    if len(text) > _MOST_CHARACTERS or not _SIGNED.fullmatch(text):
        return None
    return Decimal(re.sub("[,_]", "", text))


def _typed(text: str, value: Decimal | None) -> str:
    shown = text.strip() if value is not None else repr(text)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def _forms(value: Decimal | None) -> str:
    """How such a number may be written, for those who wrote none."""
    return "" if value is not None else ", such as 2000, 2,000 or 2e3"


def _bound(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else re.sub(r"e(-?)[+]?0?", r"e\1", f"{bound:g}")
