"""Messages of a chat, checked, and in the form that chat templates take: a role and a text each."""

from __future__ import annotations

from typing import Any

from engine.server.requests.json_body import invalid
from engine.server.requests.refusal import Refusal, not_supported

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_MAX_MESSAGES = 4096


def read_messages(value: Any, separator: str) -> list[dict[str, str]]:
    """Role and text of each message. Raises Refusal, naming the message by its place.

    separator  between the parts of a content that is a list
    """
    if not isinstance(value, list) or not value:
        raise invalid("messages: a non-empty list is required", param="messages")
    if len(value) > _MAX_MESSAGES:
        raise invalid(f"messages: {len(value)} of them; accepted: up to {_MAX_MESSAGES}", param="messages")
    return [_message(f"messages[{index}]", message, separator) for index, message in enumerate(value)]


def _message(place: str, message: Any, separator: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise invalid(f"{place}: not an object", param="messages")
    role = message.get("role")
    if role not in ROLES:
        raise invalid(f"{place}: its role is none that is known; accepted: {', '.join(ROLES)}", param="messages")
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise not_supported(f"{place}.{name}", "messages of text")
    return {"role": role, "content": _text(place, message.get("content"), separator)}


def _text(place: str, content: Any, separator: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{place}.content: neither a text nor a list of parts", param="messages")
    return separator.join(_part(place, part) for part in content)


def _part(place: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") in ("text", "input_text") and isinstance(part.get("text"), str):
        return part["text"]
    if isinstance(part, dict) and part.get("type") not in ("text", "input_text") and isinstance(part.get("type"), str):
        message = f"{place}.content: a part that is no text is not supported here; accepted: text parts"
        raise Refusal(message, param="messages")
    raise invalid(f"{place}.content: a part without a text", param="messages")
