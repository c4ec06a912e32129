"""VLLMRules: what vLLM 0.32.0's server accepts, and its words where it refuses."""

from __future__ import annotations

from typing import Any

from engine.server.requests.refusal import Refusal
from engine.server.requests.server_rules import ServerRules

_MAX_SALT_LENGTH = 128
_REFUSED_IN_SALT = "@/\\\0"


class VLLMRules(ServerRules):
    """Sources: its replies to bad requests (tests/golden/servers), v1/engine and entrypoints of vLLM 0.32.0."""

    part_separator = "\n"
    can_name_tokens_by_id = True

    def model_name(self, asked: str | None) -> str:
        served = self.options.model_name
        if asked and asked != served:
            message = f"The model `{asked[:200]}` does not exist. Valid aliases: {served}."
            raise Refusal(message, status=404, param="model")
        return served

    def salts(self, cache_salt: Any, extra_key: Any, num_prompts: int) -> list[str | None]:
        # It has no extra_key, and ignores it as any unknown field.
        if cache_salt is not None:
            _check_salt(cache_salt)
        return [cache_salt] * num_prompts

    def max_tokens(self, num_prompt_tokens: int, asked: int | None, name: str = "max_tokens") -> int:
        limit = self.max_model_len
        if num_prompt_tokens > limit:
            raise _with_parameter(
                f"This model's maximum context length is {limit} tokens. However, your prompt contains {num_prompt_tokens}"
                " input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the"
                " input prompt.", "input_tokens", num_prompt_tokens,
            )  # fmt: skip
        if asked is not None and asked > limit:
            raise _with_parameter(
                f"{name}={asked} cannot be greater than max_model_len={limit}. Please request fewer output tokens.", name, asked
            )
        left = min(limit, self.num_pool_tokens) - num_prompt_tokens
        granted = left if asked is None else min(asked, left)
        if asked is not None and asked < 1:
            raise _with_parameter(f"{name} must be at least 1, got {asked}.", name, asked)
        if granted < 1 and num_prompt_tokens < limit:
            # vLLM does not start with a pool that its longest prompt does not fit in; labs on eviction need one.
            raise Refusal(f"a prompt of {num_prompt_tokens} tokens; accepted: fewer than the pool's {self.num_pool_tokens}")
        if granted < 1:
            raise _with_parameter(f"{name} must be at least 1, got {granted}.", name, granted)
        return granted

    def no_prompts(self) -> Refusal:
        return Refusal("You must pass at least one prompt")

    def empty_prompt(self) -> Refusal:
        return Refusal("The decoder prompt cannot be empty")

    def check_temperature(self, temperature: float) -> None:
        if temperature > 2:
            raise _with_parameter(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)

    def error_body(self, refusal: Refusal) -> dict[str, Any]:
        return {"error": refusal.fields()}

    def error_event(self, refusal: Refusal) -> dict[str, Any]:
        return self.error_body(refusal)


def _check_salt(cache_salt: Any) -> None:
    # Neither message repeats the salt.
    if not isinstance(cache_salt, str) or not cache_salt:
        raise _with_parameter("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    if len(cache_salt) > _MAX_SALT_LENGTH or any(character in cache_salt for character in _REFUSED_IN_SALT):
        raise _with_parameter(
            f"Parameter 'cache_salt' must be at most {_MAX_SALT_LENGTH} characters and must not contain"
            " '@', '/', '\\\\', or NUL.",
            "cache_salt",
        )


def _with_parameter(message: str, parameter: str, value: Any = None) -> Refusal:
    told = f"parameter={parameter}" + ("" if value is None else f", value={value}")
    return Refusal(f"{message} ({told})", param=parameter)
