"""What a terminal would obey is shown as its escape; all other text stays as it is."""

import json

import pytest

from labcli.render.visible_text import visible, visible_json

OBEYED = [chr(code) for one in ((0, 0x20), (0x7F, 0xA0), (0x202A, 0x202F), (0x2066, 0x206A)) for code in range(*one)]


@pytest.mark.parametrize("character", [*OBEYED, "\u200e", "\u200f", "\u061c", "\u2028", "\u2029", "\udc80"], ids=ascii)
def test_an_obeyed_character_is_escaped_in_text_and_in_json(character):
    shown = visible(f"a{character}b")
    assert shown.isprintable() and shown.startswith("a\\") and shown.endswith("b")
    document = visible_json(json.dumps([f"a{character}b"], ensure_ascii=False, indent=2))
    assert character == "\n" or character not in document
    assert json.loads(document) == [f"a{character}b"]
    document.encode()


def test_letters_of_any_script_and_emoji_stay():
    text = "Grüße, 日本語, مرحبا, שלום, 👩\u200d👩\u200d👧 – “quoted”"
    assert visible(text) == text and visible_json(text) == text
