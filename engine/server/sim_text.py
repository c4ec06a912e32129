"""SimText: the tokenizer of a simulated model, whose tokens mean nothing and still have to travel as text.

    0 to 255          the bytes of UTF-8
    256               end of text; leaves no trace, or is written as `<256>` where special tokens are kept
    257 and up        written as the id in angle brackets, `<31337>`, and read back as that one id

What a model produces is read back as what it was, so that a chat's next turn finds its answer in the cache:
`encode(decode(ids)) == ids`, for any ids without 256 that do not end within a character of UTF-8. To that end bytes that are
no UTF-8 are written as ids too, and so is the `>` of anything that only looks like one: the bytes of `<300>` become `<300<62>`.

The text of a prompt is not always what comes back. `<300>` is one token, and comes back as it is; but `<62>` is `>`,
bytes in brackets (`<195><169>`) may become a character, and half a surrogate pair is read as a question mark.

The chat template is one line with the role, then the content, for each message. The beginning of a conversation is rendered as
the beginning of its continuation, as prefix caching needs it.
"""

from __future__ import annotations

import codecs
import re
from typing import Any, Sequence

from engine.errors import ConfigError, RequestRefused

NUM_BYTES = 256
EOS_TOKEN_ID = 256
ROLES = ("system", "developer", "user", "assistant", "tool")

_MARKER = re.compile(r"<([1-9][0-9]{1,9})>")
_BYTES_LIKE_A_MARKER = re.compile(rb"<([1-9][0-9]{1,9})>")
_CLOSING = ord(">")
_FIRST_NON_ASCII = 128


class SimText:
    """TextTokenizer without a vocabulary. Raises ConfigError for one too small to hold the bytes and the end of text.

    vocab_size  ids run from 0 to vocab_size - 1
    """

    has_chat_template = True
    knows_developer_role = True

    def __init__(self, vocab_size: int) -> None:
        if vocab_size <= EOS_TOKEN_ID:
            raise ConfigError("vocab_size", vocab_size, f"{EOS_TOKEN_ID + 1} or more: the bytes, and the end of text")
        self.vocab_size = vocab_size
        self.eos_token_ids = frozenset((EOS_TOKEN_ID,))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        end = 0
        for found in _MARKER.finditer(text):
            token_id = int(found[1])
            if self._is_written(token_id):
                ids += _utf8(text[end : found.start()])
                ids.append(token_id)
                end = found.end()
        ids += _utf8(text[end:])
        return ids

    def decode(self, token_ids: Sequence[int], keep_special: bool = False) -> str:
        """The text of some ids. It begins with the text of their beginning, but for U+FFFD where that ends within a character.

        Raises RequestRefused for an id that is none of this vocabulary.
        """
        pieces: list[str] = []
        run = bytearray()  # bytes since the last id that is none
        for token_id in token_ids:
            if 0 <= token_id < NUM_BYTES:
                run.append(token_id)
            elif NUM_BYTES < token_id < self.vocab_size or (token_id == EOS_TOKEN_ID and keep_special):
                pieces += self._written(run), f"<{token_id}>"
                run.clear()
            elif token_id != EOS_TOKEN_ID:
                raise RequestRefused(f"a token id outside the vocabulary; accepted: 0 to {self.vocab_size - 1}")
        pieces.append(self._written(run, at_end=True))
        return "".join(pieces)

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        return [self.decode([token_id], keep_special=True) for token_id in token_ids]

    def render_chat(self, messages: list[dict[str, Any]], add_generation_prompt: bool = True) -> str:
        """Messages as `<|role|>`, content and line ends. Raises RequestRefused for another role, or content that is no text."""
        lines: list[str] = []
        for message in messages:
            content = message.get("content")
            if message.get("role") not in ROLES:
                raise RequestRefused("a message's role is unknown; accepted: " + ", ".join(ROLES))
            if content is not None and not isinstance(content, str):
                raise RequestRefused("a message's content is no text; accepted: a text, or none")
            lines.append(f"<|{message['role']}|>\n{content or ''}\n")
        if add_generation_prompt:
            lines.append("<|assistant|>\n")
        return "".join(lines)

    def _is_written(self, token_id: int) -> bool:
        """Whether the id in angle brackets is read as that id: those without a character of their own, and `>`."""
        if token_id == _CLOSING:
            return True
        return _FIRST_NON_ASCII <= token_id < self.vocab_size and token_id != EOS_TOKEN_ID

    def _written(self, run: bytearray, at_end: bool = False) -> str:
        """The text of bytes, which nothing follows `at_end` (yet): the beginning of a character is U+FFFD there."""
        if not run:
            return ""
        data = _BYTES_LIKE_A_MARKER.sub(self._with_written_closing, bytes(run))
        decoder = codecs.getincrementaldecoder("utf-8")(_WRITTEN_BYTES)
        text = decoder.decode(data)
        begun, _ = decoder.getstate()
        if not begun:
            return text
        return text + ("\N{REPLACEMENT CHARACTER}" if at_end else "".join(f"<{byte}>" for byte in begun))

    def _with_written_closing(self, found: re.Match[bytes]) -> bytes:
        return b"<%b<%d>" % (found[1], _CLOSING) if self._is_written(int(found[1])) else found[0]


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")


def _write_bytes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<{byte}>" for byte in error.object[error.start : error.end]), error.end


_WRITTEN_BYTES = "labcli.written_bytes"
codecs.register_error(_WRITTEN_BYTES, _write_bytes)
