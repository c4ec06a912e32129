"""VLLMReplies: answers in the shape of vLLM 0.32.0's server, field by field (captured in tests/golden/servers)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Sequence

from engine.llm_engine import LLMEngine
from engine.request_output import RequestOutput
from engine.runner import TokenLogprobs
from engine.server.answers.ending import Ending, ending_of
from engine.server.answers.piece import Piece
from engine.server.answers.vllm_logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from engine.server.options import ServerOptions
from engine.server.requests.job import Job

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer


class VLLMReplies:
    """Jobs and outputs -> JSON objects."""

    def __init__(self, options: ServerOptions, engine: LLMEngine, text: TextTokenizer) -> None:
        self._options = options
        self._text = text
        self._unit_size = engine.manager.unit_size if engine.manager.caching_enabled else None
        self._fingerprint = "vllm-0.32.0-" + hashlib.sha256(repr(engine.config).encode()).hexdigest()[:8]

    def completion(self, job: Job, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The whole answer to /v1/completions."""
        # Of several prompts the last one's cached tokens are told: the real server's way, and a trap.
        details = self._details(outputs[-1])
        return {
            **_head(job, "text_completion"),
            "choices": [self._choice(job, index, output) for index, output in enumerate(outputs)],
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": {**_counts(job, outputs), "prompt_tokens_details": details, "completion_tokens_details": None},
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def completion_chunks(self, job: Job, piece: Piece) -> list[dict[str, Any]]:
        """The chunk of a streamed completion; it tells that there is a new token even where its text is held back."""
        finish_reason, stop_reason = _reasons(piece.ending)
        choice = {
            "index": piece.index,
            "text": piece.text,
            "logprobs": self._completion_logprobs(job, piece.logprobs, piece.text_offset, _ids_before(piece)),
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
            "prompt_token_ids": piece.output.prompt_token_ids if job.return_token_ids and piece.is_first else None,
            "token_ids": list(piece.token_ids) if job.return_token_ids else None,
        }
        return [self._chunk(job, "text_completion", choice, piece)]

    def chat(self, job: Job, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        """The whole answer to /v1/chat/completions."""
        (output,), (request,) = outputs, job.requests
        finish_reason, stop_reason = _reasons(ending_of(output, request.sampling_params, self._text))
        message = {"role": "assistant", "content": output.text or ""}
        message |= dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
            "token_ids": output.output_token_ids if job.return_token_ids else None,
            "routed_experts": None,
        }
        if job.num_logprobs is not None:
            choice["logprobs"] = chat_logprobs(self._text, output.logprobs or [], job.num_logprobs, by_id=job.names_tokens_by_id)
        details = self._details(output, created=True)
        return {
            **_head(job, "chat.completion"),
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": self._fingerprint,
            "usage": {**_counts(job, outputs), "prompt_tokens_details": details, "completion_tokens_details": None},
            "prompt_logprobs": None if output.prompt_logprobs is None else prompt_logprobs(self._text, output.prompt_logprobs),
            "prompt_token_ids": output.prompt_token_ids if job.return_token_ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def chat_chunks(self, job: Job, piece: Piece) -> list[dict[str, Any]]:
        """Chunks of a streamed chat: the role first, then the text, also where it is empty."""
        chunks = []
        if piece.is_first:
            first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            prompt_ids = piece.output.prompt_token_ids if job.return_token_ids else None
            chunks.append(
                {**_head(job, "chat.completion.chunk"), "choices": [first], "prompt_token_ids": prompt_ids, "prompt_text": None}
            )
            if _counts_each(job):
                chunks[0]["usage"] = {**_count(piece.output.prompt_token_ids, ()), "completion_tokens_details": None}
        choice: dict[str, Any] = {"index": 0, "delta": {"content": piece.text}, "logprobs": None, "finish_reason": None}
        if job.num_logprobs is not None:
            choice["logprobs"] = chat_logprobs(
                self._text, piece.logprobs, job.num_logprobs, _ids_before(piece), by_id=job.names_tokens_by_id
            )
        if piece.ending is not None:
            choice["finish_reason"], choice["stop_reason"] = _reasons(piece.ending)
        choice["token_ids"] = list(piece.token_ids) if job.return_token_ids else None
        return [*chunks, self._chunk(job, "chat.completion.chunk", choice, piece)]

    def last_chunks(self, job: Job, outputs: Sequence[RequestOutput]) -> list[dict[str, Any]]:
        """The counts at the end of a stream that asked for them; the cached tokens are those of the prompt that came first."""
        if not job.include_usage:
            return []
        is_chat = job.kind == "chat"
        usage = _counts(job, outputs)
        details = self._details(outputs[0], created=is_chat)
        if details is not None:
            usage["prompt_tokens_details"] = {name: value for name, value in details.items() if value is not None}
        head = _head(job, "chat.completion.chunk" if is_chat else "text_completion")
        return [{**head, "choices": [], "usage": usage, "system_fingerprint": self._fingerprint}]

    def _choice(self, job: Job, index: int, output: RequestOutput) -> dict[str, Any]:
        finish_reason, stop_reason = _reasons(ending_of(output, job.requests[index].sampling_params, self._text))
        return {
            "index": index,
            "text": output.text or "",
            "logprobs": self._completion_logprobs(job, output.logprobs or []),
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
            "token_ids": output.output_token_ids if job.return_token_ids else None,
            "prompt_logprobs": None if output.prompt_logprobs is None else prompt_logprobs(self._text, output.prompt_logprobs),
            "prompt_token_ids": output.prompt_token_ids if job.return_token_ids else None,
            "routed_experts": None,
        }

    def _completion_logprobs(
        self, job: Job, logprobs: Sequence[TokenLogprobs], offset: int = 0, before: Sequence[int] = ()
    ) -> dict[str, Any] | None:
        if job.num_logprobs is None:
            return None
        return completion_logprobs(self._text, logprobs, job.num_logprobs, offset, before, by_id=job.names_tokens_by_id)

    def _chunk(self, job: Job, kind: str, choice: dict[str, Any], piece: Piece) -> dict[str, Any]:
        chunk = {**_head(job, kind), "choices": [choice]}
        if _counts_each(job):
            chunk["usage"] = _count(piece.output.prompt_token_ids, piece.output.output_token_ids)
            if job.kind == "chat":
                chunk["usage"]["completion_tokens_details"] = None
        if piece.ending is not None and not job.include_usage:
            chunk["system_fingerprint"] = self._fingerprint
        return chunk

    def _details(self, output: RequestOutput, created: bool = False) -> dict[str, Any] | None:
        if not self._options.cache_report:
            return None
        created_tokens = None
        if created and self._unit_size is not None:
            # Full blocks of the prompt that are new to the cache.
            full = len(output.prompt_token_ids) // self._unit_size * self._unit_size
            created_tokens = max(0, full - output.num_cached_tokens)
        return {"cached_tokens": output.num_cached_tokens, "created_cache_tokens": created_tokens, "multimodal_tokens": None}


def _head(job: Job, kind: str) -> dict[str, Any]:
    prefix = "chatcmpl-" if job.kind == "chat" else "cmpl-"
    reply_id = prefix + (job.number[:16] if job.given_id is None else job.given_id)
    return {"id": reply_id, "object": kind, "created": job.created_s, "model": job.model}


def _count(prompt_ids: Sequence[int], output_ids: Sequence[int]) -> dict[str, Any]:
    return {
        "prompt_tokens": len(prompt_ids),
        "total_tokens": len(prompt_ids) + len(output_ids),
        "completion_tokens": len(output_ids),
    }


def _counts(job: Job, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    num_prompt = job.num_prompt_tokens
    num_output = sum(len(output.output_token_ids) for output in outputs)
    return {"prompt_tokens": num_prompt, "total_tokens": num_prompt + num_output, "completion_tokens": num_output}


def _reasons(ending: Ending | None) -> tuple[str | None, str | int | None]:
    """Finish reason and stop reason: the model's own end of text is no stop reason."""
    if ending is None:
        return None, None
    return ending.finish_reason, None if ending.is_end_of_text else ending.matched


def _ids_before(piece: Piece) -> Sequence[int]:
    return piece.output.output_token_ids[: -len(piece.token_ids) or None]


def _counts_each(job: Job) -> bool:
    """Whether each chunk has counts: only a stream that has them at its end can."""
    return job.continuous_usage and job.include_usage
