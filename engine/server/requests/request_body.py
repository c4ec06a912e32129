"""Bodies of requests as the clients of both servers write them. Unknown fields are ignored, as there.

Numbers in quotes are read as numbers, as there. Prompts, messages and salts are looked at one by one elsewhere: what may be
wrong with them is worth better words than a type error.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.server.requests.json_body import invalid

_Int = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
_TokenIds = Annotated[list[_Int], Field(fail_fast=True, max_length=1024)]
_Texts = Annotated[list[str], Field(fail_fast=True, max_length=64)]


class StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerationBody(BaseModel):
    """What completions and chats have in common."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    model: str | None = None
    max_tokens: _Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: _Int | None = None
    seed: _Int | None = None
    stop: str | _Texts | None = None
    stop_token_ids: _TokenIds | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: _Int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None  # vLLM's
    priority: _Int | None = None  # lower is earlier; no effect but with the policy priority, and no error, as in both servers
    cache_salt: Any = None
    extra_key: Any = None  # SGLang's second namespace
    request_id: str | None = None  # vLLM's: what the reply's id is made of
    return_cached_tokens_details: bool | None = None  # SGLang's
    rid: str | list[str] | None = None  # SGLang's: the request's id, as the client wants it


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Any = None  # a text, token ids, or a list of either
    add_special_tokens: bool | None = None
    logprobs: _Int | None = None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Any = None
    max_completion_tokens: _Int | None = None
    logprobs: bool | None = None
    top_logprobs: _Int | None = None
    add_generation_prompt: bool | None = None


class NativeSampling(BaseModel):
    """`sampling_params` of SGLang's own POST /generate."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    max_new_tokens: _Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: _Int | None = None
    sampling_seed: _Int | None = None
    stop: str | _Texts | None = None
    stop_token_ids: _TokenIds | None = None
    ignore_eos: bool | None = None


class NativeBody(BaseModel):
    """SGLang's own POST /generate."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    text: Any = None
    input_ids: Any = None
    sampling_params: Any = None
    stream: bool | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | None = None
    logprob_start_len: _Int | None = None
    top_logprobs_num: _Int | None = None
    priority: _Int | None = None
    cache_salt: Any = None
    extra_key: Any = None


class AbortBody(BaseModel):
    """POST /abort_request of SGLang."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    rid: str | None = None
    abort_all: bool = False


class TokenizeBody(BaseModel):
    """POST /tokenize."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    model: str | None = None
    prompt: Any = None
    messages: Any = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    model: str | None = None
    tokens: Any = None
    skip_special_tokens: bool | None = None  # SGLang's; vLLM never skips them


Body = TypeVar("Body", bound=BaseModel)


def read_fields(kind: type[Body], fields: dict[str, Any]) -> Body:
    """A body of that kind. Raises Refusal, naming the first field that cannot be read."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(first["loc"][0]) if first["loc"] else "body"
        # Pydantic names the class it wanted, which says nothing to a client.
        message = "Input should be an object" if first["type"].startswith("model_") else first["msg"]
        raise invalid(f"{name}: {message}", param=name) from None
