"""A lab's configuration from what was typed: --quick or --full, then each --set field=value.

A lab's configuration is a frozen dataclass; its annotations say how a value is read:

    num_requests: int                  --set num_requests=10
    block_sizes: tuple[int, ...]       --set block_sizes=8,16      ("" or "()" for none)
    label: str | None                  --set label=none
    greedy: bool                       --set greedy=false
"""

from __future__ import annotations

import types
import typing
from dataclasses import fields, replace
from typing import Any, Sequence

from labcli.fault import UsageFault
from labs.protocol import Lab

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_SCALARS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}


def build_lab_config(lab: Lab, *, quick: bool, full: bool, assignments: Sequence[str]) -> Any:
    """The lab's quick, full or default configuration with the assignments ("field=value") made.

    Raises UsageFault for an unknown field, a value of another type, or one that the configuration refuses.
    """
    if quick and full:
        raise UsageFault("--quick and --full ask for different sizes", "one of them, or neither")
    if quick:
        config = lab.quick
    elif full and lab.full is not None:
        config = lab.full
    else:
        config = lab.config_type()
    types_by_field = settable_fields(lab.config_type)
    values = parse_assignments(lab.config_type, assignments, f"lab {lab.number:02d}")
    try:
        return replace(config, **values)
    except ValueError as error:
        # A dataclass that checks itself names the field and the range; it is the person's value all the same.
        raise UsageFault(str(error).partition("; accepted: ")[0], _accepted_part(error, types_by_field)) from error


def parse_assignments(config_type: type, assignments: Sequence[str], owner: str) -> dict[str, Any]:
    """Values of a dataclass's fields from "field=value" texts; `owner` has them: "lab 04". Raises UsageFault."""
    types_by_field = settable_fields(config_type)
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise UsageFault(f"--set {assignment!r} is no assignment", "--set field=value")
        if name not in types_by_field:
            raise UsageFault(f"{owner} has no field {name!r}", _accepted_fields(types_by_field))
        values[name] = _parse(name, text.strip(), types_by_field[name])
    return values


def describe_type(annotation: Any) -> str:
    """What may be typed for a field, in words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe_type(one) for one in arguments)
    if origin is typing.Literal:
        return " | ".join(str(one) for one in arguments)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return f"{describe_type(arguments[0])}, or several with commas"
    if origin is tuple:
        return ", ".join(describe_type(one) for one in arguments)
    return "nothing: it cannot be set"


def settable_fields(config_type: type) -> dict[str, Any]:
    """The fields of a dataclass that --set changes, with their types."""
    annotations = typing.get_type_hints(config_type)
    return {one.name: annotations[one.name] for one in fields(config_type) if one.init}


def _accepted_fields(types_by_field: dict[str, Any]) -> str:
    return ", ".join(f"{name} ({describe_type(one)})" for name, one in types_by_field.items()) or "no fields"


def _accepted_part(error: ValueError, types_by_field: dict[str, Any]) -> str:
    return str(error).partition("; accepted: ")[2] or _accepted_fields(types_by_field)


def _parse(name: str, text: str, annotation: Any) -> Any:
    try:
        return _read(text, annotation)
    except ValueError:
        raise UsageFault(f"{name} is {text!r}", describe_type(annotation)) from None


def _read(text: str, annotation: Any) -> Any:
    """`text` as a value of the annotated type; ValueError when it is none."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError(text)
        return _BOOLEANS[text.lower()]
    if annotation in (int, float, str):
        return annotation(text)
    if annotation is type(None):
        if text.lower() != "none":
            raise ValueError(text)
        return None
    if origin in (typing.Union, types.UnionType):
        # None first: "none" is also a text.
        for one in sorted(arguments, key=lambda one: one is not type(None)):
            try:
                return _read(text, one)
            except ValueError:
                continue
        raise ValueError(text)
    if origin is typing.Literal:
        return next(one for one in arguments if str(one) == text) if text in map(str, arguments) else _refuse(text)
    if origin is tuple:
        parts = [part.strip() for part in text.strip("()[]").split(",") if part.strip()]
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_read(part, arguments[0]) for part in parts)
        if len(parts) == len(arguments):
            return tuple(_read(part, one) for part, one in zip(parts, arguments))
    return _refuse(text)


def _refuse(text: str) -> Any:
    raise ValueError(text)
