"""RowChanges: what some rows of a step have of their own, besides their token: an embedding, an adapter.

    rows         0 … 6         7        8 … 11       12
    request      a             b        c            d
    embedding                           given                    in place of the token's
    adapter      seeded:1               seeded:2                 added to the products for q, k and v of these rows alone

Steps without either have no RowChanges, and run as if there were none of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from torch import Tensor

from engine.model.lora_adapter import LoraAdapter


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The changes of one step; ranges of rows are half-open and do not overlap.

    embeddings  (first row, [n, hidden_size] in any dtype), on the model's device
    adapters    (first row, row behind the last, adapter)
    """

    embeddings: Sequence[tuple[int, Tensor]] = ()
    adapters: Sequence[tuple[int, int, LoraAdapter]] = ()

    def embed(self, hidden: Tensor) -> None:
        """Put the given embeddings into `hidden` [T, hidden_size]."""
        for first, values in self.embeddings:
            hidden[first : first + values.shape[0]] = values

    def adapt(self, layer: int, normed: Tensor, qkv: Tensor, first_row: int) -> None:
        """Add the adapters' products to those of the model, in place, before anything is rotated.

        normed     [n, hidden_size], what the products are of
        qkv        [n, q + k + v]
        first_row  the step's row that both begin with
        """
        for start, end, adapter in self.adapters:
            low, high = max(start - first_row, 0), min(end - first_row, normed.shape[0])
            if low < high:
                qkv[low:high] += adapter.product(layer, normed[low:high])

    def adapt_part(self, layer: int, part: int, normed: Tensor, product: Tensor) -> None:
        """The same for q (part 0), k (1) or v (2) alone, over all T rows of the step."""
        for start, end, adapter in self.adapters:
            product[start:end] += adapter.product_of(layer, part, normed[start:end])
