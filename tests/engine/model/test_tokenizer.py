import pytest

from engine.errors import ModelNotFound, ModelNotSupported
from engine.model.tokenizer import ByteTokenizer, Tokenizer


def test_bytes_come_back_as_the_text_they_were():
    tokenizer = ByteTokenizer()
    text = "naïve café, 東京"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_without_a_byte_are_written_and_the_end_of_text_is_not():
    tokenizer = ByteTokenizer(512)
    assert tokenizer.decode([72, 105, 300, 256]) == "Hi<300>"
    assert tokenizer.eos_token_ids == {256} and tokenizer.vocab_size == 512


def test_half_a_character_does_not_break_decoding():
    assert ByteTokenizer().decode("é".encode()[:1]) == "\ufffd"


def test_byte_models_have_no_chat_template():
    assert not ByteTokenizer.has_chat_template
    with pytest.raises(ModelNotSupported, match="chat template"):
        ByteTokenizer().render_chat([{"role": "user", "content": "Hi"}])


def test_a_checkpoints_tokenizer_adds_nothing_and_reads_special_tokens_in_the_text(checkpoint):
    tokenizer = Tokenizer.from_folder(checkpoint)
    assert tokenizer.encode("the cat sat") == [2, 3, 4]
    assert tokenizer.encode("[USER] the [END]") == [5, 2, 1]
    assert tokenizer.decode([2, 3, 1]) == "the cat"
    assert tokenizer.vocab_size == 512 and tokenizer.eos_token_ids == {1}


def test_a_chat_is_rendered_by_the_checkpoints_template(checkpoint):
    tokenizer = Tokenizer.from_folder(checkpoint)
    messages = [{"role": "user", "content": "cat sat"}]
    assert tokenizer.has_chat_template
    assert tokenizer.render_chat(messages) == "[USER] cat sat [END] the "
    assert tokenizer.render_chat(messages, add_generation_prompt=False) == "[USER] cat sat [END] "


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(ModelNotFound, match=str(tmp_path)):
        Tokenizer.from_folder(tmp_path)
