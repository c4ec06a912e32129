"""Two-caches series: prompts that bring out each difference between a hash and a radix cache, and what each cache finds.

    shared prompt        requests that share their start: block rounding
    repeats              one prompt again and again: the last token's block, when the prompt ends with a block
    mixed prefixes       each goes on from somewhere in an earlier one: a tree of many nodes
    twins at once        equal prompts in the same step: who may find what is being computed
    two in turns         A, B, A, B in a pool with room for one and a half: what is given up first
    queue, as it came    the same of two families, all waiting at once, admitted in turns ...
    queue, lpm           ... or by longest cached prefix, which brings each family together

Every forecast is made from the token ids and the laws of labs/theory.py; nothing has been sent yet.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Iterable, Sequence

from engine.errors import ConfigError
from labs import theory
from labs.caches import Cache
from labs.scenarios.hit_losses import HitLosses
from labs.workload import NUM_CANARY_TOKENS, TokenIds, workload_digest

SINGLE, TWINS, TURNS, QUEUE, SORTED = "one by one", "twins", "turns", "queue", "sorted queue"


@dataclass(frozen=True)
class Scenario:
    """Requests that are sent together or one after the other, and asked about as one row."""

    row: str
    kind: str  # SINGLE, TWINS, TURNS, QUEUE or SORTED
    prompts: tuple[TokenIds, ...] = field(repr=False)  # in the order sent
    families: tuple[int, ...] = ()  # TURNS, QUEUE, SORTED: whose turn each prompt is

    @property
    def at_once(self) -> bool:
        return self.kind in (TWINS, QUEUE, SORTED)

    @property
    def is_tight(self) -> bool:
        """Whether it runs in a pool with room for one prompt and a half."""
        return self.kind in (TURNS, QUEUE, SORTED)

    @property
    def admission(self) -> list[int]:
        """Indices of the prompts in the order of admission: longest prefix first keeps families together."""
        order = range(len(self.prompts))
        return sorted(order, key=lambda index: self.families[index]) if self.kind == SORTED else list(order)


@dataclass(frozen=True)
class Forecast:
    """What one cache should do with a scenario."""

    losses: tuple[HitLosses, ...]  # one a request, in the order sent
    num_probes: int  # by all lookups

    @property
    def total(self) -> HitLosses:
        return sum(self.losses, HitLosses())


@dataclass(frozen=True)
class TwoCachesWorkload:
    """All scenarios, in order, and a canary."""

    scenarios: tuple[Scenario, ...]
    canary_ids: TokenIds = field(repr=False)
    twin_seats: int  # twins that one step admits
    turn_tokens: int  # of each prompt in the tight pool

    @property
    def digest(self) -> str:
        return workload_digest([*(scenario.prompts for scenario in self.scenarios), (self.canary_ids,)])

    @property
    def longest(self) -> int:
        return max(len(prompt) for scenario in self.scenarios for prompt in scenario.prompts)

    def tight_blocks(self, cache: Cache) -> int:
        """Usable blocks with room for one prompt and a half, or for one and its answer where a block is that long."""
        return max(self.turn_tokens * 3 // 2 // cache.unit, -(-(self.turn_tokens + 1) // cache.unit))

    def forecasts(self, cache: Cache) -> dict[str, Forecast]:
        """By row. Those in the roomy pool follow each other in one cache; each of the tight ones starts from nothing."""
        found: dict[str, Forecast] = {}
        seen: list[tuple[TokenIds, int]] = []  # prompts in the roomy pool, and what each found
        for scenario in self.scenarios:
            history = [] if scenario.is_tight else seen
            found[scenario.row] = self._forecast(cache, scenario, history)
        return found

    def _forecast(self, cache: Cache, scenario: Scenario, seen: list[tuple[TokenIds, int]]) -> Forecast:
        """One scenario's forecast; `seen` grows by its prompts."""
        losses: dict[int, HitLosses] = {}
        num_probes = 0
        for place, index in enumerate(scenario.admission):
            prompt = scenario.prompts[index]
            num_findable = len(seen)
            if scenario.kind == TWINS and not cache.publishes_at_allocation:
                num_findable -= place % self.twin_seats  # those admitted by the same step
            findable = seen[:num_findable]
            kept = self.kept(cache, scenario)
            admitted, earlier = ([ids for ids, _ in some] for some in (seen, findable))
            losses[index] = losses_of(prompt, admitted, earlier, cache.unit, None if kept is None else kept.value)
            num_probes += _num_probes(cache, prompt, findable, losses[index].hits)
            seen.append((prompt, losses[index].hits))
        return Forecast(tuple(losses[index] for index in range(len(scenario.prompts))), num_probes)

    def kept(self, cache: Cache, scenario: Scenario) -> theory.Predicted | None:
        """Tokens of a prompt that survive the other's turn, with the law; None: no other comes in between."""
        if scenario.kind not in (TURNS, QUEUE):
            return None
        survives = theory.turn_hits_tails_first if cache.is_hash else theory.turn_hits_whole_prompts
        return theory.predict(survives, 2, self.turn_tokens, cache.unit, self.tight_blocks(cache))


