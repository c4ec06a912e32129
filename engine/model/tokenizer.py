"""Text <-> token ids: the checkpoint's own tokenizer, or bytes for models with random weights.

No special tokens are added on the way in: what a prompt holds is what the caller wrote, so that counts of
shared tokens are exact. A chat template writes its special tokens as text, and they are read as such.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Protocol, Sequence

from engine.errors import ModelNotFound, ModelNotSupported
from engine.model.model_source import BYTE_EOS_TOKEN_ID, find_model
from engine.model.quiet import quiet_transformers


def open_tokenizer(
    model: str, cache_dir: str | None = None, progress: Callable[[str, int, int], None] | None = None
) -> TextTokenizer:
    """The tokenizer of a model by its name, without the weights. Converts a bundled model on first use, as a run would.

    Raises ModelNotFound.
    """
    source = find_model(model)
    if source.shape:
        return ByteTokenizer(source.shape["vocab_size"])
    folder = source.folder
    if source.gguf_path is not None:
        from engine.model.model_cache import converted_folder

        folder = converted_folder(source.gguf_path, cache_dir, progress)
    assert folder is not None
    return Tokenizer.from_folder(folder)


class TextTokenizer(Protocol):
    """What the engine asks of a tokenizer."""

    vocab_size: int  # ids run from 0 to vocab_size - 1
    eos_token_ids: frozenset[int]
    has_chat_template: bool
    knows_developer_role: bool  # whether the chat template has words of its own for that role

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; nothing is added."""
        ...

    def decode(self, token_ids: Sequence[int], keep_special: bool = False) -> str:
        """The text of some ids; special tokens leave no trace in it, unless they are kept."""
        ...

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Each id as the vocabulary has it: where that is of bytes, `Ġthere` is what decodes to " there"."""
        ...

    def render_chat(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        """Messages as the text this model was trained on. Raises ModelNotSupported without a template."""
        ...


class Tokenizer:
    """A checkpoint's tokenizer, through transformers."""

    def __init__(self, tokenizer: Any) -> None:
        self.hf_tokenizer = tokenizer
        self.vocab_size: int = len(tokenizer)
        self.eos_token_ids: frozenset[int] = frozenset(
            () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        )

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """The tokenizer saved in a checkpoint's folder. Raises ModelNotFound if there is none."""
        from transformers import AutoTokenizer

        try:
            with quiet_transformers():
                return cls(AutoTokenizer.from_pretrained(str(folder), local_files_only=True))
        except Exception as error:  # transformers raises whatever its parsers meet
            raise ModelNotFound(f"no tokenizer could be loaded from {str(folder)!r} ({type(error).__name__})") from error

    @property
    def has_chat_template(self) -> bool:
        return bool(getattr(self.hf_tokenizer, "chat_template", None))

    @property
    def knows_developer_role(self) -> bool:
        template = str(getattr(self.hf_tokenizer, "chat_template", ""))
        return "'developer'" in template or '"developer"' in template

    def encode(self, text: str) -> list[int]:
        return self.hf_tokenizer.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], keep_special: bool = False) -> str:
        return self.hf_tokenizer.decode(
            list(token_ids), skip_special_tokens=not keep_special, clean_up_tokenization_spaces=False
        )

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        return self.hf_tokenizer.convert_ids_to_tokens(list(token_ids))

    def render_chat(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        if not self.has_chat_template:
            raise ModelNotSupported("this model's tokenizer has no chat template; send plain prompts instead")
        return self.hf_tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt
        )


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255, then the end-of-text id; for models without a vocabulary of their own.

    vocab_size  ids the model can produce; those without a byte are written as `<id>`.
    """

    has_chat_template = False
    knows_developer_role = False

    def __init__(self, vocab_size: int = BYTE_EOS_TOKEN_ID + 1) -> None:
        assert vocab_size > BYTE_EOS_TOKEN_ID
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset((BYTE_EOS_TOKEN_ID,))

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def decode(self, token_ids: Sequence[int], keep_special: bool = False) -> str:
        data = bytearray()
        for token_id in token_ids:
            if token_id < BYTE_EOS_TOKEN_ID:
                data.append(token_id)
            elif token_id != BYTE_EOS_TOKEN_ID or keep_special:
                data += b"<%d>" % token_id
        return data.decode("utf-8", errors="replace")

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        return [self.decode([token_id], keep_special=True) for token_id in token_ids]

    def render_chat(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        raise ModelNotSupported("models with random weights have no chat template; send plain prompts instead")
