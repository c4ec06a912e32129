"""Law: a function that returns a predicted number, with the formula that explains it."""

from __future__ import annotations

import inspect
from typing import Any, Callable, NamedTuple


class Predicted(NamedTuple):
    """A law's value and its formula with the numbers filled in; the fields of a Prediction, in its order."""

    value: float | int
    law: str


def law(formula: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function as a law; `formula` shows its parameters as {name} or {name:format}."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.formula = formula  # type: ignore[attr-defined]
        return function

    return mark


def predict(law_function: Callable[..., Any], *args: Any, **kwargs: Any) -> Predicted:
    """The value of a law and the text that explains it. Raises TypeError for a function that is not a law."""
    formula = getattr(law_function, "formula", None)
    if formula is None:
        raise TypeError(f"{law_function.__name__} is not marked as a law")
    bound = inspect.signature(law_function).bind(*args, **kwargs)
    bound.apply_defaults()
    value = law_function(*args, **kwargs)
    shown = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return Predicted(value, f"{formula.format(**bound.arguments)} = {shown}")


def check(accepted: bool, field: str, value: object, range_text: str) -> None:
    """Raises ValueError, naming the parameter and what it may be, unless `accepted`."""
    if not accepted:
        raise ValueError(f"{field} is {value!r}; accepted: {range_text}")
