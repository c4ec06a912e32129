"""The decoder with compiled kernels between its matrix products.

    attention of layer i ─▶ per tile of rows: output product, add and norm, gate and up, SiLU, down, add and norm,
                            then layer i + 1's product for q, k, v, rotation, K/V into their slots ─▶ attention

A tile passes through all of it at once, in buffers that are made once a step: its numbers are still in the
processor's cache when the next operation reads them.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from engine.model.attention import SdpaAttention
from engine.model.decoder import Decoder, has_decoder
from engine.model.linear import Linear
from engine.model.native_kernels import NativeKernels
from engine.model.row_changes import RowChanges


def has_native_decoder(model: Any) -> bool:
    """Whether NativeDecoder computes `model` (transformers' ...ForCausalLM)."""
    # Qwen3's norms of q and k have no kernel.
    return has_decoder(model) and getattr(model.base_model.layers[0].self_attn, "q_norm", None) is None


class NativeDecoder(Decoder):
    """Computes the hidden states of a step on a CPU; see Decoder."""

    def __init__(
        self, model: Any, make_linear: Callable[[Tensor, Tensor | None], Linear], kernels: NativeKernels
    ) -> None:
        super().__init__(model, make_linear)
        self._kernels = kernels

    def __call__(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attention: SdpaAttention,
        rows: Tensor | None = None,
        changes: RowChanges | None = None,
    ) -> Tensor:
        """As Decoder's; `attention` is planned with the same kernels."""
        hidden = self._embed(input_ids, changes)
        num_rows = hidden.shape[0]
        cos, sin = (part.reshape(num_rows, self.head_dim).contiguous() for part in self._rotation(hidden, positions))
        tiles = self._tiles(num_rows)
        buffers = _Buffers(self, hidden, min(num_rows, tiles[0].stop))
        slots = torch.from_numpy(attention.slot_ids)
        for tile in tiles:
            buffers.norm(hidden[tile], None, self.layers[0].norm)
            self._project_and_store(0, buffers, tile, cos, sin, attention, slots, changes)
        heads = buffers.rotated.view(num_rows, -1, self.head_dim).transpose(0, 1)
        query, keys, values = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads))
        last = len(self.layers) - 1
        result = hidden.new_empty((num_rows if rows is None else rows.shape[0], hidden.shape[1]))
        for index, layer in enumerate(self.layers):
            context = attention.forward(index, query, keys, values, layer.scale, stored=True).reshape(num_rows, -1)
            if index == last and rows is not None:
                # What the last layer gives is read where somebody samples, and nowhere else.
                hidden, context = hidden.index_select(0, rows), context.index_select(0, rows)
                tiles = self._tiles(hidden.shape[0])
            for tile in tiles:
                delta = layer.output.multiply(context[tile].to(buffers.product_dtype))
                normed = buffers.norm(hidden[tile], delta, layer.mlp_norm)
                delta = layer.down.multiply(buffers.gate(layer.gate_up.multiply(normed)))
                if index < last:
                    buffers.norm(hidden[tile], delta, self.layers[index + 1].norm)
                    self._project_and_store(index + 1, buffers, tile, cos, sin, attention, slots, changes)
                else:
                    result[tile] = buffers.norm(hidden[tile], delta, self.norm)
        return result

    def _project_and_store(
        self,
        index: int,
        buffers: _Buffers,
        tile: slice,
        cos: Tensor,
        sin: Tensor,
        attention: SdpaAttention,
        slots: Tensor,
        changes: RowChanges | None,
    ) -> None:
        """q, k and v of one tile, rotated, into the step's buffer and, k and v, into their slots."""
        qkv = self.layers[index].qkv.multiply(buffers.normed)
        if changes is not None:
            changes.adapt(index, buffers.normed, qkv, tile.start)
        keys, values = attention.kv.layer(index)
        self._kernels.rotate_store(
            qkv, cos[tile], sin[tile], buffers.rotated[tile], keys, values, slots[tile], self.num_heads
        )


class _Buffers:
    """The step's q, k, v, and one tile's rows before and after the MLP's first product."""

    def __init__(self, decoder: NativeDecoder, hidden: Tensor, tile_rows: int) -> None:
        self._kernels, self._eps = decoder._kernels, decoder.eps
        self.product_dtype = decoder.layers[0].qkv.product_dtype(hidden.shape[0])
        width = (decoder.num_heads + 2 * decoder.num_kv_heads) * decoder.head_dim
        self.rotated = hidden.new_empty((hidden.shape[0], width))
        self._normed = hidden.new_empty((tile_rows, hidden.shape[1]), dtype=self.product_dtype)
        self._gated = hidden.new_empty((tile_rows, decoder.intermediate_size), dtype=self.product_dtype)
        self.normed = self._normed

    def norm(self, hidden: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor:
        """hidden += delta; its norm [n, hidden_size], valid until the next."""
        self.normed = self._normed[: hidden.shape[0]]
        self._kernels.add_rms_norm(hidden, delta, weight, self.normed, self._eps)
        return self.normed

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up [n, intermediate_size], valid until the next."""
        gated = self._gated[: gate_up.shape[0]]
        self._kernels.silu_mul(gate_up, gated)
        return gated
