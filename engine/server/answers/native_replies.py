"""NativeReplies: answers to SGLang's own POST /generate, field by field as of 0.5.23 (captured in tests/golden/servers).

A stream's events are cumulative: each has all text and ids so far. The cached tokens are always told, whatever the server was
started with. Times are seconds of the day, or between two moments, of the engine's clock.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Callable, Sequence
from uuid import uuid4

from engine.request_output import RequestOutput
from engine.server.answers.ending import Ending, ending_of
from engine.server.answers.piece import Piece
from engine.server.answers.sglang_logprobs import NativeLogprobsText, native_logprobs
from engine.server.requests.job import Job

if TYPE_CHECKING:
    from engine.model.tokenizer import TextTokenizer


class NativeReplies:
    """Jobs and outputs -> JSON objects."""

    def __init__(self, text: TextTokenizer) -> None:
        self._text = text

    def whole(self, job: Job, outputs: Sequence[RequestOutput]) -> dict[str, Any] | list[dict[str, Any]]:
        """The whole answer."""
        replies = []
        for index, (request, output) in enumerate(zip(job.requests, outputs)):
            ending, times = ending_of(output, request.sampling_params, self._text), _Times(output)
            logprobs = {} if job.num_logprobs is None else native_logprobs(output, job.num_logprobs)
            meta_info = {**_begun(job, index, output, times, ending, logprobs), **times.of_ended_at_once()}
            replies.append({"text": output.text or "", "output_ids": output.output_token_ids, "meta_info": meta_info})
        return replies if job.is_list else replies[0]

    def events_of(self, job: Job) -> Callable[[Job, Piece], list[str]]:
        """Writes the events of one stream as JSON: one for each piece."""
        mark, num_top = uuid4().hex, job.num_logprobs  # a mark that no text and no name has
        if num_top is None:
            return lambda job, piece: [_json(self._event(job, piece, {}))]
        texts = [NativeLogprobsText(num_top) for _ in job.requests]

        def events(job: Job, piece: Piece) -> list[str]:
            event = _json(self._event(job, piece, {mark: 0}))
            return [event.replace(f'"{mark}":0', texts[piece.index].members(piece.output))]

        return events

    def _event(self, job: Job, piece: Piece, logprobs: dict[str, Any]) -> dict[str, Any]:
        """Of several answers each event says whose it is."""
        output, times = piece.output, _Times(piece.output)
        meta_info = _begun(job, piece.index, output, times, piece.ending, logprobs)
        if piece.is_first:
            meta_info |= {"response_sent_to_client_ts": times.now_ts} if piece.ending is None else times.of_ended_at_once()
        elif piece.ending is not None:
            meta_info |= times.of_ended_stream()
        event = {"text": piece.text_so_far, "output_ids": output.output_token_ids, "meta_info": meta_info}
        return event | ({"index": piece.index} if job.is_list else {})

    def last_events(self, job: Job, outputs: Sequence[RequestOutput]) -> list[dict[str, Any]]:
        """Nothing: each answer's last event has its counts."""
        return []


class _Times:
    """Moments of one request; `_s` on the engine's clock, `_ts` by the time of day."""

    def __init__(self, output: RequestOutput) -> None:
        metrics = output.metrics
        self._metrics = metrics
        stamps = metrics.token_times_s or [metrics.arrival_s]
        self._first_s = stamps[0]
        self._end_s = stamps[-1] if metrics.finished_s is None else metrics.finished_s
        self._scheduled_s = self._end_s if metrics.first_scheduled_s is None else metrics.first_scheduled_s
        self.now_ts = time.time()
        offset_s = self.now_ts - self._end_s
        self._arrival_ts = metrics.arrival_s + offset_s
        self.scheduled_ts = self._scheduled_s + offset_s
        self.first_ts = self._first_s + offset_s

    @property
    def queue_s(self) -> float:
        return self._scheduled_s - self._metrics.arrival_s

    def of_ended_at_once(self) -> dict[str, Any]:
        """What is told of an ended request only, in the only thing sent about it."""
        return {**self._of_ended(), **self._end(), "response_sent_to_client_ts": self.now_ts}

    def of_ended_stream(self) -> dict[str, Any]:
        """The same in the last of several events: the first was sent long ago."""
        return {**self._of_ended(), "response_sent_to_client_ts": self.first_ts, **self._end()}

    def _of_ended(self) -> dict[str, Any]:
        return {
            "e2e_latency": self._end_s - self._metrics.arrival_s,
            "request_received_ts": self._arrival_ts,
            "first_token_latency": self._first_s - self._metrics.arrival_s,
            "api_server_dispatch_finish_ts": self._arrival_ts,
        }

    def _end(self) -> dict[str, Any]:
        """Tokens per second after the first, where there is such a time."""
        tpot_s = self._metrics.tpot_s
        return {"request_finished_ts": self.now_ts} | ({"decode_throughput": 1 / tpot_s} if tpot_s else {})


def _begun(
    job: Job, index: int, output: RequestOutput, times: _Times, ending: Ending | None, logprobs: dict[str, Any]
) -> dict[str, Any]:
    """What is told of every request, ended (`ending`) or not."""
    cached, num_output = output.num_cached_tokens, len(output.output_token_ids)
    versions = [{"version": "default", "start": 0, "end": num_output}]
    return {
        "id": job.names[index],
        "finish_reason": None if ending is None else _reason(ending, num_output),
        "prompt_tokens": len(output.prompt_token_ids),
        "weight_version": "default",
        "num_retractions": job.requests[index].num_preemptions,
        "storage_prefetch_wait": 0.0,
        "storage_staging_wait": 0.0,
        "forward_entry_time": times.scheduled_ts,
        "prefill_finished_time": times.first_ts,
        "queue_time": times.queue_s,
        **logprobs,
        "reasoning_tokens": 0,
        "completion_tokens": num_output,
        "cached_tokens": cached,
        **({} if ending is None else {"weight_versions": versions}),
        "cached_tokens_details": {"device": cached, "host": 0} if cached else None,
        "dp_rank": None,
    }


def _reason(ending: Ending, num_output: int) -> dict[str, Any]:
    if ending.finish_reason == "length":
        return {"type": "length", "length": num_output}
    if ending.finish_reason == "stop":
        return {"type": "stop", "matched": ending.matched}
    return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}


def _json(event: dict[str, Any]) -> str:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))
