"""Comparison: one operation or step of a scenario, what was expected of it and what we did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ABSENT = object()


@dataclass(frozen=True)
class Comparison:
    """Expected and ours have the same shape where we are exact."""

    where: str  # "operation 12 (allocate)", "step 3", "the end"
    expected: Any
    ours: Any

    @property
    def differs(self) -> bool:
        return self.expected != self.ours

    @property
    def first_difference(self) -> str:
        """Where in the value the two part, and how: "hit: expected 16, ours 32"; empty when they do not."""
        found = _first_difference(self.expected, self.ours, "")
        if found is None:
            return ""
        path, expected, ours = found
        return f"{path or 'result'}: expected {_shown(expected)}, ours {_shown(ours)}"


def _first_difference(expected: Any, ours: Any, path: str) -> tuple[str, Any, Any] | None:
    if isinstance(expected, dict) and isinstance(ours, dict):
        for key in [*expected, *(key for key in ours if key not in expected)]:
            found = _first_difference(expected.get(key, _ABSENT), ours.get(key, _ABSENT), f"{path}.{key}" if path else str(key))
            if found is not None:
                return found
        return None
    if isinstance(expected, list) and isinstance(ours, list):
        for index, (one, other) in enumerate(zip(expected, ours)):
            found = _first_difference(one, other, f"{path}[{index}]")
            if found is not None:
                return found
        return None if len(expected) == len(ours) else (f"{path}, length", len(expected), len(ours))
    return None if expected == ours else (path, expected, ours)


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
