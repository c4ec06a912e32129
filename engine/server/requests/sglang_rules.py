"""SGLangRules: what SGLang 0.5.23's server accepts, and its words where it refuses.

One difference is kept on purpose: a token id outside the vocabulary ends the real server; here it is refused.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Sequence

from engine.server.answers.text_stream import may_begin_stop
from engine.server.requests.json_body import invalid
from engine.server.requests.native_request import UnknownSamplingField
from engine.server.requests.refusal import Refusal
from engine.server.requests.request_body import ChatBody, CompletionBody, GenerationBody
from engine.server.requests.server_rules import ServerRules
from engine.server.server_info import max_req_input_len

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer

_ANY_MODEL = "default"
# A field that is there has a value, in these.
_NEVER_NULL: dict[type[GenerationBody], tuple[str, ...]] = {
    CompletionBody: ("model", "max_tokens", "temperature", "top_p", "top_k", "ignore_eos", "stream", "return_token_ids"),
    ChatBody: ("model", "logprobs", "ignore_eos", "stream", "return_token_ids"),
}


class SGLangRules(ServerRules):
    """Sources: its replies to bad requests (tests/golden/servers), srt/managers/tokenizer_manager.py of SGLang 0.5.23."""

    part_separator = " "
    waits_for_stops = True
    ignored_fields = frozenset({"prompt_logprobs", "return_tokens_as_token_ids", "add_generation_prompt", "request_id"})

    def model_name(self, asked: str | None) -> str:
        return _ANY_MODEL if asked is None else asked  # whatever it is

    def check_options(self, asked: GenerationBody) -> None:
        for name in _NEVER_NULL[type(asked)]:
            if name in asked.model_fields_set and getattr(asked, name) is None:
                raise invalid(f"{name}: null is not accepted; leave it out", param=name)
        if isinstance(asked, CompletionBody) and asked.max_tokens is not None and asked.max_tokens < 1:
            raise invalid("max_tokens must be positive")
        if _is_single(asked):
            for name in ("cache_salt", "extra_key"):
                if isinstance(getattr(asked, name), list):
                    raise Refusal(f"{name} should be a string for a single request.")
        if isinstance(asked, ChatBody) and asked.stream and asked.return_token_ids:
            raise Refusal(
                "return_token_ids is not supported with streaming on /v1/chat/completions."
                " Please set stream=false when using return_token_ids=true.",
                error_type="BadRequest",
            )

    def chat_messages(
        self, messages: list[dict[str, str]], add_generation_prompt: bool | None, text: TextTokenizer
    ) -> list[dict[str, str]]:
        """What the assistant said last is put to the model as the user's words, unless /tokenize says how the prompt ends."""
        if add_generation_prompt is None and messages[-1]["role"] == "assistant":
            return [*messages[:-1], {**messages[-1], "role": "user"}]
        return messages

    def chat_max_tokens(self, asked: ChatBody) -> tuple[str, int | None]:
        if asked.max_completion_tokens:  # 0 is as if it were not there
            return "max_completion_tokens", asked.max_completion_tokens
        return "max_tokens", asked.max_tokens

    def salts(self, cache_salt: Any, extra_key: Any, num_prompts: int) -> list[str | None]:
        salts = _one_for_each("cache_salt", cache_salt, num_prompts)
        keys = _one_for_each("extra_key", extra_key, num_prompts)
        return [_namespace(salt or None, key or None) for salt, key in zip(salts, keys)]

    def max_tokens(self, num_prompt_tokens: int, asked: int | None, name: str = "max_tokens") -> int:
        if asked is not None and asked < 0:  # of 0 the prompt is computed and cached, and that is all
            raise Refusal(f"max_new_tokens must be at least 0, got {asked}.")
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

    def no_prompts(self, value: Any) -> Refusal:
        return self.empty_prompt()

    def empty_prompt(self) -> Refusal:
        return Refusal("Prompt cannot be empty")

    def num_held(self, pending: str, stops: Sequence[str]) -> int:
        return len(pending) if may_begin_stop(pending, stops) else 0

    def error_body(self, refusal: Refusal) -> dict[str, Any]:
        return {"object": "error", **refusal.fields()}

    def native_error_body(self, refusal: Refusal) -> dict[str, Any]:
        """The same of its own /generate, which has three shapes for it (native_request.py)."""
        if isinstance(refusal, UnknownSamplingField):
            return {"error": refusal.message}
        return self.error_body(refusal) if refusal.error_type == "Bad Request" else {"error": {"message": refusal.message}}

    def error_event(self, refusal: Refusal) -> dict[str, Any]:
        return {"error": self.error_body(refusal)}


def _is_single(asked: GenerationBody) -> bool:
    """Whether there is one prompt, and no list around it."""
    prompt = asked.prompt if isinstance(asked, CompletionBody) else None
    return not isinstance(prompt, list) or not any(isinstance(one, (str, list)) for one in prompt[:1])


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
