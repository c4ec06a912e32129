"""What a difference looks like: by its form, and not by what both texts share."""

import json

import pytest

from labs.diagnose.varying_text import Passage, looks_like, passage, tools_look_like
from tests.labs.conftest import ByteTokenizer

BEHIND = " You are a helpful assistant. " * 5
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TURNED = {"required": ["city"], "properties": {"city": {"type": "string"}}, "type": "object"}


@pytest.mark.parametrize(
    ("first", "second", "form"),
    [
        ("Now: 2026-11-30 12:30:11." + BEHIND, "Now: 2026-11-30 12:31:45." + BEHIND, "a date or a time"),
        ("Now: 2026-11-30T23:59:59Z" + BEHIND, "Now: 2026-12-01T00:00:00Z" + BEHIND, "a date or a time"),
        ("It is 9:05 am." + BEHIND, "It is 10:05 am." + BEHIND, "a date or a time"),
        ("Today is Monday." + BEHIND, "Today is Tuesday." + BEHIND, "a date or a time"),
        ("30 November 2026" + BEHIND, "30 December 2026" + BEHIND, "a date or a time"),
        ("ts=1764500000" + BEHIND, "ts=1764500317" + BEHIND, "a date or a time"),
        ("2026-11-30" + BEHIND, BEHIND, "a date or a time"),
        ("id 123e4567-e89b-12d3-a456-426614174000" + BEHIND, "id 123e4567-e89b-12d3-a456-426614174fff" + BEHIND, "a UUID"),
        ("cch=a1b2c;" + BEHIND, "cch=9f00d;" + BEHIND, "a hexadecimal id"),
        ("user 17" + BEHIND, "user 1723" + BEHIND, "a number"),
        ("room 1: x" + BEHIND, "room 1, x" + BEHIND, None),
        ("market 5 a" + BEHIND, "market 5 b" + BEHIND, None),
        ("hello world" + BEHIND, "hello  world" + BEHIND, "white space"),
        ("hello world", "hello world\n", "white space"),
        ("hello world" + BEHIND, "hello there" + BEHIND, None),
        (f"Schema: {json.dumps(SCHEMA)}" + BEHIND, f"Schema: {json.dumps(TURNED)}" + BEHIND, "JSON of equal value"),
        (f"[{json.dumps(SCHEMA)}]", f"[{json.dumps(SCHEMA, indent=1)}]", "JSON of equal value"),
        (f"Schema: {json.dumps(SCHEMA)}", f"Schema: {json.dumps({**TURNED, 'required': []})}", None),
        ("the same", "the same", "the same text in other tokens"),
        ("[" * 5_000 + "a", "[" * 5_000 + "b", None),
    ],
)
def test_a_form_is_named_when_it_covers_the_difference(first, second, form):
    for found in (looks_like(first, second), looks_like(second, first)):
        assert found is None if form is None else found.startswith(form)


def test_tools_in_another_order_are_told_from_other_tools():
    one, other = {"name": "a", "parameters": SCHEMA}, {"name": "b", "parameters": SCHEMA}
    assert tools_look_like([one, other], [other, one]) == "the same tools in another order"
    assert tools_look_like([one], [{"parameters": TURNED, "name": "a"}]) == "the same tools with their keys in another order"
    assert [tools_look_like([one], tools) for tools in ([other], [one], None)] == [None, None, None]


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [("🎉", "🎊", ("🎉", "🎊")), ("é", "è", ("é", "è")), ("日", "本", ("日", "本")), ("a", "b", ("a", "b"))],
)
def test_a_passage_holds_whole_characters(mine, theirs, expected):
    front, behind, decoder = "Grüße! 🎉 ", " end of it, 🎊 and more text here", ByteTokenizer()
    ids = [decoder.encode(front + one + behind) for one in (mine, theirs)]
    at = next(place for place, pair in enumerate(zip(*ids)) if pair[0] != pair[1])
    num_differing = len(decoder.encode(front + mine)) - at
    shown = [passage(decoder, one, at, num_differing) for one in ids]
    assert tuple(one.differing for one in shown) == expected
    for one in shown:
        assert "\ufffd" not in one.before + one.differing + one.after
        assert front.endswith(one.before) and behind.startswith(one.after)


def test_bytes_that_are_no_characters_do_not_move_a_passage():
    assert passage(ByteTokenizer(), [0xFF] * 40, 20, 1).differing == "\ufffd"
    assert passage(ByteTokenizer(), [65, 66], 2, 0) == Passage("AB", "", "")
