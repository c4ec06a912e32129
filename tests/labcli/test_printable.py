"""Whatever a terminal would obey is replaced, in every text of a record, and nothing else is touched."""

import json
from dataclasses import replace

import pytest

from labcli.printable import escaped, escaped_json, printable, printable_record

OBEYED = [chr(code) for one in ((0, 0x20), (0x7F, 0xA0), (0x202A, 0x202F), (0x2066, 0x206A)) for code in range(*one)]


@pytest.mark.parametrize("obeyed", ["\x00", "\x07", "\x1b", "\r", "\x7f", "\x9b", "\u200f", "\u202e", "\u2066", "\ud800"])
def test_each_sign_that_a_terminal_obeys_becomes_one_replacement(obeyed):
    assert printable(f"a{obeyed}b") == "a\ufffdb"


def test_words_in_any_script_stay():
    text = "⌊2,000/16⌋·16 ✓ naïve 前缀缓存 קידומת 🙂\n\tindented"
    assert printable(text) == text


def test_every_text_of_a_record_is_reached_and_a_clean_record_is_the_same_object(record):
    assert printable_record(record) is record
    hostile = replace(record, lab_config={"\x1b": ["\x1b", {"k": "\x1b"}]}, findings=("\x1b",))
    hostile = replace(hostile, measurements=(replace(record.measurements[0], note="\x1b"),))
    shown = printable_record(hostile)
    assert shown.lab_config == {"\ufffd": ["\ufffd", {"k": "\ufffd"}]}
    assert (shown.findings, shown.measurements[0].note) == (("\ufffd",), "\ufffd")
    assert "\x1b" not in repr(shown) and "\\x1b" not in repr(shown)


@pytest.mark.parametrize("character", [*OBEYED, "\u200e", "\u200f", "\u061c", "\u2028", "\u2029", "\udc80"], ids=ascii)
def test_an_obeyed_character_is_escaped_in_text_and_in_json(character):
    shown = escaped(f"a{character}b")
    assert shown.isprintable() and shown.startswith("a\\") and shown.endswith("b")
    document = escaped_json(json.dumps([f"a{character}b"], ensure_ascii=False, indent=2))
    assert character == "\n" or character not in document
    assert json.loads(document) == [f"a{character}b"]
    document.encode()


def test_letters_of_any_script_and_emoji_are_not_escaped():
    text = "Grüße, 日本語, مرحبا, שלום, 👩\u200d👩\u200d👧 – “quoted”"
    assert escaped(text) == text and escaped_json(text) == text
