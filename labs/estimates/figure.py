"""Figure: one number that a law gives, and how people read it.

    >>> shown(1984, "tokens", of=2000)
    '1,984 of 2,000 tokens'
    >>> shown(36.6e12, "FLOP")
    '36.60 TFLOP'
"""

from __future__ import annotations

from dataclasses import dataclass

_SCALES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_BINARY = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
_TIMES = ((365.25 * 86_400, "years"), (86_400, "days"), (3_600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))


@dataclass(frozen=True)
class Figure:
    """A named number with its unit, and the law's formula with the numbers filled in."""

    name: str  # for programs: "flops_cold"
    label: str  # for people: "arithmetic, cold"
    value: float | int
    unit: str  # "tokens", "blocks", "FLOP", "FLOP/s", "s", "bytes", "ratio" (a percentage), "times", "chance", ...
    law: str
    of: float | int | None = None  # what the value is a part of, in the same unit

    @property
    def shown(self) -> str:
        """The number as people read it."""
        return shown(self.value, self.unit, self.of)


def counted(number: int, noun: str) -> str:
    """'1 token', '2,000 tokens'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shown_rate(per_s: float, nouns: str) -> str:
    """'1 request/s', '20 requests/s'."""
    return f"{per_s:,.10g} {_singular(nouns) if per_s == 1 else nouns}/s"


def shown(value: float | int, unit: str, of: float | int | None = None) -> str:
    """A number with its unit, scaled so that it is short; the larger of value and `of` chooses the scale of both."""
    if unit in ("FLOP", "FLOP/s"):
        largest = max(abs(value), of or 0)
        scale, prefix = next((pair for pair in _SCALES if largest >= pair[0]), _SCALES[-1])
        digits = 2 if unit == "FLOP" else 1
        part = "" if of is None else f" of {_decimal(of / scale, digits)}"
        return f"{_decimal(value / scale, digits)}{part} {prefix}{unit}"
    part = "" if of is None else f" of {of:,}"
    if unit == "s":
        return _shown_time(value)
    if unit == "bytes":
        scale, name = next((pair for pair in _BINARY if value >= pair[0]), _BINARY[-1])
        return f"{value:,.0f} byte{'' if value == 1 else 's'}" if scale == 1 else f"{_decimal(value / scale, 2)} {name}"
    if unit == "ratio":
        return _shown_share(value)
    if unit == "times":
        return f"{_decimal(value, 2)}×"
    if unit == "chance":
        return f"{value:.1e}"
    return f"{_shown_number(value)}{part} {_singular(unit) if (value if of is None else of) == 1 else unit}"


def _singular(unit: str) -> str:
    nouns, slash, per = unit.partition("/")
    return nouns.removesuffix("s") + slash + per


def _shown_number(value: float | int) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else _decimal(value, 1)


def _decimal(number: float, digits: int) -> str:
    """With some digits behind the point; the smallest numbers keep two that say something, the largest an exponent."""
    if abs(number) >= 1e9:
        return f"{number:.1e}"
    if 0 < abs(number) < 10.0 ** (1 - digits):
        return f"{number:.2g}"
    return f"{number:,.{digits}f}"


def _shown_share(value: float) -> str:
    """A percentage that says 100 only when it is: 1,999 of 2,000 are 99.95 %, all but one of 10⁹ are >99.9999 %."""
    if value == 1:
        return "100 %"
    for digits in (1, 2, 4):
        text = _decimal(value * 100, digits)
        if float(text.replace(",", "")) != 100:
            return f"{text} %"
    return ">99.9999 %" if value < 1 else "<100.0001 %"


def _shown_time(seconds: float) -> str:
    scale, unit = next((pair for pair in _TIMES if abs(seconds) >= pair[0]), _TIMES[-1])
    number = seconds / scale
    return f"{_decimal(number, 1)} {unit}" if number < 1e6 else f"{number:.1e} {unit}"
