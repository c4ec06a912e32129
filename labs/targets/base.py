"""Target: where a lab sends its requests; what comes back is the same for an engine in this process or a server.

    TargetError
    └── TargetUnavailable   nothing answers there, or labs cannot run on it yet
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Sequence

from engine.kvcache.cache_identity import LoRA, MultimodalItem

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine


class TargetError(Exception):
    """A target could not do what a lab asked; the message is one line for people."""


class TargetUnavailable(TargetError):
    """The target cannot be used at all; the message says why and what is accepted."""


@dataclass(frozen=True)
class Completion:
    """What one request brought back. `num_cached_tokens` None means unknown, never zero."""

    output_token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_cached_tokens: int | None
    ttft_s: float
    e2e_s: float
    finish_reason: str
    top_logprob_gaps: tuple[float, ...] = ()  # best minus second-best log-probability, per output token, if asked for


@dataclass(frozen=True)
class CacheCounters:
    """Tokens looked up and found since the last reading; lookups of preempted requests are counted apart."""

    queries: int
    hits: int
    preempted_queries: int = 0
    preempted_hits: int = 0


@dataclass(frozen=True)
class TargetInfo:
    """What a lab may depend on, and what its record says about the target."""

    kind: str  # "engine" or "sim"
    prefix_cache: str  # "hash" or "radix"
    unit_size: int  # hits are multiples of this many tokens
    num_blocks: int  # usable blocks of that size
    vocab_size: int
    max_model_len: int
    model: str
    dtype: str
    device: str
    config: dict[str, Any] = field(default_factory=dict)  # the full configuration


class Target(Protocol):
    """One serving engine with one cache, used by one lab at a time.

    engine  the engine itself where the target is in this process, for labs that watch its steps and its pool; None elsewhere
    """

    info: TargetInfo
    engine: LLMEngine | None

    def complete(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_tokens: int = 1,
        cache_salt: str | None = None,
        logprob_gaps: bool = False,
        prompt_logprobs: bool = False,
        lora: LoRA | None = None,
        images: Sequence[MultimodalItem] = (),
        prompt_embeds: Sequence[bytes] | None = None,
    ) -> Completion:
        """Send one request, greedy, ignoring end-of-text, and wait for it. Raises TargetError.

        prompt_logprobs  ask for the prompt's log-probabilities too, and so skip reading the cache
        prompt_embeds    float32 bytes of each prompt position's embedding, in place of its token's
        """
        ...

    def complete_all(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int, cache_salts: Sequence[str | None] | None = None
    ) -> list[Completion]:
        """Send all requests at once, each with its salt if any, and wait for all; results in the order given."""
        ...

    def counters(self) -> CacheCounters:
        """Read the cache counters and start again from zero."""
        ...

    def reset(self) -> bool:
        """Drop all cached content; False when refused."""
        ...

    def block_hashes(
        self,
        prompt_token_ids: Sequence[int],
        *,
        cache_salt: str | None = None,
        lora: LoRA | None = None,
        images: Sequence[MultimodalItem] = (),
        prompt_embeds: Sequence[bytes] | None = None,
    ) -> list[str]:
        """Hexadecimal names of the prompt's full blocks; empty for a cache without names."""
        ...

    def tokenizer(self) -> Any | None:
        """The model's tokenizer (`engine.model.tokenizer.Tokenizer`), or None when it has no text."""
        ...

    def close(self) -> None:
        """Free the target's memory."""
        ...


class OpenTarget(Protocol):
    """Opens the run's target with some engine settings changed; models are loaded once and shared."""

    kind: str

    def __call__(self, **engine_fields: Any) -> Target: ...
