"""The body of a Llama-shaped model, computed by ourselves over transformers' weights.

    rows of the step     hidden [T, H]
                           │  per tile of rows: norm, one product for q, k and v, rotation
                           │  all rows: K/V into their slots, attention
                           │  per tile of rows: output product, norm, one product for gate and up, SiLU, down
                         hidden [T, H]          … in each layer; the last one goes on with the rows that are read

What is gained over the layers that transformers runs: products of q, k, v and of gate, up are one each, weights are
packed once, and a tile's intermediates stay in the processor's cache, in memory the allocator already has (large
ones would be mapped, zeroed and unmapped by the system each time).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, silu

from engine.model.attention import SdpaAttention
from engine.model.linear import Linear
from engine.model.lora_adapter import QkvShape
from engine.model.row_changes import RowChanges

# Classes of transformers whose layers are: norm, attention with rotated q and k, norm, gated SiLU; verified by
# model_support against the logits of the class itself.
DECODER_CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
# Rows of one tile on a CPU: the widest intermediate of a small model then fits its cache.
TILE_ROWS = 512


@dataclass(slots=True)
class _Layer:
    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear
    norm: Tensor  # [hidden_size], before attention
    mlp_norm: Tensor  # [hidden_size]
    query_norm: Tensor | None  # [head_dim], Qwen3's
    key_norm: Tensor | None
    scale: float


def has_decoder(model: Any) -> bool:
    """Whether `model` (transformers' ...ForCausalLM) has the layers that Decoder computes."""
    config = model.config
    return (
        type(model).__name__ in DECODER_CLASSES
        and getattr(config, "hidden_act", None) in ("silu", "swish")
        and getattr(config, "pretraining_tp", 1) in (1, None)
    )


class Decoder:
    """Computes the hidden states of a step.

    model        transformers' model, of a class that `has_decoder`
    make_linear  weight [out, in] and bias -> product
    """

    def __init__(self, model: Any, make_linear: Callable[[Tensor, Tensor | None], Linear]) -> None:
        body, config = model.base_model, model.config
        self.eps: float = config.rms_norm_eps
        self.num_heads: int = config.num_attention_heads
        self.head_dim: int = body.layers[0].self_attn.head_dim
        self.num_kv_heads: int = config.num_key_value_heads
        self.intermediate_size: int = config.intermediate_size
        self.embedding: Tensor = body.embed_tokens.weight
        self.norm: Tensor = body.norm.weight
        self._rotary = body.rotary_emb
        self.layers = [_layer(layer, make_linear) for layer in body.layers]
        self._tile_rows = TILE_ROWS if self.embedding.device.type == "cpu" else None

    @property
    def qkv_shape(self) -> QkvShape:
        """The products that an adapter adds to."""
        sizes = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        query, key, value = (count * self.head_dim for count in sizes)
        return QkvShape(len(self.layers), self.embedding.shape[1], (query, key, value))

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
        attention             this step's; K/V of all rows are stored on the way
        rows                  [n] int64, the rows that are read; None: all
        changes               embeddings and adapters that some rows have; None: no row
        returns               [n or T, hidden_size]
        """
        hidden = self._embed(input_ids, changes)
        num_rows = hidden.shape[0]
        cos, sin = self._rotation(hidden, positions)
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        tiles = self._tiles(num_rows)
        qkv = hidden.new_empty((num_rows, width)) if len(tiles) > 1 else None
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            for tile in tiles:
                part = self._project(index, hidden[tile], cos[tile], sin[tile], changes, tile.start)
                if qkv is not None:
                    qkv[tile] = part
            heads = (part if qkv is None else qkv).view(num_rows, -1, self.head_dim).transpose(0, 1)
            query, keys, values = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads))
            context = attention.forward(index, query, keys, values, layer.scale).reshape(num_rows, -1)
            if index == last and rows is not None:
                # What the last layer gives is read where somebody samples, and nowhere else.
                hidden, context = hidden.index_select(0, rows), context.index_select(0, rows)
                tiles = self._tiles(hidden.shape[0])
            for tile in tiles:
                self._finish(layer, hidden[tile], context[tile])
        return rms_norm(hidden, self.norm.shape, self.norm, self.eps)

    def _tiles(self, num_rows: int) -> list[slice]:
        step = self._tile_rows or max(1, num_rows)
        return [slice(first, min(first + step, num_rows)) for first in range(0, num_rows, step)]

    def _rotation(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [T, 1, head_dim]; sin with the sign of the half it is multiplied with."""
        cos, sin = self._rotary(hidden, positions[None])
        half = self.head_dim // 2
        return cos[0, :, None], torch.cat((-sin[0, :, None, :half], sin[0, :, None, half:]), dim=-1)

    def _embed(self, input_ids: Tensor, changes: RowChanges | None) -> Tensor:
        hidden = embedding(input_ids, self.embedding)
        if changes is not None:
            changes.embed(hidden)
        return hidden

    def _project(
        self, index: int, hidden: Tensor, cos: Tensor, sin: Tensor, changes: RowChanges | None, first_row: int
    ) -> Tensor:
        """q, k and v side by side [n, (num_heads + 2 num_kv_heads) * head_dim], q and k rotated.

        hidden     [n, hidden_size], the step's rows from `first_row` on
        """
        layer = self.layers[index]
        normed = rms_norm(hidden, layer.norm.shape, layer.norm, self.eps)
        qkv = layer.qkv(normed)
        if changes is not None:
            changes.adapt(index, normed, qkv, first_row)
        heads = qkv.view(hidden.shape[0], -1, self.head_dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            for first, count, weight in (
                (0, self.num_heads, layer.query_norm), (self.num_heads, self.num_kv_heads, layer.key_norm),
            ):  # fmt: skip
                own = heads[:, first : first + count]
                own.copy_(rms_norm(own, weight.shape, weight, self.eps))
        rotated = heads[:, : self.num_heads + self.num_kv_heads]
        swapped = rotated.roll(self.head_dim // 2, -1)
        rotated.mul_(cos).addcmul_(swapped, sin)
        return qkv

    def _finish(self, layer: _Layer, hidden: Tensor, context: Tensor) -> None:
        """Adds what attention and the MLP give to `hidden` [n, hidden_size], in place."""
        hidden += layer.output(context)
        gate_up = layer.gate_up(rms_norm(hidden, layer.mlp_norm.shape, layer.mlp_norm, self.eps))
        gated = silu(gate_up[:, : self.intermediate_size]).mul_(gate_up[:, self.intermediate_size :])
        hidden += layer.down(gated)


def _layer(layer: Any, make_linear: Callable[[Tensor, Tensor | None], Linear]) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp

    def joined(*modules: Any) -> Linear:
        # `data`: the module may give its weight up later, and the tensor stays.
        weights = [module.weight.data for module in modules]
        biases = [module.bias for module in modules]
        has_bias = biases[0] is not None
        weight = weights[0]
        if len(weights) > 1:
            weight = torch.cat(weights)
            # Views of the joined weight from now on: a second copy of a large model might not fit.
            for module, part in zip(modules, weight.split([one.shape[0] for one in weights])):
                module.weight.data = part
        return make_linear(weight, (torch.cat(biases) if len(biases) > 1 else biases[0]) if has_bias else None)

    def weight_of(name: str) -> Tensor | None:
        module = getattr(attention, name, None)
        return None if module is None else module.weight

    return _Layer(
        qkv=joined(attention.q_proj, attention.k_proj, attention.v_proj),
        output=joined(attention.o_proj),
        gate_up=joined(mlp.gate_proj, mlp.up_proj),
        down=joined(mlp.down_proj),
        norm=layer.input_layernorm.weight,
        mlp_norm=layer.post_attention_layernorm.weight,
        query_norm=weight_of("q_norm"),
        key_norm=weight_of("k_norm"),
        scale=attention.scaling,
    )
