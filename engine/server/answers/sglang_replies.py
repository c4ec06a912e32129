"""SGLangReplies: answers in the shape of SGLang 0.5.23's server, field by field (captured in tests/golden/servers)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Sequence

from engine.llm_engine import LLMEngine
from engine.request_output import RequestOutput
from engine.server.answers.ending import Ending, ending_of
from engine.server.answers.logprob_lists import chat_logprobs, completion_logprobs
from engine.server.answers.piece import Piece
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
        """One chunk of a streamed completion; none while there is nothing to tell."""
        if not _tells(job, piece):
            return []
        logprobs = None
        if job.num_logprobs is not None:
            logprobs = completion_logprobs(self._text, piece.logprobs, job.num_logprobs, piece.text_offset)
        choice = {"index": piece.index, "text": piece.text, "logprobs": logprobs, **_reasons(piece.ending)}
        choice |= _token_ids(job, piece.token_ids, piece.output.prompt_token_ids if piece.is_first else None)
        return [self._chunk(job, "text_completion", choice, piece)]

    def chat(self, job: Job, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The whole answer to /v1/chat/completions."""
        (output,), (request,) = outputs, job.requests
        message = {"role": "assistant", "content": output.text or "", "reasoning_content": None}
        logprobs = None
        if job.num_logprobs is not None:
            logprobs = chat_logprobs(self._text, output.logprobs or [], job.num_logprobs)
        ending = ending_of(output, request.sampling_params, self._text)
        choice = {"index": 0, "message": message, "logprobs": logprobs, **_reasons(ending)}
        choice |= _token_ids(job, output.output_token_ids, output.prompt_token_ids)
        return {**_head(job, "chat.completion"), "choices": [choice], **self._tail(job, outputs)}

    def chat_chunks(self, job: Job, piece: Piece) -> list[dict[str, Any]]:
        """Chunks of a streamed chat: the role, the text, and the reason it ended in a chunk of its own."""
        chunks = []
        if piece.is_first:
            chunks.append(self._delta(job, piece, role="assistant", content=""))
        has_logprobs = job.num_logprobs is not None and piece.logprobs
        if piece.text or has_logprobs:
            logprobs = chat_logprobs(self._text, piece.logprobs, job.num_logprobs or 0) if has_logprobs else None
            chunks.append(self._delta(job, piece, content=piece.text, logprobs=logprobs))
        if piece.ending is not None:
            chunks.append(self._delta(job, piece, ending=piece.ending))
        return chunks

    def usage_chunk(self, job: Job, outputs: Sequence[RequestOutput], first: RequestOutput) -> dict[str, Any]:
        """The last chunk of a stream that asked for counts."""
        kind = "chat.completion.chunk" if job.kind == "chat" else "text_completion"
        usage = self._usage(outputs)
        del usage["completion_tokens_details"]
        return {**_head(job, kind), "choices": [], "usage": usage}

    def native(self, job: Job, outputs: Sequence[RequestOutput]) -> dict[str, Any] | list[dict[str, Any]]:
        """The whole answer to SGLang's own /generate: the cached tokens are always told."""
        (output,), (request,) = outputs, job.requests
        metrics, now_s = output.metrics, time.time()
        end_s = metrics.finished_s if metrics.finished_s is not None else metrics.arrival_s
        offset_s = now_s - end_s  # from the engine's clock to the time of day
        first_s = metrics.token_times_s[0] if metrics.token_times_s else end_s
        scheduled_s = metrics.first_scheduled_s if metrics.first_scheduled_s is not None else end_s
        cached = output.num_cached_tokens
        meta_info = {
            "id": job.number,
            "finish_reason": _native_reason(ending_of(output, request.sampling_params, self._text), output),
            "prompt_tokens": len(output.prompt_token_ids),
            "weight_version": "default",
            "num_retractions": request.num_preemptions,
            "storage_prefetch_wait": 0.0,
            "storage_staging_wait": 0.0,
            "forward_entry_time": scheduled_s + offset_s,
            "prefill_finished_time": first_s + offset_s,
            "queue_time": scheduled_s - metrics.arrival_s,
            "reasoning_tokens": 0,
            "completion_tokens": len(output.output_token_ids),
            "cached_tokens": cached,
            "weight_versions": [{"version": "default", "start": 0, "end": len(output.output_token_ids)}],
            "cached_tokens_details": {"device": cached, "host": 0} if cached else None,
            "dp_rank": None,
            "e2e_latency": end_s - metrics.arrival_s,
            "request_received_ts": metrics.arrival_s + offset_s,
            "first_token_latency": first_s - metrics.arrival_s,
            "api_server_dispatch_finish_ts": metrics.arrival_s + offset_s,
            "request_finished_ts": end_s + offset_s,
            "response_sent_to_client_ts": now_s,
        }
        reply = {"text": output.text or "", "output_ids": output.output_token_ids, "meta_info": meta_info}
        return [reply] if job.is_list else reply

    def _delta(
        self, job: Job, piece: Piece, *, role: str | None = None, content: str | None = None,
        logprobs: dict[str, Any] | None = None, ending: Ending | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        delta = {"reasoning_content": None, "role": role, "content": content}
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, **_reasons(ending)}
        return self._chunk(job, "chat.completion.chunk", choice, piece)

    def _chunk(self, job: Job, kind: str, choice: dict[str, Any], piece: Piece) -> dict[str, Any]:
        usage = self._usage([piece.output]) if job.continuous_usage else None
        return {**_head(job, kind), "choices": [choice], "usage": usage}

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
        return {"usage": self._usage(outputs), "metadata": {"weight_version": "default", "weight_versions": versions}}


def _head(job: Job, kind: str) -> dict[str, Any]:
    return {"id": job.number, "object": kind, "created": job.created_s, "model": job.model}


def _reasons(ending: Ending | None) -> dict[str, Any]:
    if ending is None:
        return {"finish_reason": None, "matched_stop": None}
    return {"finish_reason": ending.finish_reason, "matched_stop": ending.matched}


def _native_reason(ending: Ending, output: RequestOutput) -> dict[str, Any]:
    if ending.finish_reason == "length":
        return {"type": "length", "length": len(output.output_token_ids)}
    if ending.finish_reason == "stop":
        return {"type": "stop", "matched": ending.matched}
    return {"type": "abort", "message": "Aborted"}


def _token_ids(job: Job, output_ids: Sequence[int], prompt_ids: Sequence[int] | None) -> dict[str, Any]:
    if not job.return_token_ids:
        return {}
    return {"token_ids": list(output_ids)} | ({} if prompt_ids is None else {"prompt_token_ids": list(prompt_ids)})


def _tells(job: Job, piece: Piece) -> bool:
    has_more = piece.token_ids and (job.return_token_ids or job.num_logprobs is not None)
    return bool(piece.text or piece.ending is not None or has_more)
