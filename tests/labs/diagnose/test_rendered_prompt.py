"""Prompts as their model sees them: which message a position falls in, and what a template cannot write."""

import pytest

from engine.model.tokenizer import Tokenizer
from labs.diagnose.prompt_file import PromptFile, PromptFileError
from labs.diagnose.rendered_prompt import render_prompt
from labs.diagnose.request_fields import RequestFields

TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]


def messages(*contents):
    roles = ["system", *["user", "assistant"] * len(contents)]
    return [{"role": role, "content": content} for role, content in zip(roles, contents)]


def test_a_position_is_found_in_its_message(byte_tokenizer):
    chat = messages("Be brief.", "Hello?", "Hi.", "Bye.")
    rendered = render_prompt(PromptFile(messages=chat), byte_tokenizer, "p.json")
    head = len("[system]\n")
    assert rendered.section_at(0) == rendered.section_at(head - 1)
    assert rendered.section_at(0) == "in the chat template's head, before the first message's text"
    assert rendered.section_at(head) == f"in message 0 ('system'), {head} tokens into it"
    at = rendered.text.index("Hi.")
    assert rendered.section_at(at) == f"in message 2 ('assistant'), {len('[assistant]' + chr(10))} tokens into it"
    assert rendered.section_at(rendered.text.index("Bye.") + 3).startswith("in message 3 ('user')")
    assert rendered.section_at(len(rendered.text) - 1) == "behind the last message, in the template's opening of the answer"


def test_a_long_chat_is_searched_by_halves(byte_tokenizer):
    chat = messages(*(f"turn {number}" for number in range(101)))
    rendered = render_prompt(PromptFile(messages=chat), byte_tokenizer, "p.json")
    for number in (0, 1, 50, 99, 100):
        assert rendered.section_at(rendered.text.index(f"turn {number}\n")).startswith(f"in message {number} ")


def test_ids_and_text_are_no_chat(byte_tokenizer):
    assert render_prompt(PromptFile(token_ids=[1, 2]), None, "p").section_at(0) is None
    rendered = render_prompt(PromptFile(text="Hi"), byte_tokenizer, "p")
    assert (list(rendered.token_ids), rendered.text, rendered.section_at(1)) == ([72, 105], "Hi", None)
    assert "Hi" not in repr(rendered)


class PickyTokenizer:
    """A template that takes chats ending with the user only, and quotes what it refuses."""

    has_chat_template = True

    def encode(self, text):
        return list(text.encode())

    def render_chat(self, messages, add_generation_prompt=True):
        if messages[-1]["role"] != "user":
            raise ValueError(f"no user behind {messages[-1]['content']}")
        return "".join(f"<{message['content']}>" for message in messages)


def test_a_template_that_takes_no_part_of_a_chat_leaves_the_section_open():
    rendered = render_prompt(PromptFile(messages=messages("secret", "Hello?")), PickyTokenizer(), "p.json")
    assert rendered.section_at(3) is None


def test_a_refusing_template_is_one_line_without_the_prompt():
    message = "'p.json': the chat template refuses these messages .ValueError., roles 'system'; accepted"
    with pytest.raises(PromptFileError, match=message) as caught:
        render_prompt(PromptFile(messages=messages("my secret")), PickyTokenizer(), "p.json")
    assert "my secret" not in str(caught.value) and caught.value.__cause__ is None


def test_smollm2_reads_messages_and_refuses_what_its_template_leaves_out(smollm2_tokenizer):
    tokenizer = Tokenizer(smollm2_tokenizer._tokenizer)
    chat = messages("Be brief.", "Hello?")
    rendered = render_prompt(PromptFile(messages=chat), tokenizer, "p.json")
    user = len(tokenizer.encode(tokenizer.render_chat(chat[:1], add_generation_prompt=False)))
    assert rendered.section_at(0).startswith("in the chat template's head")
    assert rendered.section_at(user) == "in message 1 ('user'), 0 tokens into it"
    with pytest.raises(PromptFileError, match="has tools, which this model's chat template does not write; accepted: a --model"):
        render_prompt(PromptFile(messages=chat, fields=RequestFields(tools=TOOLS)), tokenizer, "p.json")
    called = [*chat, {"role": "assistant", "content": "", "tool_calls": TOOLS}, {"role": "tool", "content": "2"}]
    with pytest.raises(PromptFileError, match="has tool_calls, which"):
        render_prompt(PromptFile(messages=called), tokenizer, "p.json")
    own = tokenizer.hf_tokenizer.chat_template
    tokenizer.hf_tokenizer.chat_template = "{% if tools %}{{ tools[0].function.name }}{% endif %}{{ messages[0].content }}"
    try:
        written = render_prompt(PromptFile(messages=chat, fields=RequestFields(tools=TOOLS)), tokenizer, "p.json")
    finally:
        tokenizer.hf_tokenizer.chat_template = own
    assert written.text == "look_upBe brief."
