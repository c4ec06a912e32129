"""ModelBody: token ids and positions -> hidden states, with K/V of every row stored on the way.

    Decoder            (decoder.py) Llama-shaped models, computed by ourselves
    TransformersBody   every other model, by its own layers through transformers' attention interface
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from engine.model.attention import SdpaAttention, attention_step


class ModelBody(Protocol):
    """Computes the hidden states of a step."""

    def __call__(
        self, input_ids: Tensor, positions: Tensor, attention: SdpaAttention, rows: Tensor | None = None
    ) -> Tensor:
        """Hidden states after the last norm.

        input_ids, positions  [T] int64
        attention             this step's plan; K/V of all T rows are stored through it
        rows                  [n] int64, the rows that somebody reads; None: all
        returns               [n or T, hidden_size]
        """
        ...


class TransformersBody:
    """A transformers model whose layers ask for attention by name (attention.register_attention)."""

    def __init__(self, model: Any) -> None:
        self._body = model.base_model

    def __call__(
        self, input_ids: Tensor, positions: Tensor, attention: SdpaAttention, rows: Tensor | None = None
    ) -> Tensor:
        with attention_step(attention):
            hidden = self._body(input_ids=input_ids[None], position_ids=positions[None], use_cache=False)[0][0]
        return hidden if rows is None else hidden.index_select(0, rows)
