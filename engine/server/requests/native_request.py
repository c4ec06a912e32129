"""NativeRequest: a body of SGLang's own POST /generate, read: its prompts, and of each its name and how to sample.

    {"text": [p, q], "sampling_params": {"n": 2}}   →   answers to p, p, q, q

Its refusals have two shapes. A field of a wrong type, or a body that is no JSON, is told as everywhere ("Bad Request"); anything
else is a bare message. A sampling parameter of no known name is told in the words of the real server's schema.
Kept refused, though the real one serves it: an empty text, which has nothing to compute.

Source: SGLang 0.5.23, srt/managers/io_struct.py (GenerateReqInput), srt/sampling/sampling_params.py (verify), and its replies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from engine.server.requests.json_body import invalid
from engine.server.requests.refusal import Refusal, not_supported
from engine.server.requests.request_body import NativeBody, NativeSampling, read_fields
from engine.server.requests.server_rules import MAX_PROMPTS
from engine.server.requests.unsupported_fields import refuse_unsupported

# All that the schema knows, in its order.
_KNOWN = (
    "max_new_tokens", "stop", "stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "min_new_tokens", "n", "json_schema", "regex", "ebnf", "structural_tag",
    "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "stream_interval", "logit_bias",
    "sampling_seed", "custom_params", "beam_width", "watermark", "choice",
)  # fmt: skip
_MAX_SAMPLED = 128  # a few bytes ask for many requests, each of which has a prompt of its own
_NOT_HERE = ("custom_params", "beam_width", "choice")  # beside those that no route here has


class UnknownSamplingField(Refusal):
    """A sampling parameter that the schema does not know."""


@dataclass(frozen=True)
class NativeRequest:
    """What was asked for.

    prompts   a text, or the list of texts, token ids or lists of them that was sent
    sampling  of each prompt
    rids      the client's name for each prompt; empty when it gave none
    """

    asked: NativeBody = field(repr=False)
    prompts: Any = field(repr=False)
    sampling: tuple[NativeSampling, ...]
    rids: tuple[str, ...]
    num_samples: int  # answers to each prompt
    is_list: bool  # answered with a list

    @property
    def num_logprobs(self) -> int | None:
        """Candidates told with each output token; None: no log-probabilities."""
        return max(0, self.asked.top_logprobs_num or 0) if self.asked.return_logprob else None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same of each prompt token: they are computed anew, so nothing cached is read."""
        return self.num_logprobs if self.asked.logprob_start_len == 0 else None

    def of_prompt(self, index: int, value: Any) -> Any:
        """Of a field that has one value for all prompts or a list with one for each: that of this prompt, as a single one's."""
        return value[index] if self.is_list and isinstance(value, list) else value


def read_native(fields: dict[str, Any]) -> NativeRequest:
    """Raises Refusal; the tokens of the prompts, and whether they fit, are looked at elsewhere."""
    refuse_unsupported({name: value for name, value in fields.items() if name != "return_logprob"})
    asked = read_fields(NativeBody, fields)
    _check_logprobs(fields, asked)
    if asked.text is None and asked.input_ids is None:
        raise Refusal("Either text, input_ids or input_embeds should be provided.")
    prompts = asked.text if asked.input_ids is None else asked.input_ids  # of both the ids win
    if prompts == []:
        raise Refusal("input_ids cannot be empty.")
    is_batch = isinstance(prompts, list) and not isinstance(prompts[0], int)
    num_prompts = len(prompts) if is_batch else 1
    if num_prompts > MAX_PROMPTS:
        raise Refusal(f"{num_prompts} prompts; accepted: up to {MAX_PROMPTS} in one request")
    sampling, num_samples = _read_sampling(asked.sampling_params, num_prompts, is_batch)
    if num_samples > 1 and num_prompts * num_samples > _MAX_SAMPLED:
        raise Refusal(f"{num_prompts} prompts with n {num_samples}; accepted: up to {_MAX_SAMPLED} answers with n", param="n")
    is_list = is_batch or num_samples > 1
    return NativeRequest(asked, prompts, sampling, _read_rids(asked.rid, num_prompts, is_list), num_samples, is_list)


def _check_logprobs(fields: dict[str, Any], asked: NativeBody) -> None:
    if not asked.return_logprob:
        return
    for name in ("token_ids_logprob", "return_text_in_logprobs"):
        if fields.get(name):
            raise not_supported(name, "a request without it")
    if asked.logprob_start_len not in (None, -1, 0):
        raise Refusal(
            f"logprob_start_len is {asked.logprob_start_len}; accepted: -1, for the output alone, or 0, for the whole prompt too",
            param="logprob_start_len",
        )


def _read_sampling(value: Any, num_prompts: int, is_batch: bool) -> tuple[tuple[NativeSampling, ...], int]:
    """Of each prompt, and the `n` that they share."""
    values = value if is_batch and isinstance(value, list) else [value or {}] * num_prompts
    if len(values) != num_prompts or not all(isinstance(one, dict) for one in values):
        message = "sampling_params: Input should be an object, or beside a list of prompts a list with one for each"
        raise invalid(message, param="sampling_params")
    numbers = {one.get("n", 1) if isinstance(one.get("n", 1), int) else None for one in values}
    if len(numbers) > 1:
        raise Refusal("The parallel_sample_num should be the same for all samples in sample params.")
    (number,) = numbers
    if number is None:
        raise invalid("n: Input should be a valid integer", param="n")
    return tuple(_read_one(one) for one in values), max(1, number)  # 0 answers are one, there too


def _read_one(value: dict[str, Any]) -> NativeSampling:
    unknown = next((name for name in value if name not in _KNOWN), None)
    if unknown is not None:
        known = ", ".join(f"`{name}`" for name in _KNOWN)
        shown = unknown[:64] if unknown.isidentifier() else "?"
        raise UnknownSamplingField(f"unknown field `{shown}`, expected one of {known}")
    refuse_unsupported({name: one for name, one in value.items() if name != "n"})
    for name in _NOT_HERE:
        if value.get(name) is not None:
            raise not_supported(name, "a request without it")
    sampling = read_fields(NativeSampling, value)
    if sampling.temperature is not None and not 0 <= sampling.temperature < float("inf"):
        shown = _told(sampling.temperature)
        raise Refusal(f"temperature must be a non-negative finite number, got {shown}.", param="temperature")
    if sampling.top_p is not None and not 0 < sampling.top_p <= 1:
        raise Refusal(f"top_p must be in (0, 1], got {_told(sampling.top_p)}.", param="top_p")
    if sampling.top_k is not None and sampling.top_k < 1 and sampling.top_k != -1:
        raise Refusal(f"top_k must be -1 (disable) or at least 1, got {sampling.top_k}.", param="top_k")
    if sampling.max_new_tokens is not None and sampling.max_new_tokens < 0:
        raise Refusal(f"max_new_tokens must be at least 0, got {sampling.max_new_tokens}.", param="max_new_tokens")
    return sampling


def _told(number: float) -> str:
    """A number that was read, not what was sent, which may be megabytes of digits in quotes; -1 and not -1.0, as there."""
    return repr(number).removesuffix(".0")


def _read_rids(value: str | list[str] | None, num_prompts: int, is_list: bool) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(f"{value}_{index}" for index in range(num_prompts)) if is_list else (value,)
    if len(value) != num_prompts:
        raise Refusal("The specified rids length mismatch with the batch_size for batch processing.", param="rid")
    if len(set(value)) != len(value):
        raise Refusal("Duplicate request IDs detected within the request.", param="rid")
    return tuple(value)
