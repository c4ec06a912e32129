"""Field check: a lab's configuration refuses a number out of range by the field's name."""

from __future__ import annotations

import math
from typing import Any

from labs.caches import MAX_UNIT

_UNITS = ("block_size", "page_size", "block_sizes", "page_sizes")


def check_numbers(config: Any, least: dict[str, float] | None = None, most: dict[str, float] | None = None) -> None:
    """Check every number of a dataclass, also those in tuples; call it in __post_init__.

    least, most  by field; without an entry at least 1 (0 for seed), and block and page sizes at most MAX_UNIT

    None, texts and booleans pass; an empty tuple, a number twice in one, nan and infinity do not. Raises ValueError: "field
    is VALUE; accepted: …".
    """
    for name, value in vars(config).items():
        low = (least or {}).get(name, 0 if name == "seed" else 1)
        high = (most or {}).get(name, MAX_UNIT if name in _UNITS else None)
        numbers = value if isinstance(value, tuple) else (value,)
        numbers = [one for one in numbers if isinstance(one, (int, float)) and not isinstance(one, bool)]
        empty = isinstance(value, tuple) and not value
        if empty or not all(math.isfinite(one) and low <= one and (high is None or one <= high) for one in numbers):
            kind = "a number" if any(isinstance(one, float) for one in (*numbers, low)) else "a whole number"
            many = kind.removeprefix("a ") + "s" if isinstance(value, tuple) else kind
            span = f"from {low} to {high}" if high is not None else f"from {low}"
            raise ValueError(f"{name} is {value}; accepted: {many} {span}")
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"{name} is {value}; accepted: numbers that differ")
