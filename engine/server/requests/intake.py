"""Intake: bodies -> jobs. It reads, checks, tokenizes and names the blocks; nothing is queued yet.

All of it may run outside the event loop and the engine's thread: it changes nothing but its own request. A text's tokens
are those of the checkpoint's tokenizer without special tokens added, as everywhere in this engine.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Sequence

from engine.errors import ConfigError, ModelNotSupported, RequestRefused
from engine.llm_engine import LLMEngine
from engine.request import Request, SamplingParams
from engine.server.requests.chat_messages import read_messages
from engine.server.requests.job import Job
from engine.server.requests.json_body import invalid, parse_object
from engine.server.requests.refusal import Refusal, not_supported
from engine.server.requests.request_body import ChatBody, CompletionBody, GenerationBody, NativeBody, NativeSampling, read_fields
from engine.server.requests.server_rules import MAX_PROMPTS, ServerRules
from engine.server.requests.unsupported_fields import refuse_unsupported

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer

_DEFAULT_MAX_TOKENS = 16  # of a completion, in both servers
_DEFAULT_NATIVE_MAX_TOKENS = 128


class Intake:
    """Reads requests for one engine.

    rules  what the flavor of server accepts
    text   the tokenizer
    """

    def __init__(self, engine: LLMEngine, rules: ServerRules, text: TextTokenizer) -> None:
        self._engine = engine
        self._rules = rules
        self._text = text
        hf_tokenizer = getattr(text, "hf_tokenizer", None)
        self._has_special_tokens = hf_tokenizer is not None and hf_tokenizer.num_special_tokens_to_add() > 0
        self._random = Random()  # ids need to differ, not to be secret

    def completion(self, body: bytes) -> Job:
        """POST /v1/completions. Raises Refusal."""
        fields = parse_object(body)
        refuse_unsupported(fields)
        asked = read_fields(CompletionBody, fields)
        model = self._rules.model_name(asked.model)
        if asked.add_special_tokens and self._has_special_tokens:
            raise not_supported("add_special_tokens", "false; or the tokens' ids, or their texts in the prompt")
        prompts = self.read_prompts(asked.prompt)
        max_tokens = _DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
        if asked.logprobs is not None and asked.logprobs < 0:
            raise Refusal(f"logprobs is {asked.logprobs}; accepted: 0 to 20", param="logprobs")
        return self._job(asked, model, prompts, max_tokens, asked.logprobs, "completion")

    def chat(self, body: bytes) -> Job:
        """POST /v1/chat/completions. Raises Refusal."""
        fields = parse_object(body)
        refuse_unsupported(fields)
        asked = read_fields(ChatBody, fields)
        model = self._rules.model_name(asked.model)
        token_ids = self.read_chat(asked.messages, asked.add_generation_prompt is not False)
        has_new_name = asked.max_completion_tokens is not None
        max_tokens = asked.max_completion_tokens if has_new_name else asked.max_tokens
        if asked.top_logprobs and not asked.logprobs:
            raise Refusal("when using `top_logprobs`, `logprobs` must be set to true.", param="top_logprobs")
        num_logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
        name = "max_completion_tokens" if has_new_name else "max_tokens"
        return self._job(asked, model, [token_ids], max_tokens, num_logprobs, "chat", name)

    def native(self, body: bytes) -> Job:
        """SGLang's POST /generate. Raises Refusal."""
        fields = parse_object(body)
        refuse_unsupported(fields)
        if fields.get("stream"):
            raise Refusal("stream is true; accepted: false here, or a stream of /v1/completions", param="stream")
        asked = read_fields(NativeBody, fields)
        if (asked.text is None) == (asked.input_ids is None):
            raise Refusal("text and input_ids; accepted: one of them")
        prompt = asked.text if asked.input_ids is None else asked.input_ids
        prompts = self.read_prompts(prompt)
        is_list = prompt is not prompts[0] and not isinstance(prompt, str)
        params = _native_sampling(asked.sampling_params, is_list)
        if len(prompts) > 1:
            raise Refusal(f"{len(prompts)} prompts; accepted: one here, or a list of them in /v1/completions")
        common = GenerationBody.model_construct(
            temperature=params.temperature, top_p=params.top_p, top_k=params.top_k, seed=params.sampling_seed, stop=params.stop,
            stop_token_ids=params.stop_token_ids, ignore_eos=params.ignore_eos, priority=asked.priority,
            cache_salt=asked.cache_salt, extra_key=asked.extra_key,
        )  # fmt: skip
        max_tokens = _DEFAULT_NATIVE_MAX_TOKENS if params.max_new_tokens is None else params.max_new_tokens
        job = self._job(common, self._rules.model_name(None), prompts, max_tokens, None, "native", "max_new_tokens")
        return replace(job, is_list=is_list)

    def read_prompts(self, value: Any) -> list[list[int]]:
        """Token ids of each prompt: of a text, ids, or a list of either. Raises Refusal."""
        if value is None or value == []:
            raise self._rules.no_prompts()
        prompts = [value] if isinstance(value, str) or (isinstance(value, list) and _is_id(value[0])) else value
        if not isinstance(prompts, list) or len({type(prompt) for prompt in prompts}) > 1:
            raise invalid("prompt: neither a text, nor token ids, nor a list of either", param="prompt")
        if len(prompts) > MAX_PROMPTS:
            raise Refusal(f"{len(prompts)} prompts; accepted: up to {MAX_PROMPTS} in one request", param="prompt")
        return [self._read_prompt(prompt) for prompt in prompts]

    def read_chat(self, messages: Any, add_generation_prompt: bool) -> list[int]:
        """Token ids of a chat, by the model's own template. Raises Refusal, also where the template refuses."""
        checked = read_messages(messages, self._rules.part_separator)
        try:
            return self._text.encode(self._text.render_chat(checked, add_generation_prompt))
        except ModelNotSupported as error:
            raise Refusal(str(error)) from None
        except Exception as error:  # a template is a program: it may raise anything, and say anything of the messages
            raise Refusal(f"the model's chat template does not take these messages ({type(error).__name__})") from None

    def _read_prompt(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            token_ids = self._text.encode(prompt)
        elif isinstance(prompt, list) and all(map(_is_id, prompt)):
            token_ids = prompt
            self._rules.check_token_ids(token_ids)
        else:
            raise invalid("prompt: neither a text, nor token ids, nor a list of either", param="prompt")
        if not token_ids:
            raise self._rules.empty_prompt()
        return token_ids

    def _job(
        self, asked: GenerationBody, model: str, prompts: Sequence[list[int]], max_tokens: int | None, num_logprobs: int | None,
        kind: str, max_tokens_name: str = "max_tokens",
    ) -> Job:  # fmt: skip
        is_streaming = bool(asked.stream)
        options = asked.stream_options
        if options is not None and not is_streaming:
            raise Refusal("Stream options can only be defined when `stream=True`.", param="stream_options")
        if asked.prompt_logprobs is not None and is_streaming:
            raise Refusal("`prompt_logprobs` are not available when `stream=True`.", param="prompt_logprobs")
        if asked.return_tokens_as_token_ids and not self._rules.can_name_tokens_by_id:
            raise not_supported("return_tokens_as_token_ids", "a request without it")
        number = f"{self._random.getrandbits(128):032x}"
        salts = self._rules.salts(asked.cache_salt, asked.extra_key, len(prompts))
        self._rules.check_priority(asked.priority or 0)
        requests = []
        for index, (token_ids, salt) in enumerate(zip(prompts, salts)):
            granted = self._rules.max_tokens(len(token_ids), max_tokens, max_tokens_name)
            params = self._sampling_params(asked, granted, num_logprobs)
            requests.append(self._request(f"{number}-{index}", token_ids, params, salt, asked.priority or 0))
        return Job(
            kind=kind,
            number=number,
            model=model,
            requests=tuple(requests),
            is_streaming=is_streaming,
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
            return_token_ids=bool(asked.return_token_ids),
            names_tokens_by_id=bool(asked.return_tokens_as_token_ids),
            num_logprobs=num_logprobs,
        )

    def _sampling_params(self, asked: GenerationBody, max_tokens: int, num_logprobs: int | None) -> SamplingParams:
        if asked.temperature is not None:
            self._rules.check_temperature(asked.temperature)
        stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
        chosen = {
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "top_k": asked.top_k,
            "seed": asked.seed,
            "ignore_eos": asked.ignore_eos,
            "prompt_logprobs": asked.prompt_logprobs,
        }
        try:
            return SamplingParams(
                max_tokens=max_tokens,
                stop=tuple(stop for stop in stops if stop),  # an empty one stops nothing, in both servers
                stop_token_ids=tuple(asked.stop_token_ids or ()),
                logprobs=num_logprobs,
                **{name: value for name, value in chosen.items() if value is not None},
            )
        except ConfigError as error:
            raise Refusal(str(error), param=error.field) from None

    def _request(self, request_id: str, token_ids: list[int], params: SamplingParams, salt: str | None, priority: int) -> Request:
        try:
            request = self._engine.make_request(token_ids, params, request_id=request_id, cache_salt=salt, priority=priority)
            self._engine.check_request(request)
        except RequestRefused as error:
            raise Refusal(str(error)) from None
        return request


def _native_sampling(value: Any, is_list: bool) -> NativeSampling:
    """Of a list of one prompt also a list of one. Raises Refusal."""
    if isinstance(value, list) and is_list and len(value) == 1:
        value = value[0]
    if value is None:
        return NativeSampling()
    if not isinstance(value, dict):
        message = "sampling_params: Input should be an object, or a list of one beside a list of one prompt"
        raise invalid(message, param="sampling_params")
    refuse_unsupported(value)
    return read_fields(NativeSampling, value)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
