"""VLLMRules: what vLLM 0.32.0's server accepts, and its words where it refuses."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from engine.server.answers.text_stream import whole_characters
from engine.server.requests.json_body import invalid
from engine.server.requests.refusal import Refusal
from engine.server.requests.request_body import ChatBody, CompletionBody, GenerationBody
from engine.server.requests.server_rules import ServerRules

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer
    from engine.server.requests.job import Job

_MAX_STOPS = 4
_SYSTEM_ROLES = ("system", "developer")
_ID_HEADER = "x-request-id"
_PRIORITY_HEADER = "x-vllm-priority"
_MAX_SALT_LENGTH = 128
_REFUSED_IN_SALT = "@/\\\0"


class VLLMRules(ServerRules):
    """Sources: its replies to bad requests (tests/golden/servers), v1/engine and entrypoints of vLLM 0.32.0."""

    part_separator = "\n"
    waits_for_stops = False
    ignored_fields = frozenset({"extra_key", "rid", "return_cached_tokens_details"})

    def model_name(self, asked: str | None) -> str:
        served = self.options.model_name
        if asked and asked != served:
            message = f"The model `{asked[:200]}` does not exist. Valid aliases: {served}."
            raise Refusal(message, status=404, param="model")
        return served

    def check_options(self, asked: GenerationBody) -> None:
        if asked.stream_options is not None and not asked.stream:
            raise _with_parameter("Stream options can only be defined when `stream=True`.", "stream_options")
        if asked.prompt_logprobs is not None and asked.stream:
            raise _with_parameter("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        if isinstance(asked, CompletionBody) and asked.logprobs is not None and asked.logprobs < 0:
            raise Refusal(f"logprobs is {asked.logprobs}; accepted: 0 to 20", param="logprobs")
        if isinstance(asked, ChatBody) and (asked.top_logprobs or 0) < 0:
            raise Refusal(f"top_logprobs is {asked.top_logprobs}; accepted: 0 to 20", param="top_logprobs")
        if isinstance(asked, ChatBody) and asked.top_logprobs and not asked.logprobs:
            raise _with_parameter("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")

    def chat_messages(
        self, messages: list[dict[str, str]], add_generation_prompt: bool | None, text: TextTokenizer
    ) -> list[dict[str, str]]:
        """A template that does not know developers gets the system's messages for theirs, all of them as one, in front."""
        roles = [message["role"] for message in messages]
        if "developer" not in roles or text.knows_developer_role:
            return messages
        told = [message["content"] for message in messages if message["role"] in _SYSTEM_ROLES]
        others = [message for message in messages if message["role"] not in _SYSTEM_ROLES]
        return [{"role": "system", "content": "\n\n".join(filter(None, told))}, *others]

    def chat_max_tokens(self, asked: ChatBody) -> tuple[str, int | None]:
        return "max_tokens", super().chat_max_tokens(asked)[1]  # by its old name, whichever was used

    def salts(self, cache_salt: Any, extra_key: Any, num_prompts: int) -> list[str | None]:
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

    def no_prompts(self, value: Any) -> Refusal:
        if value == []:
            return Refusal("You must pass at least one prompt")
        return _with_parameter("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")

    def empty_prompt(self) -> Refusal:
        return Refusal("The decoder prompt cannot be empty")

    def check_temperature(self, temperature: float) -> None:
        if temperature > 2:
            raise _with_parameter(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)

    def check_stops(self, stops: Sequence[str]) -> None:
        if len(stops) > _MAX_STOPS:
            raise invalid(f"stop: List should have at most {_MAX_STOPS} items after validation, not {len(stops)}", param="stop")
        if not all(stops):
            raise Refusal("stop cannot contain an empty string.")

    def read_headers(self, job: Job, headers: Mapping[str, str]) -> Job:
        """The request's id and its priority; a priority that is no whole number is passed over. Both win over the body's."""
        with suppress(KeyError, ValueError):
            priority = int(headers[_PRIORITY_HEADER])
            for request in job.requests:
                request.priority = priority
        return replace(job, given_id=headers.get(_ID_HEADER, job.given_id))

    def num_held(self, pending: str, stops: Sequence[str]) -> int:
        """As many as a stop text may begin with, whether they do or not."""
        return min(len(pending), max(map(len, stops)) - 1)

    def told_text(self, text: str, token_ids: Sequence[int], tokenizer: TextTokenizer) -> str:
        """Without the first bytes of a character that did not get its last."""
        return whole_characters(tokenizer, text, token_ids)

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
