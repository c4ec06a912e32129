"""PromptFile: a prompt that a person has in a file, as text, as chat messages, or as token ids.

    text        anything that is none of the others
    messages    JSON: [{"role": "user", "content": "…"}, …], or an object with that under "messages"
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


class PromptFileError(ValueError):
    """The file holds no prompt; the message names the file, never its content."""


@dataclass(frozen=True)
class PromptFile:
    """One prompt; exactly one of the three is set. None of them is shown by `repr`."""

    text: str | None = field(default=None, repr=False)
    messages: list[dict[str, Any]] | None = field(default=None, repr=False)
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
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise PromptFileError(f"{str(path)!r} is larger than {MAX_FILE_BYTES // 2**20} MiB; accepted: a smaller file with {_SHAPES}")
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise PromptFileError(f"{str(path)!r} cannot be read ({error.strerror}); accepted: a file with {_SHAPES}") from None
    except UnicodeDecodeError:
        raise PromptFileError(f"{str(path)!r} is not UTF-8; accepted: {_SHAPES}") from None
    if not text.strip():
        raise PromptFileError(f"{str(path)!r} is empty; accepted: {_SHAPES}")
    if path.suffix.lower() == ".txt":
        return PromptFile(text=text)
    must_be_json = path.suffix.lower() == ".json"
    try:
        content = json.loads(text)
    except ValueError:
        if must_be_json:
            raise PromptFileError(f"{str(path)!r} is not JSON; accepted: {_SHAPES}, text in a file with another ending") from None
        return PromptFile(text=text)
    prompt = _prompt_from(content, str(path))
    if prompt is not None:
        return prompt
    if must_be_json:
        raise PromptFileError(f"{str(path)!r} holds JSON of another shape; accepted: {_SHAPES}")
    return PromptFile(text=text)


def _prompt_from(content: Any, name: str) -> PromptFile | None:
    if isinstance(content, dict):
        for key in ("messages", "prompt_token_ids", "token_ids", "prompt"):
            if key in content:
                content = content[key]
                break
    if isinstance(content, str) and content.strip():
        return PromptFile(text=content)
    if not isinstance(content, list) or not content:
        return None
    if all(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in content):
        return PromptFile(messages=content)
    if all(isinstance(one, int) and not isinstance(one, bool) for one in content):
        _check_ids(content, name)
        return PromptFile(token_ids=content)
    return None


def _check_ids(token_ids: Sequence[int], name: str) -> None:
    for position, token_id in enumerate(token_ids):
        if not 0 <= token_id < 2**31:
            raise PromptFileError(f"{name!r} has the token id {token_id} at position {position}; accepted: 0 to {2**31 - 1}")
