"""Hidden states -> logits, for chosen rows only, a bounded number of them at a time.

A prefill of 2,000 tokens needs the logits of one row; its full [2000, vocab_size] matrix would cost more memory
than the K/V. What some architectures do to the logits afterwards (scale, cap) is done here as well; the check in
model_support compares the result with the model's own.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator

import torch
from torch import Tensor

from engine.model.linear import Linear, PlainLinear

# float32 logits alive at once, in bytes.
MAX_LOGITS_BYTES = 128 * 1024**2


class LogitsHead:
    """The vocabulary projection of one model; call it with [n, hidden_size] rows for [n, vocab_size] float32."""

    def __init__(self, model: Any, make_linear: Callable[[Tensor, Tensor | None], Linear] = PlainLinear) -> None:
        module = model.get_output_embeddings()
        self.projection = make_linear(module.weight, getattr(module, "bias", None))
        config = model.config
        self.vocab_size: int = config.vocab_size
        self.divisor: float | None = getattr(config, "logits_scaling", None)  # Granite
        self.factor: float | None = getattr(config, "logit_scale", None)  # Cohere
        self.soft_cap: float | None = getattr(config, "final_logit_softcapping", None)  # Gemma

    def __call__(self, hidden: Tensor) -> Tensor:
        logits = self.projection(hidden)[:, : self.vocab_size]
        if self.divisor is not None:
            logits = logits / self.divisor
        if self.factor is not None:
            logits = logits * self.factor
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits.float()

    def in_chunks(self, hidden: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(index of the first row, logits [some rows, vocab_size]) until all rows of `hidden` are done."""
        num_rows = max(1, MAX_LOGITS_BYTES // (4 * self.vocab_size))
        for first in range(0, hidden.shape[0], num_rows):
            yield first, self(hidden[first : first + num_rows])
