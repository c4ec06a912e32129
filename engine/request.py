"""A request, from arrival to its last token.

    waiting ──admitted──▶ running ──stop, length, abort──▶ finished
       ▲                     │
       └──── preempted ◀─────┘   its blocks are given back; its tokens and their names stay

Token positions of one request, half-open ranges:

    0             num_computed_tokens        num_prompt_tokens        num_tokens
    ├── have K/V ─────────┤ ── to be computed ─────────┤── outputs ────────┤
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from operator import index
from typing import Sequence

from engine.errors import ConfigError, RequestRefused
from engine.kvcache.block_hash import BlockHash, BlockHasher
from engine.kvcache.cache_identity import CacheIdentity, LoRA, MultimodalItem
from engine.metrics import RequestMetrics


class RequestStatus(Enum):
    """Where a request stands; `finished` is final."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a request ended; names as in the OpenAI API."""

    STOP = "stop"  # an end-of-text token, a stop token or a stop text
    LENGTH = "length"  # max_tokens or max_model_len
    ABORT = "abort"


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen and when to end. Raises ConfigError outside the accepted ranges."""

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: all
    seed: int | None = None  # None: the engine's generator
    max_tokens: int = 16  # 0: the prompt is computed and cached, and that is all
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()  # texts; the output ends before the first of them: before an empty one at its first token
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None  # this many most likely tokens with each output token
    prompt_logprobs: int | None = None  # the same for each prompt token; makes the request skip reading the cache
    skip_reading_prefix_cache: bool | None = None  # None: exactly when prompt_logprobs is set

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        if not _is_number(self.temperature) or not 0 <= self.temperature:
            raise ConfigError("temperature", self.temperature, "a number from 0 (greedy)")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise ConfigError("top_p", self.top_p, "a number above 0, up to 1")
        _check_int("top_k", self.top_k, -1, None, "a whole number from 1; 0 or -1 for all tokens")
        _check_int("max_tokens", self.max_tokens, 0, None, "a whole number from 0")
        if self.seed is not None:
            _check_int("seed", self.seed, -(2**63), 2**63 - 1, "a whole number, or none")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), 0, 20, "a whole number from 0 to 20")

    @property
    def skips_cache_read(self) -> bool:
        """Whether lookups are skipped: the logits of cached prompt tokens are not there to report."""
        if self.skip_reading_prefix_cache is not None:
            return self.skip_reading_prefix_cache
        return self.prompt_logprobs is not None


def _is_number(value: object) -> bool:
    # bool is an int in Python, but `temperature=True` is a mistake, not one.
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_int(field: str, value: object, low: int, high: int | None, accepted: str) -> None:
    if not _is_number(value) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise ConfigError(field, value, accepted)


class Request:
    """One prompt with its outputs, names of its full blocks, and progress.

    request_id        unique among unfinished requests
    prompt_token_ids  [num_prompt_tokens], at least one
    block_hasher      names full blocks; None: the cache needs no names (radix, or caching off)
    exact_ints        the ids are Python's own integers, every one, as a tokenizer's are: spares looking at each
    arrival_time      seconds, breaks ties between equal priorities (smaller priority first)
    """

    __slots__ = (
        "request_id", "sampling_params", "identity", "priority", "arrival_time", "status", "finish_reason",
        "num_prompt_tokens", "num_computed_tokens", "num_cached_tokens", "num_preemptions",
        "all_token_ids", "block_hashes", "metrics", "_block_hasher",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams | None = None,
        *,
        cache_salt: str | None = None,
        lora: LoRA | None = None,
        mm_items: Sequence[MultimodalItem] = (),
        prompt_embeds: Sequence[bytes] | None = None,
        priority: int = 0,
        arrival_time: float = 0.0,
        block_hasher: BlockHasher | None = None,
        exact_ints: bool = False,
    ) -> None:
        if cache_salt is not None and not isinstance(cache_salt, str):
            raise RequestRefused("a cache_salt that is not a text; accepted: a text, or none")
        if len(prompt_token_ids) == 0:
            raise RequestRefused("an empty prompt; accepted: at least one token")
        self.request_id = request_id
        self.sampling_params = sampling_params or SamplingParams()
        self.identity = CacheIdentity(
            lora, tuple(mm_items), cache_salt, None if prompt_embeds is None else tuple(prompt_embeds)
        )
        self.priority = priority
        self.arrival_time = arrival_time
        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_computed_tokens = 0
        self.num_cached_tokens: int | None = None  # found at the first admission, as clients are told
        self.num_preemptions = 0
        # Python's own integers, whatever came: names of blocks are made from them as they are.
        self.all_token_ids: list[int] = list(prompt_token_ids if exact_ints else map(index, prompt_token_ids))
        self.block_hashes: list[BlockHash] = []
        self.metrics = RequestMetrics(arrival_s=arrival_time)
        self._block_hasher = block_hasher
        self._extend_block_hashes()

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens

    @property
    def prompt_token_ids(self) -> list[int]:
        return self.all_token_ids[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> list[int]:
        return self.all_token_ids[self.num_prompt_tokens :]

    @property
    def num_uncomputed_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_computed_tokens

    @property
    def skips_cache_read(self) -> bool:
        return self.sampling_params.skips_cache_read

    @property
    def is_finished(self) -> bool:
        return self.status is RequestStatus.FINISHED

    @property
    def scheduling_key(self) -> tuple[int, float, str]:
        """Order under the priority policy: smaller first."""
        return (self.priority, self.arrival_time, self.request_id)

    def append_output_token_ids(self, token_ids: Sequence[int]) -> None:
        """Add generated tokens; blocks they complete get their names at once, K/V or not."""
        self.all_token_ids.extend(map(index, token_ids))
        self._extend_block_hashes()

    def adopt(self, block_hasher: BlockHasher | None, now_s: float) -> None:
        """Name the blocks as the engine that will serve the request names them, whoever made it; it arrives now."""
        self.metrics.arrival_s = now_s
        self.arrival_time = self.arrival_time or now_s
        if self._block_hasher is not block_hasher:
            self._block_hasher = block_hasher
            self.block_hashes = []
            self._extend_block_hashes()

    def restart(self) -> None:
        """Back to the queue with no K/V: preempted. Tokens and their names stay."""
        self.status = RequestStatus.PREEMPTED
        self.num_computed_tokens = 0
        self.num_preemptions += 1

    def finish(self, reason: FinishReason) -> None:
        self.status = RequestStatus.FINISHED
        self.finish_reason = reason

    def _extend_block_hashes(self) -> None:
        if self._block_hasher is not None:
            self._block_hasher.extend(self.block_hashes, self.all_token_ids, self.identity, exact_ints=True)

    def __repr__(self) -> str:
        # No token ids and no salt: a repr ends up in logs.
        return f"Request({self.request_id!r}, {self.status.value}, {self.num_computed_tokens}/{self.num_tokens} tokens computed)"
