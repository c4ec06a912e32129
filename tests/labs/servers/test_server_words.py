"""Of a server's own words, what a person may see."""

from __future__ import annotations

import json

import pytest

from labs.servers.server_words import MAX_MESSAGE, cleaned, message_in, texts_in

PROMPT = 'Dear "Ms Ö", your appointment is on Monday,\nat nine. Bring the letter of 3 May with you.'
SALT = "tenant-7"


@pytest.mark.parametrize(
    "spelled",
    [
        PROMPT,
        json.dumps(PROMPT),
        json.dumps(PROMPT, ensure_ascii=False),
        json.dumps({"prompt": PROMPT}),
        PROMPT[:40] + "...",
        PROMPT[:17],
    ],
)
def test_a_quoted_text_is_cut_out_however_it_is_spelled_and_cut_short(spelled):
    line = cleaned(f"cannot serve {spelled} with {SALT}: too long", [PROMPT, SALT])
    assert line.startswith("cannot serve ") and line.endswith("with …: too long")
    for part in ("Dear", "appointment", "Monday", "letter", SALT):
        assert part not in line


def test_token_ids_are_cut_out():
    assert cleaned("ids [5, 17,902 , 33] are wrong", []) == "ids […] are wrong"


def test_a_long_page_is_one_short_line():
    for page in ("1" * 5_000_000, "1, " * 2_000_000, (PROMPT[:16] + " ") * 200_000, "\n" * 5_000_000):
        line = cleaned(page, [PROMPT])
        assert len(line) <= MAX_MESSAGE and "\n" not in line


def test_texts_of_a_body_are_all_but_names():
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        "prompt": [1, 2],
        "stop": ["a"],
    }
    assert sorted(texts_in(body)) == ["a", "hello"]


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "m"}},
        {"error": "m"},
        {"object": "error", "message": "m"},
        {"detail": "m"},
        {"error": {"message": 7}, "detail": "m"},
    ],
)
def test_a_message_is_found_in_every_servers_shape(body):
    assert message_in(body) == "m"
