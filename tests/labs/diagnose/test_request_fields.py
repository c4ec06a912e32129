"""What a request says beside its prompt: read, kept out of sight, or refused by name."""

import json

import pytest

from engine.kvcache.cache_identity import LoRA, MultimodalItem
from labs.diagnose.prompt_file import PromptFileError, read_prompt_file

IDS = list(range(100))
MESSAGES = [{"role": "user", "content": "Hello"}]


def read(tmp_path, content, name="p.json"):
    (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    return read_prompt_file(tmp_path / name)


def test_every_field_is_read_and_none_that_is_private_is_shown(tmp_path):
    content = {
        "token_ids": IDS, "cache_salt": "pepper", "lora": {"name": "sql", "path": "/v1"},
        "images": [{"identifier": "dog", "offset": 50, "length": 4}, {"id": "cat", "offset": 5, "length": 8}],
        "temperature": 0, "prompt_logprobs": 0, "tools": [],
    }  # fmt: skip
    prompt = read(tmp_path, content)
    fields = prompt.fields
    assert (fields.cache_salt, fields.lora, fields.prompt_logprobs) == ("pepper", LoRA("sql", "/v1"), True)
    assert fields.images == (MultimodalItem("cat", 5, 8), MultimodalItem("dog", 50, 4))
    assert prompt.unread == ("temperature", "tools")
    assert "pepper" not in repr(prompt) and "cat" not in repr(prompt)


def test_an_adapter_may_be_a_name_and_a_salt_may_be_empty(tmp_path):
    fields = read(tmp_path, {"prompt": "Hello", "lora": "sql", "cache_salt": "", "images": None, "prompt_logprobs": None}).fields
    assert (fields.lora, fields.cache_salt, fields.images, fields.prompt_logprobs) == (LoRA("sql", ""), None, (), False)


def test_tools_belong_to_messages_and_what_tools_need_stays_in_them(tmp_path):
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}], "refusal": None}
    prompt = read(tmp_path, {"messages": [*MESSAGES, call], "tools": [{"name": "a"}], "stream": True})
    assert prompt.fields.tools == [{"name": "a"}]
    assert prompt.messages[1] == {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
    assert prompt.unread == ("messages[].refusal", "stream")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cache_salt": 7}, "cache_salt is no text; accepted: a text, or null"),
        ({"cache_salt": "\ud800"}, "cache_salt is no text"),
        ({"lora": {"path": "/v1"}}, "lora has another shape; accepted: "),
        ({"lora": ["sql"]}, "lora has another shape"),
        ({"lora": {"name": "sql", "path": 1}}, "lora has another shape"),
        ({"images": {"id": "cat"}}, "images is no list"),
        ({"images": ["cat"]}, r"images\[0\] has another shape"),
        ({"images": [{"id": "cat", "offset": True, "length": 1}]}, r"images\[0\] has another shape"),
        ({"images": [{"id": "a", "offset": 0, "length": 5}, {"id": "b", "offset": 4, "length": 5}]}, "images overlap"),
        ({"images": [{"id": "a", "offset": 0, "length": 0}]}, "a length below 1"),
    ],
)
def test_a_field_of_another_shape_is_named_and_not_quoted(tmp_path, fields, message):
    with pytest.raises(PromptFileError, match=f"p.json.*{message}") as caught:
        read(tmp_path, {"token_ids": IDS, **fields})
    assert "sql" not in str(caught.value) and "cat" not in str(caught.value)


def test_tools_of_another_shape_are_refused(tmp_path):
    for tools in ("look_up", ["look_up"], [{"name": "\ud800"}]):
        with pytest.raises(PromptFileError, match="tools has another shape; accepted: a list of JSON objects"):
            read(tmp_path, {"messages": MESSAGES, "tools": tools})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p", [1, 2.5], "token ids that are not all whole numbers"),
        ("p", [True, 1], "token ids that are not all whole numbers"),
        ("p", [1, -2], "token id out of range at position 1"),
        ("p", {"token_ids": [1, "2"]}, "what stands under 'token_ids'"),
        ("p", {"token_ids": []}, "what stands under 'token_ids'"),
        ("p", {"prompt": " "}, "what stands under 'prompt'"),
        ("p", {"prompt": ["a", "b"]}, "what stands under 'prompt'"),
        ("p", {"messages": []}, "what stands under 'messages'"),
        ("p", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, 'images as "images": '),
    ],
)
def test_json_that_means_to_be_a_request_is_never_taken_as_text(tmp_path, name, content, message):
    with pytest.raises(PromptFileError) as caught:
        read(tmp_path, content, name)
    assert message in str(caught.value)


def test_other_json_in_a_file_without_an_ending_is_text_and_says_so(tmp_path):
    assert read(tmp_path, {"mesages": []}, "p").other_json and not read(tmp_path, IDS, "q").other_json
