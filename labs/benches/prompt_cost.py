"""The cost of naming one prompt, beside the two other things that happen to it: being tokenised and being prefilled."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from engine.cost_model import gpu_by_name, model_shape
from labs import theory
from labs.benches.hash_cost import HashCost
from labs.diagnose.prompt_file import PromptFile
from labs.targets.base import OpenTarget, TargetError

PREFILL_MFU = 0.45


@dataclass(frozen=True)
class Prefill:
    """Seconds until the first token without a cache, and how they were found."""

    samples_s: tuple[float, ...]
    basis: str  # for people: where, by what

    @property
    def best_s(self) -> float:
        return min(self.samples_s)


@dataclass(frozen=True)
class PromptCost:
    """One prompt: its chain, and the seconds each of its treatments takes."""

    kind: str  # "text", "messages" or "token ids"
    num_tokens: int
    block_size: int
    hashing: tuple[HashCost, ...]  # empty when no block is full
    tokenise_s: tuple[float, ...]  # empty for token ids
    prefill: Prefill

    @property
    def num_blocks(self) -> int:
        return theory.full_blocks(self.num_tokens, self.block_size)

    @property
    def num_unnamed(self) -> int:
        """Tokens behind the last full block."""
        return theory.unnamed_tail(self.num_tokens, self.block_size)


def tokenise(prompt: PromptFile, tokenizer: Any) -> list[int]:
    """Token ids of a text, or of messages in the model's chat template, as a server would compute them."""
    if prompt.messages is not None:
        return list(tokenizer.encode(tokenizer.render_chat(prompt.messages)))
    assert prompt.text is not None
    return list(tokenizer.encode(prompt.text))


def time_tokenising(prompt: PromptFile, tokenizer: Any, trials: int) -> tuple[float, ...]:
    """Seconds of each of `trials` times, after one that is not counted."""
    samples = []
    for trial in range(trials + 1):
        begin = time.perf_counter()
        tokenise(prompt, tokenizer)
        if trial:
            samples.append(time.perf_counter() - begin)
    return tuple(samples)


def prefill_by_cost_model(num_tokens: int, model: str, gpu: str, mfu: float = PREFILL_MFU) -> Prefill:
    """By FLOPs / (peak · MFU). Raises ConfigError for a model or GPU that is not in the tables."""
    shape, card = model_shape(model), gpu_by_name(gpu)
    seconds = theory.prefill_seconds(shape, card, mfu, 0, num_tokens)
    return Prefill((seconds,), f"{shape.name} on {card.name}, cost model, MFU {mfu}")


def prefill_on_engine(
    token_ids: Sequence[int], open_target: OpenTarget, trials: int, on_trial: Callable[[], None] | None = None
) -> Prefill:
    """Measured: the prompt sent to an engine that caches nothing, after one time that is not counted."""
    target = open_target(enable_prefix_caching=False, num_gpu_blocks=-(-(len(token_ids) + 1) // 16) + 2, block_size=16)
    try:
        if max(token_ids) >= target.info.vocab_size:
            raise TargetError(f"the prompt has token ids beyond the model's vocabulary; accepted: 0 to {target.info.vocab_size - 1}")
        samples = []
        for trial in range(trials + 1):
            completion = target.complete(token_ids)
            if trial:
                samples.append(completion.ttft_s)
            if on_trial is not None:
                on_trial()
        info = target.info
        return Prefill(tuple(samples), f"{info.model} {info.dtype} on {info.device}, measured")
    finally:
        target.close()
