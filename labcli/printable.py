r"""Printable: texts, records and JSON with nothing in them that a terminal would obey.

A file or a record may come from anybody. What it says is shown, but it does not colour, clear, retitle or turn round the
terminal it is shown in.

    printable      a text or a path: one "�" for each such character
    escaped        a text for one line, where the character itself matters: its escape, \x1b, \n, \u202e
    escaped_json   a JSON document: the same characters as JSON's escapes
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

_Record = TypeVar("_Record")

# DEL and C1; marks, embeddings, overrides and isolates of direction; halves of surrogate pairs.
_HIDDEN = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff"
_OBEYED = re.compile(f"[\x00-\x08\x0b-\x1f{_HIDDEN}]")  # all of C0 but tab and line feed
_NOT_IN_A_LINE = re.compile(f"[\x00-\x1f{_HIDDEN}]")
_NOT_IN_JSON = re.compile(f"[{_HIDDEN}]")


def printable(text: object) -> str:
    """The text (a path, a message, …) with one "�" for each character that a terminal would obey."""
    return _OBEYED.sub("\N{REPLACEMENT CHARACTER}", str(text))


def escaped(text: str) -> str:
    """A text for one line of a terminal."""
    return _NOT_IN_A_LINE.sub(lambda found: repr(found[0])[1:-1], text)


def escaped_json(document: str) -> str:
    """A JSON document with the same characters escaped as JSON does; json.dumps has escaped those below a space."""
    return _NOT_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def printable_record(record: _Record) -> _Record:
    """A record, or any part of one, in which every text is printable; what already is stays the same object."""
    return _walk(record)


def _walk(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value) if _OBEYED.search(value) else value
    if is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for one in fields(value):
            old = getattr(value, one.name)
            new = _walk(old)
            if new is not old:
                changed[one.name] = new
        return replace(value, **changed) if changed else value
    if isinstance(value, dict):
        new = {_walk(key): _walk(one) for key, one in value.items()}
        return new if any(a is not b for pair in zip(new.items(), value.items()) for a, b in zip(*pair)) else value
    if isinstance(value, (list, tuple)):
        new = [_walk(one) for one in value]
        return type(value)(new) if any(a is not b for a, b in zip(new, value)) else value
    return value
