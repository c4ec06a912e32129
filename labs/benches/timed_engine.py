"""TimedEngine: whatever serves prompts and can be timed: our engine here, or a peer in a process of its own.

    serve(prompts, num_outputs)  all prompts handed over at once, greedy, exactly num_outputs tokens each
    reset()                      nothing is cached afterwards

Every engine gets the same token ids, model files, dtype, threads and pool; see EngineSettings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Sequence

TokenIds = Sequence[int]


@dataclass(frozen=True)
class EngineSettings:
    """What all engines of one comparison have in common."""

    model_folder: str  # transformers' format: config.json, safetensors, tokenizer
    dtype: str  # "float32" or "bfloat16", never "auto": each engine would resolve it its own way
    num_threads: int
    block_size: int  # tokens
    num_blocks: int  # of the pool
    max_model_len: int  # tokens of one request
    max_num_seqs: int  # requests in one step
    max_num_batched_tokens: int  # tokens of one step
    enable_prefix_caching: bool = True
    compile: bool = False  # vLLM: torch.compile, as it does when nothing is said; false: eager


@dataclass(frozen=True)
class Served:
    """What an engine did with some prompts."""

    seconds: float  # from the first prompt handed over to the last token
    output_ids: tuple[tuple[int, ...], ...]  # by prompt
    # Seconds from the start to each token, by prompt; None where the engine does not show its tokens one by one.
    token_times_s: tuple[tuple[float, ...], ...] | None = None
    num_cached_tokens: tuple[int, ...] | None = None  # by prompt; None where the engine has no prefix cache, or says nothing


class TimedEngine(Protocol):
    """An engine that is ready to serve."""

    name: str  # "labcli", "vLLM", "transformers generate", "transformers generate_batch"
    version: str
    start_s: float  # seconds from nothing to ready, imports included

    def serve(self, prompts: Sequence[TokenIds], num_outputs: int) -> Served: ...

    def reset(self) -> None: ...
