"""RequestOutput: what the engine tells about a request, after each step that gave it a token."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.metrics import RequestMetrics
from engine.request import FinishReason
from engine.runner import TokenLogprobs


@dataclass(slots=True)
class RequestOutput:
    """What a request has produced so far; after `finished` it is final."""

    request_id: str
    prompt_token_ids: list[int] = field(repr=False)
    output_token_ids: list[int] = field(repr=False)
    new_token_ids: list[int] = field(repr=False)  # since the step before
    text: str | None = field(repr=False)  # set when finished, if the engine has a tokenizer
    finished: bool
    finish_reason: FinishReason | None
    num_cached_tokens: int  # tokens found in the prefix cache at the first admission
    metrics: RequestMetrics = field(repr=False)
    logprobs: list[TokenLogprobs] | None = field(default=None, repr=False)  # one per output token, if asked for
    # One per prompt token, if asked for; None for the first token and for tokens whose logits were not computed.
    prompt_logprobs: list[TokenLogprobs | None] | None = field(default=None, repr=False)

    @property
    def ttft_s(self) -> float | None:
        """Seconds from arrival to the first token."""
        return self.metrics.ttft_s
