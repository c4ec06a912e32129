"""EvictionSeries: prompts in turn in a pool too small for them, by order of eviction, with every prediction made.

    order     tails first (vLLM), heads first (a mistake), whole leaves (SGLang)
    cycle     A B C A B C …: how many prompts, how long, how large the pool, how many requests
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from labs import theory
from labs.caches import Cache, caches
from labs.protocol import Prediction
from labs.scenarios.eviction_model import EvictionModel, NamedBlocks, Served, WholeLeaves, replay

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, eq=False)
class Order:
    """A cache with its order of eviction."""

    cache: Cache
    column: str  # "tails_first", "heads_first", "page_1": its name in the sweeps' tables
    heads_first: bool = False

    @property
    def title(self) -> str:
        return self.cache.title + (", heads first" if self.heads_first else "")

    @property
    def keeps_heads(self) -> bool:
        return self.cache.is_hash and not self.heads_first

    @property
    def engine_fields(self) -> dict[str, Any]:
        return {**self.cache.engine_fields, **({"free_heads_first": True} if self.heads_first else {})}

    def num_usable(self, pool_tokens: int) -> int:
        return pool_tokens // self.cache.unit

    def model(self, pool_tokens: int) -> EvictionModel:
        num_blocks, unit = self.num_usable(pool_tokens), self.cache.unit
        return NamedBlocks(num_blocks, unit, self.heads_first) if self.cache.is_hash else WholeLeaves(num_blocks, unit)


@dataclass(frozen=True)
class Cycle:
    """Prompts in turn in one pool, with every prediction made."""

    num_prompts: int
    num_requests: int
    prompt_tokens: int
    pool_tokens: int

    @property
    def letters(self) -> list[str]:
        return [LETTERS[number % self.num_prompts] for number in range(self.num_requests)]

    def served(self, order: Order) -> list[Served]:
        """What each request finds and evicts, by the model."""
        return replay(order.model(self.pool_tokens), self.letters, self.prompt_tokens)

    def per_turn(self, order: Order) -> Prediction | None:
        """What a prompt finds at each turn but its first; None where the law does not reach."""
        if self._is_filled_to_the_last_page(order):
            return None
        law = theory.turn_hits_tails_first if order.keeps_heads else theory.turn_hits_whole_prompts
        num_usable = order.num_usable(self.pool_tokens)
        return Prediction(*theory.predict(law, self.num_prompts, self.prompt_tokens, order.cache.unit, num_usable))

    def total(self, order: Order) -> Prediction | None:
        per_turn = self.per_turn(order)
        if per_turn is None:
            return None
        return Prediction(*theory.predict(theory.hits_in_turn, self.num_requests, self.num_prompts, int(per_turn.value)))

    def _is_filled_to_the_last_page(self, order: Order) -> bool:
        """Whether all prompts fill a tree's pool exactly: the page that a hit computes anew then costs a leaf."""
        num_pages, rest = divmod(self.prompt_tokens, order.cache.unit)
        return not order.cache.is_hash and rest == 0 and order.num_usable(self.pool_tokens) == self.num_prompts * num_pages

    def fits(self, order: Order) -> bool:
        """Whether a prompt at work leaves room for all that the others keep."""
        at_work, num_full = -(-self.prompt_tokens // order.cache.unit), self.prompt_tokens // order.cache.unit
        return order.num_usable(self.pool_tokens) >= at_work + (self.num_prompts - 1) * num_full

    def later_rate(self, num_hits: int) -> float:
        """Hit rate without the first turn of each prompt, which cannot hit: what a long run tends to."""
        return num_hits / ((self.num_requests - self.num_prompts) * self.prompt_tokens)

    @property
    def queries(self) -> Prediction:
        return Prediction(*theory.predict(theory.queries, self.num_requests, self.prompt_tokens))


def orders_of(block_size: int, page_sizes: Sequence[int]) -> list[Order]:
    """vLLM's order, the same cache freed heads first, and the trees."""
    named, *trees = caches(block_size, page_sizes)
    return [
        Order(named, "tails_first"),
        Order(named, "heads_first", heads_first=True),
        *(Order(tree, f"page_{tree.unit}") for tree in trees),
    ]
