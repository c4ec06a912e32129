"""VaryingText: what the text that two prompts do not share looks like: a clock, an id, a number, JSON in another order.

A guess by its form, and it is called one. It quotes nothing; `Passage` does, for those who ask to see the text.
"""

from __future__ import annotations

import json
import os.path
import re
from dataclasses import dataclass
from typing import Any, Sequence

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
# The first that covers the difference names it: a UUID is hexadecimal, a date is made of numbers.
_FORMS = (
    ("a UUID", re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I)),
    (
        "a date or a time",
        re.compile(
            r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
            r"|\b\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?(?:\s?[ap]m\b)?|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b"
            rf"|\b\d{{1,2}}(?:st|nd|rd|th)?\s{_MONTH}(?:,?\s\d{{4}})?|\b{_MONTH}\s\d{{1,2}}(?:st|nd|rd|th)?\b(?:,?\s\d{{4}})?"
            r"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b1[5-9]\d{8}(?:\d{3}|\d{6})?\b",
            re.I,
        ),
    ),
    ("a hexadecimal id", re.compile(r"\b(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{5,}\b", re.I)),
    ("a number", re.compile(r"[-+]?\d+(?:[.,]\d+)*")),
)
_COVERS, _REACHES, _APART = 2, 1, 0
_WINDOW = 256  # characters looked at on either side of the difference
_SHOWN = 24  # tokens of each part of a passage
_BROKEN = "\N{REPLACEMENT CHARACTER}"  # what a decoder writes for bytes that are no whole character
_CHARACTER_BYTES = 4
_MAX_OPENINGS = 200  # brackets before the difference at which JSON may begin


def looks_like(first: str, second: str) -> str | None:
    """What differs first between two texts, by its form; None when no form fits."""
    if first == second:
        return "the same text in other tokens (generated ids against a tokenised text)"
    at = len(os.path.commonprefix((first, second)))
    if _is_reordered_json(first, second, at):
        return "JSON of equal value in other bytes (order of keys, or spacing)"
    for form, pattern in _FORMS:
        mine, theirs = _touch(pattern, first, at), _touch(pattern, second, at)
        if _COVERS in (mine, theirs) and (_APART not in (mine, theirs) or form != "a number"):
            return form
    spaces = first[at : at + 1].isspace() or second[at : at + 1].isspace()
    same_words = first[at:].lstrip()[:_WINDOW] == second[at:].lstrip()[:_WINDOW]
    return "white space" if spaces and same_words else None


def tools_look_like(first: Sequence[Any] | None, second: Sequence[Any] | None) -> str | None:
    """Whether two lists of tools differ only in order; None when they differ in more, or not at all."""
    if not first or not second:
        return None
    mine, theirs = ([json.dumps(tool, sort_keys=True) for tool in tools] for tools in (first, second))
    if mine == theirs:
        return None if json.dumps(first) == json.dumps(second) else "the same tools with their keys in another order"
    return "the same tools in another order" if sorted(mine) == sorted(theirs) else None


@dataclass(frozen=True)
class Passage:
    """The text around a difference, in three parts. Prompt text: shown only to those who ask."""

    before: str
    differing: str
    after: str


def passage(tokenizer: Any, token_ids: Sequence[int], position: int, num_differing: int) -> Passage:
    """Decode a few tokens around a position: `num_differing` from it on differ; each part holds whole characters."""
    start = _whole_cut(tokenizer, token_ids, position, -1)
    end = _whole_cut(tokenizer, token_ids, position + min(num_differing, _SHOWN), 1)
    first = _whole_cut(tokenizer, token_ids, max(0, start - _SHOWN), -1)
    last = _whole_cut(tokenizer, token_ids, min(len(token_ids), end + _SHOWN), 1)
    return Passage(
        tokenizer.decode(token_ids[first:start]), tokenizer.decode(token_ids[start:end]), tokenizer.decode(token_ids[end:last])
    )


def _whole_cut(tokenizer: Any, token_ids: Sequence[int], cut: int, step: int) -> int:
    """The nearest place, moving by `step`, that cuts no character in two; tokens of byte-level models hold parts of them.

    A character has at most four bytes. Where no near place is clean, the text itself holds broken ones: the cut stays.
    """
    for moved in range(_CHARACTER_BYTES):
        place = cut + step * moved
        if not 0 < place < len(token_ids):
            return max(0, min(place, len(token_ids)))
        before = tokenizer.decode(token_ids[max(0, place - _CHARACTER_BYTES) : place])
        behind = tokenizer.decode(token_ids[place : place + _CHARACTER_BYTES])
        if not before.endswith(_BROKEN) and not behind.startswith(_BROKEN):
            return place
    return cut


def _touch(pattern: re.Pattern[str], text: str, at: int) -> int:
    """How near a match of the pattern comes to a place: over it, up to it (the other text may go on there), or not."""
    start = max(0, at - _WINDOW)
    window, place = text[start : at + _WINDOW], at - start
    nearest = _APART
    for match in pattern.finditer(window):
        if match.start() <= place < match.end():
            return _COVERS
        if match.end() == place:
            nearest = _REACHES
    return nearest


def _is_reordered_json(first: str, second: str, at: int) -> bool:
    """Whether a JSON value around the difference is equal in both, though its bytes are not."""
    decoder = json.JSONDecoder()
    openings = [match.start() for match in re.finditer(r"[{\[]", first[:at])][-_MAX_OPENINGS:]
    for start in reversed(openings):
        try:
            (mine, my_end), (theirs, their_end) = decoder.raw_decode(first, start), decoder.raw_decode(second, start)
        except (ValueError, RecursionError):
            continue
        if my_end > at and their_end > at and mine == theirs:
            return True
    return False
