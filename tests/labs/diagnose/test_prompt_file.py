"""Prompts from files: the three forms, and what holds none."""

import json

import pytest

from labs.diagnose.prompt_file import PromptFileError, read_prompt_file

MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    "name, content, kind, value",
    [
        ("p", "Hello there", "text", "Hello there"),
        ("p.txt", "[1, 2, 3]", "text", "[1, 2, 3]"),
        ("p.md", "{not json", "text", "{not json"),
        ("p", '{"some": "object"}', "text", '{"some": "object"}'),
        ("p.json", json.dumps(MESSAGES), "messages", MESSAGES),
        ("p.json", json.dumps({"model": "m", "messages": MESSAGES}), "messages", MESSAGES),
        ("p.json", "[1, 2, 3]", "token ids", [1, 2, 3]),
        ("p", '{"prompt_token_ids": [4, 5]}', "token ids", [4, 5]),
        ("p.json", '{"prompt": "Hello"}', "text", "Hello"),
        ("p", "[" * 200_000, "text", "[" * 200_000),
        ("p.json", "\ufeff[1, 2, 3]", "token ids", [1, 2, 3]),
        ("p", "\ufeffhello", "text", "hello"),
        ("p.json", '[{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]', "messages", MESSAGES),
        ("p.json", '{"prompt": [7]}', "token ids", [7]),
    ],
)
def test_a_file_is_read_by_its_form(tmp_path, name, content, kind, value):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    prompt = read_prompt_file(path)
    assert prompt.kind == kind
    assert value in (prompt.text, prompt.messages, prompt.token_ids)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("p.txt", "  \n", "is empty"),
        ("p.json", "{", "is not JSON"),
        ("p.json", '{"a": 1}', "JSON of another shape"),
        ("p.json", "[]", "JSON of another shape"),
        ("p.json", "[1, 2.5]", "JSON of another shape"),
        ("p.json", "[1, true]", "JSON of another shape"),
        ("p.json", '[{"role": "user"}]', "JSON of another shape"),
        ("p.json", "[1, -2]", "token id out of range at position 1; accepted: 0 to 2147483647"),
        ("p.json", "[" * 200_000, "is not JSON"),
        ("p.json", "[1" + "0" * 5_000 + "]", "is not JSON"),
        ("p.json", '"a text"', "JSON of another shape"),
        ("p.json", '{"messages": "a text"}', "JSON of another shape"),
        ("p.json", '{"messages": [1, 2]}', "JSON of another shape"),
        ("p.json", '[{"role": "user", "content": {"a": 1}}]', "message 0 has a role or a content that is no text"),
        ("p.json", '[{"role": "user", "content": [{"type": "image_url"}]}]', "message 0 has a role or a content that is no text"),
        ("p.json", '{"prompt": "\\ud800"}', "half a character"),
        ("p.json", f"[{2**31}]", "at position 0"),
    ],
)
def test_what_holds_no_prompt_is_refused_by_the_files_name(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(PromptFileError, match=message) as caught:
        read_prompt_file(path)
    assert name in str(caught.value) and "accepted: " in str(caught.value)


def test_bytes_and_missing_files_are_refused(tmp_path):
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    for path, message in ((tmp_path / "b", "not UTF-8"), (tmp_path / "none", "No such file"), (tmp_path, "cannot be read")):
        with pytest.raises(PromptFileError, match=message):
            read_prompt_file(path)


def test_a_prompt_is_not_shown(tmp_path):
    (tmp_path / "p.txt").write_text("my secret")
    assert "secret" not in repr(read_prompt_file(tmp_path / "p.txt"))
