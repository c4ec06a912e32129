"""Paged K/V storage: every layer's keys and values, addressed by slot.

    slot = block_id * unit_size + offset

    block          0 (null)      1             2             3
    slots     │ 0 … 15      │ 16 … 31     │ 32 … 47     │ 48 … 63     │      unit_size = 16
    one slot  [num_kv_heads, head_dim] per layer, once for keys and once for values

The slots of one token lie side by side for all its heads, so writing and gathering move whole rows.
"""

from __future__ import annotations

from typing import Union

import numpy as np
import torch
from torch import Tensor

# A run of neighbouring slots is a slice (reading it copies nothing); any other set is a tensor of slots.
Slots = Union[slice, Tensor]


def slots_of(block_table: list[int] | np.ndarray, unit_size: int, num_tokens: int) -> np.ndarray:
    """Slots of a request's first `num_tokens` tokens, in token order.

    block_table  [num_request_blocks] block ids
    returns      [num_tokens] int64
    """
    blocks = np.asarray(block_table, dtype=np.int64)[: -(-num_tokens // unit_size)]
    assert len(blocks) * unit_size >= num_tokens, "the block table covers fewer tokens than were scheduled"
    if unit_size == 1:
        return blocks
    return (blocks[:, None] * unit_size + np.arange(unit_size)).reshape(-1)[:num_tokens]


def as_slots(slots: np.ndarray, device: torch.device) -> Slots:
    """A slice if the slots are one ascending run, else a tensor of them on `device`.

    slots  [n] int64, n at least 1
    """
    first, last = int(slots[0]), int(slots[-1])
    if last - first == len(slots) - 1 and bool((np.diff(slots) == 1).all()):
        return slice(first, last + 1)
    return torch.from_numpy(np.ascontiguousarray(slots)).to(device, non_blocking=True)


class KVTensors:
    """Keys and values of all layers, allocated once.

    keys, values  each [num_layers, num_slots, num_kv_heads, head_dim], zeros until written
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        unit_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.unit_size = unit_size
        self.num_slots = num_blocks * unit_size
        self.dtype = dtype
        self.device = device
        # Zeros, not empty: a masked slot is multiplied by weight 0, and 0 times a stray NaN is NaN. Written here, so
        # that no step pays for pages that the system provides when they are first touched.
        storage = torch.zeros((2, num_layers, self.num_slots, num_kv_heads, head_dim), dtype=dtype, device=device)
        self.keys, self.values = storage[0], storage[1]
        # One view per layer, made once: indexing a tensor costs microseconds, and layers ask every step.
        self._layer_keys = list(self.keys)
        self._layer_values = list(self.values)
        self._scratch: Tensor | None = None  # where gathered slots go, grown as needed

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of all slots of a layer, each [num_slots, num_kv_heads, head_dim]; views."""
        return self._layer_keys[layer], self._layer_values[layer]

    def write(self, layer: int, slots: Slots, keys: Tensor, values: Tensor) -> None:
        """Store keys and values, each [n, num_kv_heads, head_dim], into n slots of a layer."""
        layer_keys, layer_values = self._layer_keys[layer], self._layer_values[layer]
        if isinstance(slots, slice):
            layer_keys[slots].copy_(keys)
            layer_values[slots].copy_(values)
        else:
            layer_keys.index_copy_(0, slots, keys)
            layer_values.index_copy_(0, slots, values)

    def read(self, layer: int, slots: Slots) -> tuple[Tensor, Tensor]:
        """Keys and values of n slots of a layer, each [n, num_kv_heads, head_dim].

        Views into the storage for a slice; copies for a tensor of slots, valid until the next read.
        """
        layer_keys, layer_values = self._layer_keys[layer], self._layer_values[layer]
        if isinstance(slots, slice):
            return layer_keys[slots], layer_values[slots]
        # Memory that is there already: new megabytes would be mapped and zeroed by the system at every call.
        num_slots = slots.shape[0]
        if self._scratch is None or self._scratch.shape[1] < num_slots:
            self._scratch = layer_keys.new_empty((2, -(-num_slots // 1024) * 1024, *layer_keys.shape[1:]))
        keys, values = self._scratch[0, :num_slots], self._scratch[1, :num_slots]
        return (
            torch.index_select(layer_keys, 0, slots, out=keys),
            torch.index_select(layer_values, 0, slots, out=values),
        )
