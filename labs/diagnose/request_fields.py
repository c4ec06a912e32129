"""RequestFields: what a request says beside its prompt, as far as it decides which K/V it may share.

    "cache_salt": "…"                                      a text; empty or null: none
    "lora": "name" or {"name": "…", "path": "…"}           an adapter; without a path it is taken as equal
    "images": [{"id": "…", "offset": 5, "length": 64}]     placeholders in the token ids; "identifier" is "id" too
    "tools": [{…}, …]                                      with messages: the chat template writes them
    "prompt_logprobs": 1                                   any number: vLLM looks nothing up for such a request
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Mapping

from engine.kvcache.cache_identity import CacheIdentity, LoRA, MultimodalItem


class RequestFieldError(ValueError):
    """A field holds something else; the message names the field, never its value."""


@dataclass(frozen=True)
class RequestFields:
    """Salt, identifiers and tools are not shown by `repr`."""

    cache_salt: str | None = field(default=None, repr=False)
    lora: LoRA | None = None  # path "": not said
    images: tuple[MultimodalItem, ...] = field(default=(), repr=False)  # sorted by offset
    tools: list[dict[str, Any]] | None = field(default=None, repr=False)
    prompt_logprobs: bool = False  # whether they are asked for


NO_FIELDS = RequestFields()


def read_request_fields(content: Mapping[str, Any], *, has_messages: bool) -> tuple[RequestFields, frozenset[str]]:
    """The fields of a JSON object, and the keys they were read from. Raises RequestFieldError."""
    read = {"cache_salt", "lora", "images", "prompt_logprobs"}
    if has_messages:
        read.add("tools")  # elsewhere the prompt holds them already
    fields = RequestFields(
        cache_salt=_salt(content.get("cache_salt")),
        lora=_lora(content.get("lora")),
        images=_images(content.get("images")),
        tools=_tools(content.get("tools")) if has_messages else None,
        prompt_logprobs=content.get("prompt_logprobs") is not None,
    )
    return fields, frozenset(read)


def _salt(value: Any) -> str | None:
    if value is not None and not _is_text(value):
        raise RequestFieldError("cache_salt is no text; accepted: a text, or null")
    return value or None


def _lora(value: Any) -> LoRA | None:
    if not value:
        return None
    name, path = (value.get("name"), value.get("path") or "") if isinstance(value, dict) else (value, "")
    if not _is_text(name) or not name or not _is_text(path):
        raise RequestFieldError('lora has another shape; accepted: "name", or {"name": "…", "path": "…"}, or null')
    return LoRA(name, path)


def _images(value: Any) -> tuple[MultimodalItem, ...]:
    if not value:
        return ()
    accepted = 'accepted: "images": [{"id": "…", "offset": 0, "length": 1}], in tokens, not overlapping'
    if not isinstance(value, list):
        raise RequestFieldError(f"images is no list; {accepted}")
    items = []
    for number, one in enumerate(value):
        entry = one if isinstance(one, dict) else {}
        identifier = entry.get("id", entry.get("identifier"))
        places = (entry.get("offset"), entry.get("length"))
        if not _is_text(identifier) or not all(isinstance(place, int) and not isinstance(place, bool) for place in places):
            raise RequestFieldError(f"images[{number}] has another shape; {accepted}")
        items.append(MultimodalItem(identifier, *places))
    items.sort(key=lambda item: item.offset)
    try:
        CacheIdentity(mm_items=tuple(items))
    except ValueError:
        raise RequestFieldError(f"images overlap, or have an offset below 0 or a length below 1; {accepted}") from None
    return tuple(items)


def _tools(value: Any) -> list[dict[str, Any]] | None:
    if not value:
        return None
    is_list = isinstance(value, list) and all(isinstance(one, dict) for one in value)
    if not is_list or not _is_text(json.dumps(value, ensure_ascii=False)):
        raise RequestFieldError("tools has another shape; accepted: a list of JSON objects, or null")
    return value


def _is_text(value: Any) -> bool:
    """A text that can be written: JSON can name half of a character."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)
