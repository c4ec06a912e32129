"""Logits -> token ids: greedy, temperature, top-k, top-p, seeds; and log-probabilities.

A request with a seed draws a number that depends on its seed and on the output position alone: no state to keep,
so the same tokens come out beside any neighbours, and after a preemption. Requests without one share the engine's
generator.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple, Sequence

import torch
from torch import Tensor

from engine.request import SamplingParams
from engine.runner import TokenLogprob, TokenLogprobs

# Below this, dividing by the temperature overflows before it changes anything: the best token wins anyway.
GREEDY_TEMPERATURE = 1e-5


class SamplingRow(NamedTuple):
    """Whose logits a row holds."""

    params: SamplingParams
    output_position: int  # 0 for a request's first output token


class Sampler:
    """Chooses the next tokens; `seed` starts the generator of requests without a seed of their own."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
        """One token id per row.

        logits  [len(rows), vocab_size] float32
        """
        picks = logits.argmax(dim=-1)
        for index, (params, output_position) in enumerate(rows):
            if params.temperature >= GREEDY_TEMPERATURE:
                picks[index] = _draw(logits[index], params, self._uniform(params, output_position))
        return picks.tolist()

    def _uniform(self, params: SamplingParams, output_position: int) -> float:
        if params.seed is None:
            return self._random.random()
        return Random(f"{params.seed}:{output_position}").random()


def _draw(logits: Tensor, params: SamplingParams, uniform: float) -> Tensor:
    """The token where the cumulative probability first exceeds `uniform` (in [0, 1)); most likely tokens first.

    logits   [vocab_size] float32
    returns  [] int64
    """
    limit = params.top_k if 0 < params.top_k < logits.shape[0] else logits.shape[0]
    # Most likely first, ties by id: a stable order, so a seed means the same everywhere.
    values, token_ids = logits.sort(descending=True, stable=True)
    probabilities = torch.softmax(values[:limit] / params.temperature, dim=0)
    # The order of adding would change the last bits in float32, and the tail of a large vocabulary with them.
    cumulative = probabilities.double().cumsum(dim=0)
    if params.top_p < 1:
        # Tokens before which less than top_p has been gathered: at least the first.
        before = cumulative - probabilities
        cumulative = cumulative[: int((before < params.top_p).sum().clamp(min=1))]
    index = torch.searchsorted(cumulative, uniform * cumulative[-1], right=True)
    return token_ids[index.clamp(max=cumulative.shape[0] - 1)]


def token_logprobs(logits: Tensor, token_ids: Sequence[int], num_top: Sequence[int]) -> list[TokenLogprobs]:
    """Log-probabilities of one chosen token a row, with the most likely ones; before temperature and cuts.

    logits     [n, vocab_size] float32
    token_ids  [n], num_top [n]: candidates to report with each
    """
    if not token_ids:
        return []
    normalizer = logits.logsumexp(dim=-1, keepdim=True)
    chosen = torch.tensor(token_ids, dtype=torch.int64, device=logits.device)[:, None]
    own = (logits.gather(1, chosen) - normalizer)[:, 0].tolist()
    values, ids = logits.topk(min(max(num_top), logits.shape[1]), dim=-1)
    tops = zip(ids.tolist(), (values - normalizer).tolist())
    return [
        TokenLogprobs(token_id, logprob, tuple(map(TokenLogprob, top_ids[:count], top_values[:count])))
        for token_id, logprob, count, (top_ids, top_values) in zip(token_ids, own, num_top, tops)
    ]
