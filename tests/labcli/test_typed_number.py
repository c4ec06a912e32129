"""Numbers as people type them: read exactly, or refused by option, value and what is accepted."""

from decimal import Decimal

import pytest

from labcli.fault import UsageFault
from labcli.typed_number import read_decimal, read_number, read_whole


@pytest.mark.parametrize(
    "text, value",
    [
        ("2000", 2000), (" 2,000 ", 2000), ("1_234_567", 1_234_567), ("2e3", 2000), ("1.5e3", 1500), ("7.", 7), ("-3", -3),
        ("0.45", Decimal("0.45")), (".45", Decimal("0.45")), ("4.5e-1", Decimal("0.45")), ("1,234.5", Decimal("1234.5")),
    ],
)  # fmt: skip
def test_a_number_is_read_exactly(text, value):
    assert read_decimal(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ".", "e3", "1,5", "1,2345", "12,34,567", "1_0", "1,000_000", "1__000", "1 000", "0x10", "nan", "inf", "١٠٠",
        "２", "1e", "1e12345", "9" * 500,
    ],
)  # fmt: skip
def test_what_is_no_number_or_two_readings_is_none(text):
    assert read_decimal(text) is None


@pytest.mark.parametrize(
    "text, shown", [("0", "0"), ("1.5", "1.5"), ("101", "101"), ("x", "'x'"), ("-1", "-1"), ("1e9999", "1e9999")]
)
def test_a_whole_number_outside_its_range_is_refused_by_name(text, shown):
    with pytest.raises(UsageFault, match=rf"^--n is {shown}; accepted: a whole number from 1 to 100, the most"):
        read_whole("--n", text, 1, 100, ", the most")


def test_bounds_are_part_of_the_range():
    assert (read_whole("--n", "1", 1, 100), read_whole("--n", "1e2", 1, 100)) == (1, 100)
    assert read_whole("--n", "1e100", 1, 1e100) == 10**100
    assert (read_number("--x", "1e-6", 1e-6, 1), read_number("--x", "1", 1e-6, 1)) == (1e-6, 1.0)
    for text in ("0.9e-6", "1.01", "nan"):
        with pytest.raises(UsageFault, match="^--x is .*; accepted: a number from 1e-6 to 1, a share"):
            read_number("--x", text, 1e-6, 1, ", a share")


def test_a_refusal_stays_short():
    with pytest.raises(UsageFault) as refused:
        read_whole("--n", "y" * 10_000, 1, 2)
    assert len(str(refused.value)) < 200
