"""Target: where a lab sends its requests; what comes back is the same for an engine in this process or a server.

    TargetError
    ├── TargetUnavailable   nothing answers there, or labs cannot run on it as it is
    ├── FieldRefused        the target takes the prompt, but not what was asked besides
    ├── ServerRefused       a server answered with an error status (server_client.py)
    └── LimitReached        the run's own limit of requests or time (server_client.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Sequence

from engine.kvcache.cache_identity import LoRA, MultimodalItem

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine


class TargetError(Exception):
    """A target could not do what a lab asked; the message is one line for people."""


class FieldRefused(TargetError):
    """The target does not take a field of the request; without it the same prompt may be served."""


class TargetUnavailable(TargetError):
    """The target cannot be used at all; the message says why and what is accepted."""


@dataclass(frozen=True)
class Evidence:
    """What each witness on a server says of one request; None is unknown, never zero."""

    usage: int | None  # cached tokens, by the reply itself
    counted_hits: int | None  # growth of the server's counter of tokens found, over this request alone
    counted_queries: int | None  # the same of tokens looked up

    @property
    def disagrees(self) -> bool:
        """Whether both witnesses speak and say different numbers."""
        return None not in (self.usage, self.counted_hits) and self.usage != self.counted_hits


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
    evidence: Evidence | None = None  # of a server; an engine in this process has one account and no other


@dataclass(frozen=True)
class CacheCounters:
    """Tokens looked up and found since the last reading; lookups of preempted requests are counted apart.

    An engine in this process always knows them; a server's are None where it does not tell, or was restarted in between, or
    counted others too. What its counters grew by, whoever caused that, is then in `grown_queries` and `grown_hits`.
    """

    queries: int | None
    hits: int | None
    preempted_queries: int = 0
    preempted_hits: int = 0
    grown_queries: int | None = None
    grown_hits: int | None = None

    @property
    def growth(self) -> tuple[int, int] | None:
        """Tokens that the counters looked up and found, whoever caused that; None: unknown."""
        pair = (self.queries, self.hits) if None not in (self.queries, self.hits) else (self.grown_queries, self.grown_hits)
        return None if None in pair else pair


@dataclass(frozen=True)
class TargetInfo:
    """What a lab may depend on, and what its record says about the target."""

    kind: str  # "engine", "sim", or a server's: "vllm", "sglang", "openai"
    prefix_cache: str  # "hash" or "radix"
    unit_size: int  # hits are multiples of this many tokens
    num_blocks: int | None  # usable blocks of that size; None: a server does not tell
    vocab_size: int
    max_model_len: int  # tokens of a lab's prompt and its output together; what a server puts in front is not among them
    model: str
    dtype: str
    device: str
    config: dict[str, Any] = field(default_factory=dict)  # the full configuration


class Target(Protocol):
    """One serving engine with one cache, used by one lab at a time.

    engine      the engine itself where the target is in this process, for labs that watch its steps and its pool; None elsewhere
    last_reset  what became of the last reset(): "reset", "renamed" (on a server that did not empty its cache other token ids
                stand for the lab's since then) or "refused"; "" before the first
    """

    info: TargetInfo
    engine: LLMEngine | None
    last_reset: str

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
        """Drop all cached content, or see to it that none is found; False when neither. `last_reset` tells which."""
        ...

    def rename(self) -> bool:
        """From here on send other token ids for the lab's, so that nothing sent before is found, because a reset did not empty
        the cache; False where that is not done: in this process, or where only a reset will do."""
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


@dataclass(frozen=True)
class ServedCache:
    """The one cache behind a server: labs ask it as it is, because nobody can change it from outside."""

    title: str  # "vLLM, block 32", "vLLM, block 32 (measured)": the tables' title
    prefix_cache: str  # "hash" or "radix": whose rules it follows
    unit_size: int  # tokens of which a hit is a multiple
    has_drafter: bool = False  # a speculative drafter costs one unit of each hit; in the title where it is only inferred
    publishes_at_allocation: bool = True  # False: findable only after the step that computes it
    num_front: int = 0  # tokens the server puts in front of every prompt: all prompts share them, and each is that much longer


class OpenTarget(Protocol):
    """Opens the run's target with some engine settings changed; models are loaded once and shared.

    served  the cache of a server, which is the only one there; None where a lab chooses
    """

    kind: str
    served: ServedCache | None

    @property
    def isolation(self) -> str | None:
        """How a server's cache was emptied for the record that is being made: "reset", "renamed" or "renamed and reset"; ask
        before `notes`, with which the next begins. None in this process."""
        ...

    def __call__(self, **engine_fields: Any) -> Target: ...

    def notes(self) -> tuple[str, ...]:
        """What was noticed about the target since the last call, a line each, for the findings of one lab's record: what is
        missing and the flag that switches it on (told every time), witnesses that disagree."""
        ...
