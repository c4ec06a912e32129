"""PromptFile: a prompt that a person has in a file, as text, as chat messages, or as token ids.

    text        anything that is none of the others; or JSON: {"prompt": "…"}
    messages    JSON: [{"role": "user", "content": "…"}, …], or an object with that under "messages"; content may be
                in parts, as long as all are text: [{"type": "text", "text": "…"}]
    token ids   JSON: [1, 2, 3], or an object with that under "prompt_token_ids", "token_ids" or "prompt"

An object may also carry what decides a request's K/V beside its tokens, or shapes them (labs/diagnose/request_fields.py):
"cache_salt", "lora", "images" and "tools". A file called `.txt` is text whatever it holds; one called `.json` must be
JSON of these shapes. `-` is standard input.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Sequence

from labs.diagnose.request_fields import NO_FIELDS, RequestFieldError, RequestFields, read_request_fields

MAX_FILE_BYTES = 64 * 2**20
_SHAPES = 'text, JSON messages ([{"role": …, "content": …}]) or JSON token ids ([1, 2, …])'
_MAX_TOKEN_ID = 2**31 - 1
_PROMPT_KEYS = ("messages", "prompt_token_ids", "token_ids", "prompt")
_MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")


class PromptFileError(ValueError):
    """The file holds no prompt; the message names the file, never its content."""


@dataclass(frozen=True)
class PromptFile:
    """One prompt; exactly one of the three is set. None of them is shown by `repr`."""

    text: str | None = field(default=None, repr=False)
    messages: list[dict[str, Any]] | None = field(default=None, repr=False)
    token_ids: list[int] | None = field(default=None, repr=False)
    fields: RequestFields = NO_FIELDS
    unread: tuple[str, ...] = ()  # keys of the object that were ignored
    other_json: bool = False  # it is JSON, but of no shape above, and was taken as text

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
            accepted = f"{_SHAPES}, text in a file with another ending"
            raise PromptFileError(f"{str(path)!r} is not JSON; accepted: {accepted}") from None
        return PromptFile(text=text)
    prompt = _prompt_from(content, path)
    if prompt is None and ending == ".json":
        raise _other_shape(path)
    return prompt or PromptFile(text=_checked(text, path), other_json=isinstance(content, (dict, list)))


def _read_text(path: Path) -> str:
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise PromptFileError(f"{str(path)!r} cannot be read ({error.strerror}); accepted: a file with {_SHAPES}") from None
    except UnicodeDecodeError:
        raise PromptFileError(f"{str(path)!r} is not UTF-8; accepted: {_SHAPES}") from None
    if len(data) > MAX_FILE_BYTES:
        most = f"{MAX_FILE_BYTES // 2**20} MiB"
        raise PromptFileError(f"{str(path)!r} is larger than {most}; accepted: a smaller file with {_SHAPES}")
    return text


def _prompt_from(content: Any, path: Path) -> PromptFile | None:
    """The prompt in a JSON value; None when it is of another shape and does not claim to be one of these."""
    if isinstance(content, list):
        return _prompt_from_list(content, None, path)
    key = next((key for key in _PROMPT_KEYS if key in content), None) if isinstance(content, dict) else None
    if key is None:
        return None
    value = content[key]
    prompt = _prompt_from_list(value, key, path) if isinstance(value, list) else None
    if key == "prompt" and isinstance(value, str):
        prompt = PromptFile(text=_checked(value, path)) if value.strip() else None
    if prompt is None:
        raise _other_shape(path, f"what stands under {key!r}")
    try:
        fields, read = read_request_fields(content, has_messages=prompt.messages is not None)
    except RequestFieldError as error:
        raise PromptFileError(f"{str(path)!r}: {error}") from None
    unread = tuple(str(name) for name in content if name != key and name not in read)
    return PromptFile(prompt.text, prompt.messages, prompt.token_ids, fields, prompt.unread + unread)


def _prompt_from_list(content: list[Any], key: str | None, path: Path) -> PromptFile | None:
    if not content:
        return None
    if key in (None, "messages") and all(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in content):
        unread = dict.fromkeys(f"messages[].{name}" for one in content for name in one if name not in _MESSAGE_KEYS)
        return PromptFile(messages=[_message(one, position, path) for position, one in enumerate(content)], unread=tuple(unread))
    if key != "messages" and all(_is_whole(one) for one in content):
        _check_ids(content, path)
        return PromptFile(token_ids=content)
    if key is None and all(isinstance(one, (int, float)) for one in content):
        raise _other_shape(path, "token ids that are not all whole numbers")
    return None


def _message(message: Mapping[str, Any], position: int, path: Path) -> dict[str, Any]:
    """Role and content as texts, and what belongs to tools as it is."""
    role, content = message["role"], message["content"]
    if isinstance(content, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
        content = "".join(part["text"] for part in content)
    if content is None and message.get("tool_calls"):
        content = ""
    if not isinstance(role, str) or not isinstance(content, str):
        accepted = _SHAPES
        if isinstance(content, list):
            accepted += ', images as "images": [{"id": …, "offset": …, "length": …}] beside token ids that hold their places'
        raise PromptFileError(f"{str(path)!r}: message {position} has a role or a content that is no text; accepted: {accepted}")
    more = {name: message[name] for name in _MESSAGE_KEYS[2:] if message.get(name) is not None}
    if more:
        _checked(json.dumps(more, ensure_ascii=False), path)
    return {"role": _checked(role, path), "content": _checked(content, path), **more}


def _checked(text: str, path: Path) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can name half of a character
        raise PromptFileError(f"{str(path)!r} holds half a character (a lone surrogate); accepted: {_SHAPES}") from None
    return text


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_ids(token_ids: Sequence[int], path: Path) -> None:
    for position, token_id in enumerate(token_ids):
        if not 0 <= token_id <= _MAX_TOKEN_ID:
            where = f"{str(path)!r} has a token id out of range at position {position}"
            raise PromptFileError(f"{where}; accepted: 0 to {_MAX_TOKEN_ID}")


def _other_shape(path: Path, what: str = "") -> PromptFileError:
    where = f" ({what})" if what else ""
    return PromptFileError(f"{str(path)!r} holds JSON of another shape{where}; accepted: {_SHAPES}")
