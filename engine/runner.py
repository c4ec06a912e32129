"""Runner: what turns a schedule into tokens. One runs a real model, one simulates (engine/model/).

A runner never decides anything about requests: it computes what was scheduled and reports the samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Sequence

from engine.request import Request
from engine.scheduler import SchedulerOutput


class TokenLogprob(NamedTuple):
    """One candidate token and its log-probability (natural logarithm, before temperature)."""

    token_id: int
    logprob: float


class TokenLogprobs(NamedTuple):
    """A token with its own log-probability and the most likely candidates, best first."""

    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...]


@dataclass(slots=True)
class RunnerOutput:
    """The results of one step, aligned with `SchedulerOutput.scheduled`."""

    sampled_token_ids: list[int | None]  # None where the request still has tokens to compute
    logprobs: list[TokenLogprobs | None]  # only where SamplingParams.logprobs asks for them
    # request id -> {prompt position: logprobs}, for requests with SamplingParams.prompt_logprobs.
    # Position 0 never appears: nothing precedes the first token.
    prompt_logprobs: dict[str, dict[int, TokenLogprobs]] = field(default_factory=dict)


class Runner(Protocol):
    """Computes steps, and owns the clock they are timed by."""

    vocab_size: int
    max_model_len: int  # most tokens (prompt and outputs) the model can place
    eos_token_ids: frozenset[int]
    is_simulated: bool  # no K/V content: a LoRA, images and embeddings may be any, and need only their place in the cache key

    def bytes_per_token(self) -> int:
        """K/V bytes of one token over all layers."""
        ...

    def allocate_kv(self, num_blocks: int, unit_size: int) -> None:
        """Provide K/V storage for `num_blocks` blocks of `unit_size` tokens; called once, before any step."""
        ...

    def check_identity(self, request: Request) -> None:
        """Raises RequestRefused for a LoRA, images or embeddings that cannot be applied; a simulated one is not asked."""
        ...

    def token_embeddings(self, token_ids: Sequence[int]) -> list[bytes]:
        """What tokens are embedded as, in the form of a request's `prompt_embeds`."""
        ...

    def execute(self, output: SchedulerOutput) -> RunnerOutput:
        """Compute one step: K/V of every scheduled token, and a sample where a request's tokens are all computed."""
        ...

    def now(self) -> float:
        """Seconds: real time, or the simulated clock."""
        ...
