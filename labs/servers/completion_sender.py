"""CompletionSender: one way to send a prompt to this server, found by asking it: streamed or not, with which fields.

    streamed with usage   a true time to the first token, and counts
    not streamed          where streams are refused, not whole, or come without the counts that a whole reply has
    /generate             SGLang's own, which tells cached tokens without --enable-cache-report

Requests are greedy (temperature 0) and ask to ignore end-of-text and for token ids, unless the server refuses that.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Iterator

from labs.servers.count_request import COMPLETIONS
from labs.servers.prompt_form import PromptForm
from labs.servers.server_client import LimitReached, ServerClient, ServerRefused, StreamEvent
from labs.servers.server_facts import ServerFacts
from labs.servers.server_reply import ABSENT, NO_DETAILS, REPORTED, ServerReply
from labs.targets.base import TargetError, TargetUnavailable

EXTRAS = {"ignore_eos": True, "return_token_ids": True}
GENERATE = "/generate"
TRIAL_TOKENS = 9  # of the prompts that find out the way
_WORTH = (ABSENT, NO_DETAILS, REPORTED)  # what a reply says of cached tokens, worst first


@dataclass(frozen=True)
class SendWay:
    """How requests are sent."""

    is_streamed: bool = True
    has_extras: bool = True
    is_native: bool = False  # by SGLang's /generate

    @property
    def words(self) -> str:
        """For records: "streamed", "whole replies, without ignore_eos and return_token_ids", "/generate, streamed"."""
        how = "streamed" if self.is_streamed else "whole replies"
        how = f"{GENERATE}, {how}" if self.is_native else how
        return how if self.has_extras else f"{how}, without {' and '.join(EXTRAS)}"


@dataclass(frozen=True)
class SendOptions:
    """What one request asks for besides its tokens."""

    max_tokens: int = 1
    cache_salt: str | None = None
    logprob_gaps: bool = False
    prompt_logprobs: bool = False


class CompletionSender:
    """Sends prompts the way its server answers best. May be used from several threads once `learn` has returned."""

    def __init__(self, client: ServerClient, facts: ServerFacts, form: PromptForm) -> None:
        self._client, self._facts, self._form = client, facts, form
        self.way: SendWay | None = None  # until `learn`
        # Log-probabilities by token id, in each engine's own way: by text, two tokens of one text are one entry.
        self._names_ids = True
        self.state = ABSENT  # what a reply says of cached tokens: ABSENT, NO_DETAILS or REPORTED

    def learn(self) -> None:
        """Find the way. Raises TargetError when the server answers none: why it did not answer the first."""
        first_error: TargetError | None = None
        for way in (SendWay(), SendWay(is_streamed=False), SendWay(has_extras=False), SendWay(False, has_extras=False)):
            # A way that brings no details may bring them in a whole reply; other fields do not change that.
            if self.state == ABSENT or (self.state == NO_DETAILS and way.has_extras == self.way.has_extras):
                error = self._try(way)
                first_error = first_error or error
        if self.state != REPORTED and self._facts.kind == "sglang" and self._form.is_exact_ids:
            for way in (SendWay(is_native=True), SendWay(is_streamed=False, is_native=True)):
                if self.state != REPORTED:
                    self._try(way)
        if self.way is None and first_error is not None:
            raise first_error

    def send(self, prompt: list[int] | str, options: SendOptions, stop: threading.Event | None = None) -> ServerReply:
        """One request and its reply. Raises TargetError, also when `stop` is set while the reply streams in."""
        way = self.way or SendWay()
        if options.prompt_logprobs:
            way = replace(way, is_streamed=False)  # vLLM streams none
        if options.logprob_gaps and not self._names_ids:
            way = replace(way, is_native=False)
        try:
            return self._ask(way, prompt, options, stop)
        except ServerRefused as error:
            has_own_way = self._names_ids and (self._facts.kind == "vllm" or way.is_native)
            if not (options.logprob_gaps and has_own_way and error.status in (400, 422)):
                raise
            self._names_ids = False  # perhaps a release that does not know how
            return self._ask(replace(way, is_native=False), prompt, options, stop)

    def _try(self, way: SendWay) -> TargetError | None:
        """Send an own prompt that way, and keep the way if it tells more than the one that was found before."""
        prompt = self._form.payload(self._form.own_prompt(TRIAL_TOKENS, random.Random()))
        try:
            state = self._ask(way, prompt, SendOptions(), None).usage.state
        except (TargetUnavailable, LimitReached):
            raise
        except TargetError as error:
            return error
        if self.way is None or _WORTH.index(state) > _WORTH.index(self.state):
            self.way, self.state = way, state
        return None

    def _ask(self, way: SendWay, prompt: list[int] | str, options: SendOptions, stop: threading.Event | None) -> ServerReply:
        is_native = way.is_native or (options.prompt_logprobs and self._facts.kind == "sglang")
        path = GENERATE if is_native else COMPLETIONS
        body = self._native_body(prompt, options) if is_native else self._body(way, prompt, options)
        if not way.is_streamed:
            return self._whole(path, body, is_native, stop)
        body["stream"] = True
        if not is_native:
            body["stream_options"] = {"include_usage": True}
        events = _until(stop, self._client.stream(path, body, stop))
        read = ServerReply.of_generate_events if is_native else ServerReply.of_events
        return read(events, self._client.shown)

    def _whole(self, path: str, body: dict[str, Any], is_native: bool, stop: threading.Event | None) -> ServerReply:
        self._client.admit(stop)
        started_s = time.perf_counter()
        content = self._client.post_json(path, body)
        e2e_s = time.perf_counter() - started_s
        if is_native:
            return ServerReply.of_generate(content, e2e_s, e2e_s, self._client.shown)
        return ServerReply.of_json(content, e2e_s, self._client.shown)

    def _body(self, way: SendWay, prompt: list[int] | str, options: SendOptions) -> dict[str, Any]:
        body = {"model": self._facts.model, "prompt": prompt, "max_tokens": options.max_tokens, "temperature": 0}
        body |= EXTRAS if way.has_extras else {}
        if options.cache_salt is not None:
            body["cache_salt"] = options.cache_salt
        if options.logprob_gaps:
            body["logprobs"] = 2
            if self._names_ids and self._facts.kind == "vllm":
                body["return_tokens_as_token_ids"] = True
        if options.prompt_logprobs:
            body["prompt_logprobs"] = 0  # the prompt's own tokens alone: enough to skip the cache
        return body

    def _native_body(self, prompt: list[int] | str, options: SendOptions) -> dict[str, Any]:
        sampling = {"max_new_tokens": options.max_tokens, "temperature": 0, "ignore_eos": True}
        body: dict[str, Any] = {"input_ids": prompt, "sampling_params": sampling}
        if options.cache_salt is not None:
            body["cache_salt"] = options.cache_salt
        if options.prompt_logprobs:
            body |= {"return_logprob": True, "logprob_start_len": 0}
        elif options.logprob_gaps:
            body |= {"return_logprob": True, "top_logprobs_num": 2}
        return body


def _until(stop: threading.Event | None, events: Iterator[StreamEvent]) -> Iterator[StreamEvent]:
    for event in events:
        if stop is not None and stop.is_set():
            events.close()  # hangs up: the server need not finish
            raise TargetError("stopped, because another request failed")
        yield event
