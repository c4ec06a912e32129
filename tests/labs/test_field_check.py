"""A number out of range is refused by the name of its field."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from labs.field_check import check_numbers


@dataclass(frozen=True)
class Config:
    count: int = 10
    rate: float = 0.5
    sizes: tuple[int, ...] = (1, 16)
    rates: tuple[float, ...] = (1.0, 2.0)
    block_size: int = 16
    names: tuple[str, ...] = ("a", "a")
    full: bool = False
    pool: int | None = None
    seed: int = 0


def check(**fields) -> None:
    check_numbers(replace(Config(), **fields), {"rate": 0.1}, {"count": 100})


def test_numbers_in_range_texts_booleans_and_nothing_pass():
    check()
    check(count=100, rate=1e9, sizes=(3,), seed=0, pool=5)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"count": 0}, "count is 0; accepted: a whole number from 1 to 100"),
        ({"count": 101}, "count is 101; accepted: a whole number from 1 to 100"),
        ({"rate": float("nan")}, "rate is nan; accepted: a number from 0.1"),
        ({"rate": float("inf")}, "rate is inf; accepted: a number from 0.1"),
        ({"rate": float("-inf")}, "rate is -inf; accepted: a number from 0.1"),
        ({"rates": (1.0, float("nan"))}, r"rates is \(1.0, nan\); accepted: numbers from 1"),
        ({"rates": (1.0, float("inf"))}, r"rates is \(1.0, inf\); accepted: numbers from 1"),
        ({"sizes": ()}, r"sizes is \(\); accepted: whole numbers from 1"),
        ({"sizes": (4, 1, 4)}, r"sizes is \(4, 1, 4\); accepted: numbers that differ"),
        ({"block_size": 65_537}, "block_size is 65537; accepted: a whole number from 1 to 65536"),
        ({"seed": -1}, "seed is -1; accepted: a whole number from 0"),
    ],
)
def test_others_are_refused_by_name(fields, named):
    with pytest.raises(ValueError, match=named):
        check(**fields)
