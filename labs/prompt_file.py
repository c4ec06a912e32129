"""PromptFile: a prompt that a person has in a file, as text, as chat messages, or as token ids.

    text        anything that is none of the others; or JSON: {"prompt": "…"}
    messages    JSON: [{"role": "user", "content": "…"}, …], or an object with that under "messages"; content may be
                in parts, as long as all are text: [{"type": "text", "text": "…"}]
    token ids   JSON: [1, 2, 3], or an object with that under "prompt_token_ids", "token_ids" or "prompt"

A file called `.txt` is text whatever it holds; one called `.json` must be JSON of these shapes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Sequence

MAX_FILE_BYTES = 64 * 2**20
_SHAPES = 'text, JSON messages ([{"role": …, "content": …}]) or JSON token ids ([1, 2, …])'
_MAX_TOKEN_ID = 2**31 - 1


class PromptFileError(ValueError):
    """The file holds no prompt; the message names the file, never its content."""


@dataclass(frozen=True)
class PromptFile:
    """One prompt; exactly one of the three is set. None of them is shown by `repr`."""

    text: str | None = field(default=None, repr=False)
    messages: list[dict[str, str]] | None = field(default=None, repr=False)
    token_ids: list[int] | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:
        """"text", "messages" or "token ids"."""
        if self.token_ids is not None:
            return "token ids"
        return "text" if self.text is not None else "messages"


def read_prompt_file(path: str | Path) -> PromptFile:
    """Read a prompt. Raises PromptFileError for a file that cannot be read or holds none."""
    path = Path(path)
    text = _read_text(path)
    if not text.strip():
        raise PromptFileError(f"{str(path)!r} is empty; accepted: {_SHAPES}")
    ending = path.suffix.lower()
    if ending == ".txt":
        return PromptFile(text=text)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        if ending == ".json":
            raise PromptFileError(f"{str(path)!r} is not JSON; accepted: {_SHAPES}, text in a file with another ending") from None
        return PromptFile(text=text)
    prompt = _prompt_from(content, path)
    if prompt is None and ending == ".json":
        raise PromptFileError(f"{str(path)!r} holds JSON of another shape; accepted: {_SHAPES}")
    return prompt or PromptFile(text=text)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise PromptFileError(f"{str(path)!r} cannot be read ({error.strerror}); accepted: a file with {_SHAPES}") from None
    except UnicodeDecodeError:
        raise PromptFileError(f"{str(path)!r} is not UTF-8; accepted: {_SHAPES}") from None
    if len(data) > MAX_FILE_BYTES:
        raise PromptFileError(f"{str(path)!r} is larger than {MAX_FILE_BYTES // 2**20} MiB; accepted: a smaller file with {_SHAPES}")
    return text


def _prompt_from(content: Any, path: Path) -> PromptFile | None:
    """The prompt in a JSON value; None when it has another shape."""
    key = None
    if isinstance(content, dict):
        key = next((key for key in ("messages", "prompt_token_ids", "token_ids", "prompt") if key in content), None)
        content = content.get(key) if key is not None else None
    if key == "prompt" and isinstance(content, str) and content.strip():
        return PromptFile(text=_checked(content, path))
    if not isinstance(content, list) or not content:
        return None
    if key in (None, "messages") and all(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in content):
        return PromptFile(messages=[_message(one, position, path) for position, one in enumerate(content)])
    if key != "messages" and all(isinstance(one, int) and not isinstance(one, bool) for one in content):
        _check_ids(content, path)
        return PromptFile(token_ids=content)
    return None


def _message(message: dict[str, Any], position: int, path: Path) -> dict[str, str]:
    """Role and content as texts."""
    role, content = message["role"], message["content"]
    if isinstance(content, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(role, str) or not isinstance(content, str):
        raise PromptFileError(f"{str(path)!r}: message {position} has a role or a content that is no text; accepted: {_SHAPES}")
    return {"role": role, "content": _checked(content, path)}


def _checked(text: str, path: Path) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can name half of a character
        raise PromptFileError(f"{str(path)!r} holds half a character (a lone surrogate); accepted: {_SHAPES}") from None
    return text


def _check_ids(token_ids: Sequence[int], path: Path) -> None:
    for position, token_id in enumerate(token_ids):
        if not 0 <= token_id <= _MAX_TOKEN_ID:
            raise PromptFileError(f"{str(path)!r} has a token id out of range at position {position}; accepted: 0 to {_MAX_TOKEN_ID}")
