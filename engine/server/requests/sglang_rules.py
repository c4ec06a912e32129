"""SGLangRules: what SGLang 0.5.23's server accepts, and its words where it refuses.

One difference is kept on purpose: a token id outside the vocabulary ends the real server; here it is refused.
"""

from __future__ import annotations

import json
from typing import Any

from engine.server.requests.json_body import invalid
from engine.server.requests.refusal import Refusal
from engine.server.requests.server_rules import ServerRules
from engine.server.server_info import max_req_input_len

_ANY_MODEL = "default"


class SGLangRules(ServerRules):
    """Sources: its replies to bad requests (tests/golden/servers), srt/managers/tokenizer_manager.py of SGLang 0.5.23."""

    part_separator = " "
    can_name_tokens_by_id = False

    def model_name(self, asked: str | None) -> str:
        return asked or _ANY_MODEL  # whatever it is

    def salts(self, cache_salt: Any, extra_key: Any, num_prompts: int) -> list[str | None]:
        salts = _one_for_each("cache_salt", cache_salt, num_prompts)
        keys = _one_for_each("extra_key", extra_key, num_prompts)
        return [_namespace(salt or None, key or None) for salt, key in zip(salts, keys)]

    def max_tokens(self, num_prompt_tokens: int, asked: int | None, name: str = "max_tokens") -> int:
        if asked is not None and asked < 1:
            raise invalid(f"{name} must be positive", param=None)
        limit = self.max_model_len
        if num_prompt_tokens >= limit:
            raise Refusal(f"The input ({num_prompt_tokens} tokens) is longer than the model's context length ({limit} tokens).")
        if asked is not None and asked + num_prompt_tokens > limit:
            raise Refusal(
                f"Requested token count exceeds the model's maximum context length of {limit} tokens. You requested a total of"
                f" {asked + num_prompt_tokens} tokens: {num_prompt_tokens} tokens from the input messages and {asked} tokens for"
                " the completion. Please reduce the number of tokens in the input messages or the completion to fit within the"
                " limit."
            )
        max_input_len = max_req_input_len(self.engine)
        if num_prompt_tokens > max_input_len:
            raise Refusal(
                f"Input length ({num_prompt_tokens} tokens) exceeds the maximum allowed length ({max_input_len} tokens)."
                " Use a shorter input or enable --allow-auto-truncate."
            )
        left = min(limit, self.num_pool_tokens) - num_prompt_tokens
        return left if asked is None else min(asked, left)

    def no_prompts(self) -> Refusal:
        return self.empty_prompt()

    def empty_prompt(self) -> Refusal:
        return Refusal("Prompt cannot be empty")

    def error_body(self, refusal: Refusal) -> dict[str, Any]:
        return {"object": "error", **refusal.fields()}

    def error_event(self, refusal: Refusal) -> dict[str, Any]:
        return {"error": self.error_body(refusal)}


def _one_for_each(name: str, value: Any, num_prompts: int) -> list[str | None]:
    if value is None or isinstance(value, str):
        return [value] * num_prompts
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise invalid(f"{name}: Input should be a valid string, or a list of them", param=name)
    if len(value) != num_prompts:
        raise Refusal(
            f"{name} has {len(value)} entries for {num_prompts} prompts; accepted: one text, or one per prompt", param=name
        )
    return list(value)


def _namespace(salt: str | None, key: str | None) -> str | None:
    """One text for both, such that no two pairs share one: salt "ab", key "ab", and salt "a" with key "b" are three."""
    if key is None and not (salt or "").startswith("\0"):
        return salt
    return "\0" + json.dumps([salt, key])
