"""ModelBody: token ids and positions -> hidden states, with K/V of every row stored on the way.

    Decoder            (decoder.py) Llama-shaped models, computed by ourselves
    TransformersBody   every other model, by its own layers through transformers' attention interface
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import Any, Callable, Iterator, Protocol

from torch import Tensor

from engine.model.attention import SdpaAttention, attention_step
from engine.model.lora_adapter import QkvShape
from engine.model.row_changes import RowChanges

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class ModelBody(Protocol):
    """Computes the hidden states of a step."""

    @property
    def qkv_shape(self) -> QkvShape | None:
        """The products for q, k and v, which adapters add to; None: this model takes no adapters."""
        ...

    def __call__(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attention: SdpaAttention,
        rows: Tensor | None = None,
        changes: RowChanges | None = None,
    ) -> Tensor:
        """Hidden states after the last norm.

        input_ids, positions  [T] int64
        attention             this step's plan; K/V of all T rows are stored through it
        rows                  [n] int64, the rows that somebody reads; None: all
        changes               embeddings and adapters that some rows have; None: no row
        returns               [n or T, hidden_size]
        """
        ...


class TransformersBody:
    """A transformers model whose layers ask for attention by name (attention.register_attention)."""

    def __init__(self, model: Any) -> None:
        self._body = model.base_model

    def __call__(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attention: SdpaAttention,
        rows: Tensor | None = None,
        changes: RowChanges | None = None,
    ) -> Tensor:
        inputs = {"input_ids": input_ids[None]} if changes is None else {"inputs_embeds": self._embed(input_ids, changes)[None]}
        with attention_step(attention), self._adapted(changes):
            hidden = self._body(**inputs, position_ids=positions[None], use_cache=False)[0][0]
        return hidden if rows is None else hidden.index_select(0, rows)

    @cached_property
    def qkv_shape(self) -> QkvShape | None:
        """From the layers' q_proj, k_proj and v_proj; None for layers that have others, or not all the same."""
        found = {
            (layer[0].in_features, *(module.out_features for module in layer))
            for layer in self._projections
            if all(hasattr(module, "in_features") for module in layer)
        }
        if len(found) != 1:
            return None
        hidden_size, *out_sizes = found.pop()
        return QkvShape(len(self._projections), hidden_size, tuple(out_sizes))

    @cached_property
    def _projections(self) -> list[tuple[Any, Any, Any]]:
        """The modules of each layer, in the layers' order."""
        attentions = {
            module.layer_idx: tuple(getattr(module, name) for name in PROJECTIONS)
            for module in self._body.modules()
            if hasattr(module, "layer_idx") and all(hasattr(module, name) for name in PROJECTIONS)
        }
        return [attentions[layer] for layer in sorted(attentions)]

    def _embed(self, input_ids: Tensor, changes: RowChanges) -> Tensor:
        hidden = self._body.get_input_embeddings()(input_ids)
        changes.embed(hidden)
        return hidden

    @contextmanager
    def _adapted(self, changes: RowChanges | None) -> Iterator[None]:
        """While inside, the products of the rows that have an adapter are changed."""
        hooks = []
        try:
            if changes is not None and changes.adapters:
                for layer, modules in enumerate(self._projections):
                    hooks += [module.register_forward_hook(_adding(changes, layer, part)) for part, module in enumerate(modules)]
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _adding(changes: RowChanges, layer: int, part: int) -> Callable[[Any, tuple[Tensor], Tensor], Tensor]:
    def hook(module: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        changes.adapt_part(layer, part, inputs[0][0], output[0])  # [1, T, size] each
        return output

    return hook
