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
from engine.server.requests.native_request import NativeRequest, read_native
from engine.server.requests.refusal import Refusal, not_supported
from engine.server.requests.request_body import ChatBody, CompletionBody, GenerationBody, read_fields
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
        asked = read_fields(CompletionBody, self._fields(body))
        self._rules.check_options(asked)
        model = self._rules.model_name(asked.model)
        if asked.add_special_tokens and self._has_special_tokens:
            raise not_supported("add_special_tokens", "false; or the tokens' ids, or their texts in the prompt")
        prompts = self.read_prompts(asked.prompt)
        max_tokens = _DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens
        num_logprobs = None if asked.logprobs is None else max(asked.logprobs, 0)
        return self._job(asked, model, prompts, max_tokens, num_logprobs, "completion")

    def chat(self, body: bytes) -> Job:
        """POST /v1/chat/completions. Raises Refusal."""
        asked = read_fields(ChatBody, self._fields(body))
        self._rules.check_options(asked)
        model = self._rules.model_name(asked.model)
        token_ids = self.read_chat(asked.messages, asked.add_generation_prompt)
        name, max_tokens = self._rules.chat_max_tokens(asked)
        num_logprobs = max(asked.top_logprobs or 0, 0) if asked.logprobs else None
        return self._job(asked, model, [token_ids], max_tokens, num_logprobs, "chat", name)

    def native(self, body: bytes) -> Job:
        """SGLang's POST /generate. Raises Refusal."""
        native = read_native(parse_object(body))
        prompts = self.read_prompts(native.prompts)
        self._rules.salts(native.asked.cache_salt, native.asked.extra_key, len(prompts))  # refuses lists of another length
        numbers = range(len(prompts))
        jobs = [self._native_job(native, index, prompts[index]) for index in numbers for _ in range(native.num_samples)]
        is_sampled = native.num_samples > 1
        warm_ups = [self._native_job(native, index, prompts[index], 0) for index in numbers] if is_sampled else []
        return replace(
            jobs[0],
            requests=tuple(job.requests[0] for job in jobs),
            numbers=tuple(job.number for job in jobs) if is_sampled or not native.rids else native.rids,
            warm_ups=tuple(job.requests[0] for job in warm_ups),
            warm_up_names=native.rids if is_sampled else (),
            is_list=native.is_list,
        )

    def health_check(self) -> Job:
        """What SGLang computes to see whether it is well: one token, which its frontend does not count."""
        common = GenerationBody.model_construct(temperature=0.0)
        job = self._job(common, self._rules.model_name(None), [[0]], 1, None, "native", "max_new_tokens")
        return replace(job, is_health_check=True)

    def _native_job(self, native: NativeRequest, index: int, token_ids: list[int], max_tokens: int | None = None) -> Job:
        """One answer to one prompt; max_tokens None: as many as were asked for."""
        asked, params = native.asked, native.sampling[index]
        if max_tokens is None:
            is_given = "max_new_tokens" in params.model_fields_set  # null: all that are left
            max_tokens = params.max_new_tokens if is_given else _DEFAULT_NATIVE_MAX_TOKENS
        common = GenerationBody.model_construct(
            temperature=params.temperature, top_p=params.top_p, top_k=params.top_k, seed=params.sampling_seed, stop=params.stop,
            stop_token_ids=params.stop_token_ids, ignore_eos=params.ignore_eos, priority=asked.priority, stream=asked.stream,
            cache_salt=native.of_prompt(index, asked.cache_salt), extra_key=native.of_prompt(index, asked.extra_key),
            prompt_logprobs=native.num_prompt_logprobs,
        )  # fmt: skip
        model, num_logprobs = self._rules.model_name(None), native.num_logprobs
        return self._job(common, model, [token_ids], max_tokens, num_logprobs, "native", "max_new_tokens")

    def read_prompts(self, value: Any) -> list[list[int]]:
        """Token ids of each prompt: of a text, ids, or a list of either. Raises Refusal."""
        if value is None or value == [] or value == "":
            raise self._rules.no_prompts(value)
        prompts = [value] if isinstance(value, str) or (isinstance(value, list) and _is_id(value[0])) else value
        if not isinstance(prompts, list) or len({type(prompt) for prompt in prompts}) > 1:
            raise invalid("prompt: neither a text, nor token ids, nor a list of either", param="prompt")
        if len(prompts) > MAX_PROMPTS:
            raise Refusal(f"{len(prompts)} prompts; accepted: up to {MAX_PROMPTS} in one request", param="prompt")
        return [self._read_prompt(prompt) for prompt in prompts]

    def read_chat(self, messages: Any, add_generation_prompt: bool | None) -> list[int]:
        """Token ids of a chat, by the model's own template. Raises Refusal, also where the template refuses."""
        checked = read_messages(messages, self._rules.part_separator)
        checked = self._rules.chat_messages(checked, add_generation_prompt, self._text)
        try:
            return self._text.encode(self._text.render_chat(checked, add_generation_prompt is not False))
        except ModelNotSupported as error:
            raise Refusal(str(error)) from None
        except Exception as error:  # a template is a program: it may raise anything, and say anything of the messages
            raise Refusal(f"the model's chat template does not take these messages ({type(error).__name__})") from None

    def _fields(self, body: bytes) -> dict[str, Any]:
        """The fields of a body, less those that this server does not know. Raises Refusal for what this engine does not have."""
        fields = {name: value for name, value in parse_object(body).items() if name not in self._rules.ignored_fields}
        refuse_unsupported(fields)
        return fields

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
        number = f"{self._random.getrandbits(128):032x}"
        salts = self._rules.salts(asked.cache_salt, asked.extra_key, len(prompts))
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
            return_cached_tokens_details=bool(asked.return_cached_tokens_details),
            given_id=asked.rid if isinstance(asked.rid, str) else asked.request_id,
            names_tokens_by_id=bool(asked.return_tokens_as_token_ids),
            num_logprobs=num_logprobs,
        )

    def _sampling_params(self, asked: GenerationBody, max_tokens: int, num_logprobs: int | None) -> SamplingParams:
        if asked.temperature is not None:
            self._rules.check_temperature(asked.temperature)
        stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
        self._rules.check_stops(stops)
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
                stop=tuple(stops),
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


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
