"""PreemptionSeries: requests sent at once into a pool too small for them, and what was counted.

    Pair           two equal requests, with what must happen to the newer one
    send_at_once   any requests; a Run is what came of them
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Sequence

from engine.errors import EngineError
from engine.request import SamplingParams
from labs import theory
from labs.caches import Cache
from labs.protocol import Prediction
from labs.targets.base import CacheCounters, Target, TargetError
from labs.watch.block_map import BlockMap
from labs.watch.preemption_watch import PreemptionWatch
from labs.workload import TokenIds


@dataclass(frozen=True)
class Pair:
    """Two equal requests at once in one pool, with what must happen to the second."""

    cache: Cache
    prompt_tokens: int
    output_tokens: int
    pool_tokens: int

    @property
    def num_usable(self) -> int:
        return self.pool_tokens // self.cache.unit

    @property
    def group(self) -> str:
        sizes = f"two requests of {self.prompt_tokens:,} tokens, {self.output_tokens:,} generated"
        return f"No room for the second: {sizes}, pool for {self.pool_tokens:,}" if self.waits else f"{self.cache.title}: {sizes}"

    @property
    def row(self) -> str:
        return self.cache.title if self.waits else f"pool for {self.pool_tokens:,}"

    @property
    def waits(self) -> bool:
        """Whether there is no room for both prompts."""
        return -(-self.prompt_tokens // self.cache.unit) > self.num_usable // 2

    @property
    def preempts(self) -> bool:
        """Whether the second is preempted."""
        return bool(theory.preemptions_of_newer(self.prompt_tokens, self.output_tokens, self.cache.unit, self.num_usable))

    def predictions(self) -> dict[str, Prediction]:
        """By the name of the measurement."""
        sizes = (self.prompt_tokens, self.output_tokens, self.cache.unit, self.num_usable)
        hits = theory.predict(theory.shared_prefix_hits, 2, 0, self.prompt_tokens, self.cache.unit)
        queries = theory.predict(theory.queries, 2, self.prompt_tokens)
        first = {"hits": Prediction(*hits), "queries": Prediction(*queries)}
        preempted = theory.predict(theory.preemptions_of_newer, *sizes)
        if self.waits:
            refused = Prediction(*theory.predict(theory.failed_admissions, self.output_tokens))
            return {"refused": refused, "preempted": Prediction(*preempted), **first}
        outputs = theory.predict(theory.outputs_of_newer, *sizes)
        found = {"preempted": Prediction(*preempted), "outputs": Prediction(*outputs)}
        if not preempted.value:
            nothing = Prediction(*theory.predict(theory.of_preempted, 0, self.prompt_tokens + self.output_tokens))
            return {**found, "looked_up": nothing, "found": nothing, "computed_twice": nothing, **first}
        law_of_hits = theory.resumed_hits_tails_first if self.cache.is_hash else theory.resumed_hits_whole_leaf
        looked_up = theory.predict(theory.resumed_queries, self.prompt_tokens, int(outputs.value))
        again = theory.predict(law_of_hits, *sizes)
        return {
            **found,
            "looked_up": Prediction(*looked_up),
            "found": Prediction(*again),
            "computed_twice": Prediction(*theory.predict(theory.computed_twice, int(looked_up.value), int(again.value))),
            **first,
        }


@dataclass(frozen=True)
class Run:
    """Requests sent at once, and everything that was counted."""

    outputs: tuple[tuple[int, ...], ...]  # token ids
    seconds: float  # from sending to the last token of all
    counters: CacheCounters
    watch: PreemptionWatch
    num_needed: int  # tokens to compute if nothing is computed twice

    @property
    def counts_of_newer(self) -> dict[str, int]:
        """Of two requests: what happened to the newer one, and all lookups; by the names of `Pair.predictions`."""
        victims = [one for one in self.watch.preemptions if one.request == 1]  # the older one must never be
        return {
            "preempted": len(victims),
            "outputs": victims[0].num_outputs if victims else len(self.outputs[1]),
            "looked_up": self.counters.preempted_queries,
            "found": self.counters.preempted_hits,
            "computed_twice": self.num_computed_twice,
            "refused": self.watch.num_refused,
            "hits": self.counters.hits,
            "queries": self.counters.queries,
        }

    @property
    def num_computed_twice(self) -> int:
        return self.watch.num_computed - self.num_needed

    @property
    def requests_per_step(self) -> float:
        """How many requests a step served, on average."""
        return self.watch.num_served / self.watch.num_steps

    @property
    def survival(self) -> float | None:
        """Share of a resumed request's tokens that it found; None if none resumed."""
        return self.counters.preempted_hits / self.counters.preempted_queries if self.counters.preempted_queries else None

    @property
    def naive_rate(self) -> float:
        """What adding both kinds of lookups would show."""
        counted = self.counters
        return (counted.hits + counted.preempted_hits) / (counted.queries + counted.preempted_queries)

    @property
    def unaccounted(self) -> int:
        """Tokens in which the counters of resumed requests differ from the engine's plans."""
        looked_up = sum(one.num_tokens for one in self.watch.resumptions)
        hits = sum(one.num_hits for one in self.watch.resumptions)
        return abs(self.counters.preempted_queries - looked_up) + abs(self.counters.preempted_hits - hits)


def send_at_once(
    target: Target, prompts: Sequence[TokenIds], output_tokens: Sequence[int], block_map: BlockMap | None = None
) -> Run:
    """Each prompt with its number of outputs; greedy, to the last token. The target must be in this process."""
    watch = PreemptionWatch(target.engine)
    target.counters()  # start from zero
    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in output_tokens]
    with ExitStack() as watches:
        watches.enter_context(watch.watching())
        if block_map is not None:
            watches.enter_context(block_map.watching())
        # The engine itself: a target gives all requests that are sent at once the same length.
        try:
            outputs = target.engine.generate(list(prompts), params)
        except EngineError as error:
            raise TargetError(f"the engine refused a request: {error}") from error
    return Run(
        tuple(tuple(one.output_token_ids) for one in outputs),
        max(one.metrics.e2e_s for one in outputs),
        target.counters(),
        watch,
        sum(theory.offered_by_turn(len(prompt), count) for prompt, count in zip(prompts, output_tokens)),
    )
