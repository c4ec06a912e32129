"""SimText: ids travel as text and come back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.errors import ConfigError, RequestRefused
from engine.server.sim_text import EOS_TOKEN_ID, SimText

VOCAB_SIZE = 49_152
TEXT = SimText(VOCAB_SIZE)

produced = st.lists(
    st.one_of(
        st.integers(0, VOCAB_SIZE - 1),
        st.sampled_from(b"<>0123456789"),  # what brackets are made of
        st.integers(128, 255),  # what characters are made of
        st.sampled_from([257, 300, VOCAB_SIZE - 1]),
    ).filter(lambda token_id: token_id != EOS_TOKEN_ID),
    max_size=40,
)


@given(produced)
@example(list(b"<300>"))
@example([*b"<<300", 300, *b">"])
@example([0xC3, 300, 0xA9, 0x20])
@example([0xF0, 0x9F, 0x41])
@example([*b"<62>"])
@example([*"\N{REPLACEMENT CHARACTER}".encode()])
def test_what_a_model_produces_is_read_back_as_what_it_was(ids):
    text = TEXT.decode(ids)
    if not text.endswith("\N{REPLACEMENT CHARACTER}"):
        assert TEXT.encode(text) == ids
    # Ended within a character it is, with any next id.
    assert TEXT.encode(TEXT.decode([*ids, 300])) == [*ids, 300]


@given(produced, st.integers(0, 40))
def test_a_text_begins_with_the_text_of_its_beginning(ids, length):
    beginning = TEXT.decode(ids[:length]).removesuffix("\N{REPLACEMENT CHARACTER}")
    assert TEXT.decode(ids).startswith(beginning)


@given(st.text())
def test_any_text_becomes_ids_of_the_vocabulary(text):
    assert all(0 <= token_id < VOCAB_SIZE for token_id in TEXT.encode(text))


@given(st.text(st.characters(exclude_characters="<", codec="utf-8")))
def test_a_prompt_without_brackets_comes_back_as_it_was(text):
    assert TEXT.decode(TEXT.encode(text)) == text


@given(produced, produced)
def test_ids_of_texts_that_are_joined_are_the_joined_ids(first, second):
    # What makes a conversation's turns share a prefix: each turn's text ends the marker it began.
    assert TEXT.encode(TEXT.decode([*first, 300]) + TEXT.decode([*second, 300])) == [*first, 300, *second, 300]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("<300>", [300]),
        ("a<300>b", [97, 300, 98]),
        ("<3>", list(b"<3>")),  # a byte has a character of its own
        ("<0300>", list(b"<0300>")),
        ("<256>", list(b"<256>")),  # the end of text is nobody's to write
        (f"<{VOCAB_SIZE}>", list(f"<{VOCAB_SIZE}>".encode())),
        ("<99999999999999999999>", list(b"<99999999999999999999>")),
        ("é", [0xC3, 0xA9]),
        ("\ud800", [63]),
        ("", []),
    ],
)
def test_examples_of_texts(text, ids):
    assert TEXT.encode(text) == ids


def test_the_end_of_text_leaves_no_trace():
    assert TEXT.decode([104, EOS_TOKEN_ID, 105]) == "hi"
    assert TEXT.eos_token_ids == {EOS_TOKEN_ID}


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 2**70])
def test_an_id_outside_the_vocabulary_is_refused_by_name_of_the_range(token_id):
    with pytest.raises(RequestRefused, match=f"accepted: 0 to {VOCAB_SIZE - 1}"):
        TEXT.decode([token_id])


def test_a_vocabulary_without_room_for_the_bytes_is_refused():
    with pytest.raises(ConfigError, match="vocab_size is 256; accepted: 257 or more"):
        SimText(256)
    assert SimText(257).encode("<300>") == list(b"<300>")


def test_a_conversation_begins_as_its_continuation_does_with_the_answer_in_it():
    turn = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompt = TEXT.encode(TEXT.render_chat(turn))
    answer = [300, 0xC3, 301, 62, 48_000]
    longer = [*turn, {"role": "assistant", "content": TEXT.decode(answer)}, {"role": "user", "content": "Again"}]
    assert TEXT.encode(TEXT.render_chat(longer))[: len(prompt) + len(answer)] == prompt + answer


def test_a_message_is_its_role_and_its_content():
    messages = [{"role": "developer", "content": "a"}, {"role": "tool", "content": None}]
    assert TEXT.render_chat(messages, add_generation_prompt=False) == "<|developer|>\na\n<|tool|>\n\n"
    assert TEXT.render_chat([]) == "<|assistant|>\n"


@pytest.mark.parametrize(
    ("message", "accepted"),
    [
        ({"role": "king", "content": "secret"}, "accepted: system, developer, user, assistant, tool"),
        ({"content": "secret"}, "accepted: system"),
        ({"role": ["user"], "content": "secret"}, "accepted: system"),
        ({"role": "user", "content": ["secret"]}, "accepted: a text, or none"),
    ],
)
def test_a_message_that_cannot_be_rendered_is_refused_without_showing_it(message, accepted):
    with pytest.raises(RequestRefused, match=accepted) as refused:
        TEXT.render_chat([message])
    assert "secret" not in str(refused.value)
