"""SGLangReplies: answers in the shape of SGLang 0.5.23's server, field by field (captured in tests/golden/servers)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from engine.llm_engine import LLMEngine
from engine.request_output import RequestOutput
from engine.server.answers.ending import Ending, ending_of
from engine.server.answers.piece import Piece
from engine.server.answers.sglang_logprobs import chat_logprobs, completion_logprobs
from engine.server.options import ServerOptions
from engine.server.requests.job import Job

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer


class SGLangReplies:
    """Jobs and outputs -> JSON objects."""

    def __init__(self, options: ServerOptions, engine: LLMEngine, text: TextTokenizer) -> None:
        self._options = options
        self._text = text

    def completion(self, job: Job, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The whole answer to /v1/completions."""
        choices = []
        for index, (request, output) in enumerate(zip(job.requests, outputs)):
            logprobs = None
            if job.num_logprobs is not None:
                logprobs = completion_logprobs(self._text, output.logprobs or [], job.num_logprobs)
            ending = ending_of(output, request.sampling_params, self._text)
            choice = {"index": index, "text": output.text or "", "logprobs": logprobs, **_reasons(ending)}
            choices.append(choice | _token_ids(job, output.output_token_ids, output.prompt_token_ids))
        return {**_head(job, "text_completion"), "choices": choices, **self._tail(job, outputs)}

    def completion_chunks(self, job: Job, piece: Piece) -> list[dict[str, Any]]:
        """The chunk of a streamed completion, with an empty text where a token brings only a part of a character."""
        logprobs = None
        if job.num_logprobs is not None:
            logprobs = completion_logprobs(self._text, piece.logprobs, job.num_logprobs)
        choice = {"index": piece.index, "text": piece.text, "logprobs": logprobs, **_reasons(piece.ending)}
        choice |= _token_ids(job, piece.token_ids, piece.output.prompt_token_ids if piece.is_first else None)
        usage = None
        if job.continuous_usage:
            usage = {**self._usage([piece.output]), "prompt_tokens_details": None}
        return [{**_head(job, "text_completion", piece.index), "choices": [choice], "usage": usage}]

    def chat(self, job: Job, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The whole answer to /v1/chat/completions."""
        (output,), (request,) = outputs, job.requests
        message = {"role": "assistant", "content": output.text or "", "reasoning_content": None}
        logprobs = None
        if job.num_logprobs is not None:
            logprobs = chat_logprobs(self._text, output.logprobs or [], job.num_logprobs)
        ending = ending_of(output, request.sampling_params, self._text)
        choice = {"index": 0, "message": message, "logprobs": logprobs, **_reasons(ending)}
        if job.return_token_ids:
            choice |= {"prompt_token_ids": output.prompt_token_ids, "response_token_ids": output.output_token_ids}
        return {**_head(job, "chat.completion"), "choices": [choice], **self._tail(job, outputs)}

    def chat_chunks(self, job: Job, piece: Piece) -> list[dict[str, Any]]:
        """Chunks of a streamed chat: the role, the text, and the reason it ended in a chunk of its own.

        Log-probabilities of tokens that add no text are not told, as there.
        """
        chunks = []
        if piece.is_first:
            chunks.append(_delta(job, {"role": "assistant", "content": ""}))
        if piece.text:
            logprobs = None
            if job.num_logprobs is not None and piece.logprobs:
                logprobs = chat_logprobs(self._text, piece.logprobs, job.num_logprobs)
            chunk = _delta(job, {"content": piece.text}, logprobs=logprobs)
            chunks.append(chunk | ({"usage": self._usage([piece.output])} if job.continuous_usage else {}))
        if piece.ending is not None:
            chunks.append(_delta(job, {}, ending=piece.ending))
        return chunks

    def last_chunks(self, job: Job, outputs: Sequence[RequestOutput]) -> list[dict[str, Any]]:
        """The end of a stream: where the cached tokens lay, if there are any, then the counts; each only if asked for."""
        is_chat = job.kind == "chat"
        head = {**_head(job, "chat.completion.chunk" if is_chat else "text_completion"), "choices": []}
        extensions = [extension for extension in (_extension(job, output) for output in outputs) if extension]
        chunks = [{**head, "usage": None, **extension} for extension in extensions[:1]]
        if job.include_usage:
            usage = self._usage(outputs)
            if not is_chat:
                usage = {name: value for name, value in usage.items() if value is not None}
            chunks.append({**head, "usage": usage})
        return chunks

    def _usage(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
        num_output = sum(len(output.output_token_ids) for output in outputs)
        cached = {"cached_tokens": sum(output.num_cached_tokens for output in outputs)}
        return {
            "prompt_tokens": num_prompt,
            "total_tokens": num_prompt + num_output,
            "completion_tokens": num_output,
            "prompt_tokens_details": cached if self._options.cache_report else None,
            "reasoning_tokens": 0,
            "completion_tokens_details": None,
        }

    def _tail(self, job: Job, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        versions = [{"version": "default", "start": 0, "end": len(outputs[0].output_token_ids)}]
        metadata = {"weight_version": "default", "weight_versions": versions}
        return {"usage": self._usage(outputs), "metadata": metadata, **_extension(job, outputs[0])}


def _head(job: Job, kind: str, index: int = 0) -> dict[str, Any]:
    return {"id": _reply_id(job, index), "object": kind, "created": job.created_s, "model": job.model}


def _reply_id(job: Job, index: int) -> str:
    if job.given_id is None:
        return job.number
    return job.given_id if len(job.requests) == 1 else f"{job.given_id}_{index}"


def _delta(
    job: Job, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, ending: Ending | None = None
) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"reasoning_content": None, **delta}, "logprobs": logprobs, **_reasons(ending)}
    return {**_head(job, "chat.completion.chunk"), "choices": [choice]}


def _extension(job: Job, output: RequestOutput) -> dict[str, Any]:
    """Where the cached tokens lay, in SGLang's own part of a reply; nothing when there are none, or nobody asked."""
    if not job.return_cached_tokens_details or not output.num_cached_tokens:
        return {}
    return {"sglext": {"cached_tokens_details": {"device": output.num_cached_tokens, "host": 0}}}


def _reasons(ending: Ending | None) -> dict[str, Any]:
    if ending is None:
        return {"finish_reason": None, "matched_stop": None}
    return {"finish_reason": ending.finish_reason, "matched_stop": ending.matched}


def _token_ids(job: Job, output_ids: Sequence[int], prompt_ids: Sequence[int] | None) -> dict[str, Any]:
    if not job.return_token_ids:
        return {}
    return {"token_ids": list(output_ids)} | ({} if prompt_ids is None else {"prompt_token_ids": list(prompt_ids)})