def losses_of(
    prompt: Sequence[int],
    admitted: Iterable[Sequence[int]],
    findable: Iterable[Sequence[int]],
    unit: int,
    kept_tokens: int | None = None,
) -> HitLosses:
    """What one prompt is offered and loses.

    admitted     the prompts admitted before it, those of its own step included
    findable     those of them whose K/V can be found when it is looked up
    kept_tokens  most tokens that survive until then; None: nothing is evicted
    """
    offered, match = theory.longest_match(prompt, admitted), theory.longest_match(prompt, findable)
    whole = theory.reuse(match, len(prompt), unit)
    kept = whole if kept_tokens is None else min(whole, kept_tokens)
    return HitLosses(
        offered,
        offered - match,
        theory.rounding_loss(match, unit),
        theory.last_token_loss(match, len(prompt), unit),
        whole - kept,
    )


def _num_probes(cache: Cache, prompt: TokenIds, findable: Sequence[tuple[TokenIds, int]], num_hits: int) -> int:
    if cache.is_hash:
        match = theory.longest_match(prompt, (ids for ids, _ in findable))
        return theory.hash_probes(match, len(prompt), cache.unit)
    return theory.tree_probes(theory.path_nodes(prompt, findable, cache.unit), num_hits, len(prompt), cache.unit)


class WorkloadMaker:
    """Draws prompts from a seed; no two scenarios begin with the same token, nor does the canary."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        if vocab_size < 64:
            raise ConfigError("vocab_size", vocab_size, "at least 64: the scenarios begin with different tokens")
        self._rng = random.Random(seed)
        self._vocab_size = vocab_size
        self._firsts = iter(self._rng.sample(range(vocab_size), 64))

    def new_prompt(self, num_tokens: int) -> TokenIds:
        """Begins like no other prompt."""
        return (next(self._firsts), *self._draw(num_tokens - 1))

    def canary(self) -> TokenIds:
        return self.new_prompt(NUM_CANARY_TOKENS)

    def shared(self, num_shared: int, num_tail: int, count: int) -> tuple[TokenIds, ...]:
        """`count` prompts with the same start, that differ at once behind it."""
        head = self.new_prompt(num_shared)
        firsts = self._rng.sample(range(self._vocab_size), count)
        return tuple((*head, first, *self._draw(num_tail - 1)) for first in firsts)

    def mixed(self, longest: int, count: int) -> tuple[TokenIds, ...]:
        """Each goes on from anywhere in an earlier one, up to its end; some are an earlier one again."""
        prompts = [self.new_prompt(longest)]
        while len(prompts) < count:
            start = self._rng.choice(prompts)
            cut = self._rng.randint(1, len(start))
            prompts.append((*start[:cut], *self._draw(self._rng.randint(0, longest - cut))))
        return tuple(prompts)

    def _draw(self, count: int) -> list[int]:
        return [self._rng.randrange(self._vocab_size) for _ in range(count)]
