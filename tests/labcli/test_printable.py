"""Whatever a terminal would obey is replaced, in every text of a record, and nothing else is touched."""

from dataclasses import replace

import pytest

from labcli.printable import printable, printable_record


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
