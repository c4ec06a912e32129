"""Job: a request as it was understood: what to compute, and how to tell of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from engine.request import Request


@dataclass(frozen=True)
class Job:
    """One HTTP request of one or more prompts."""

    kind: str  # completion, chat or native
    number: str  # 32 hexadecimal digits of its own
    model: str  # as the reply names it
    requests: tuple[Request, ...]
    is_streaming: bool = False
    include_usage: bool = False  # a last chunk with the counts
    continuous_usage: bool = False  # the counts in each chunk
    return_token_ids: bool = False
    return_cached_tokens_details: bool = False  # SGLang's: where the cached tokens lay
    given_id: str | None = None  # the client's own name for the request
    is_list: bool = False  # SGLang's /generate: answered with a list, also where it has one reply
    numbers: tuple[str, ...] = ()  # SGLang's /generate: the name of each request, in place of `number`
    warm_ups: tuple[Request, ...] = ()  # SGLang's n: each prompt is computed and cached before its answers are begun
    warm_up_names: tuple[str, ...] = ()  # what the client calls those prompts; its answers have names of their own
    is_aborted: bool = False  # while it warmed up: its answers end as soon as they are begun
    is_health_check: bool = False  # computed, but not counted among the clients' requests
    names_tokens_by_id: bool = False  # in log-probabilities: "token_id:5" instead of the token's text
    num_logprobs: int | None = None  # candidates with each token; None: no log-probabilities
    created_s: int = field(default_factory=lambda: int(time.time()))
    arrived_s: float = field(default_factory=time.monotonic)  # for the time limit

    @property
    def names(self) -> tuple[str, ...]:
        """What replies call each of the requests."""
        return self.numbers or (self.given_id or self.number,) * len(self.requests)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(request.num_prompt_tokens for request in self.requests)
