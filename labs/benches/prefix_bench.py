"""PrefixBench: the requests of vLLM's prefix caching benchmark, served twice, by our engine and peers in turns.

    first pass    all requests at once, from an empty cache: a prompt misses when it comes first, its repeats hit
    again         the same requests, with everything in the cache

The script makes the first pass alone, once, cold start included, and prints its time. Here a warm-up with other
tokens comes before, passes are repeated, hits are compared with their law, and times are told apart by whether the
request found anything. An engine that keeps no cache from call to call makes the first pass only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from statistics import median
from typing import Callable, Sequence

from labs.benches.prefix_bench_prompts import BenchRequest
from labs.benches.timed_engine import Served, TimedEngine
from labs.measure import Ratio, ratio_of_medians

PASSES = ("first pass", "again")


@dataclass
class PassTimes:
    """All trials of one pass by one engine."""

    engine: str
    name: str  # one of PASSES
    served: list[Served] = field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        return [one.seconds for one in self.served]

    @property
    def hits(self) -> list[int]:
        """Tokens found in the cache, by trial; empty when the engine does not say."""
        return [sum(one.num_cached_tokens) for one in self.served if one.num_cached_tokens is not None]

    def ttfts_s(self, hit: bool) -> list[float]:
        """Seconds to the first token of all requests that found something in the cache, or of all that did not."""
        return [
            times[0]
            for one in self.served
            if one.token_times_s is not None and one.num_cached_tokens is not None
            for times, cached in zip(one.token_times_s, one.num_cached_tokens)
            if (cached > 0) == hit
        ]

    @property
    def token_gaps_s(self) -> list[float]:
        """Seconds between two tokens of one request, all of them."""
        return [
            later - earlier
            for one in self.served
            for times in one.token_times_s or ()
            for earlier, later in zip(times, times[1:])
        ]


class PrefixBench:
    """All times of one list of requests; `engines[0]` is ours."""

    def __init__(
        self, requests: Sequence[BenchRequest], output_len: int, engines: Sequence[TimedEngine], *, again: bool = True
    ) -> None:
        """again: whether there is a second pass; without a cache it would be the first once more."""
        self.requests, self.output_len, self.engines = list(requests), output_len, list(engines)
        self.passes = [PassTimes(engine.name, name) for name in PASSES[: 1 + again] for engine in engines]
        self._num_trials = 0

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.token_ids) for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        return len(self.requests) * self.output_len

    def warm_up(self, vocab_size: int, seed: int = 0) -> None:
        """Prompts of the same lengths and other tokens, a few, uncounted."""
        rng = random.Random(f"warm-up {seed}")
        lengths = [len(request.token_ids) for request in self.requests[:4]]
        prompts = [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]
        for engine in self.engines:
            engine.serve(prompts, self.output_len)

    def run_trial(self, on_run: Callable[[str], None] | None = None) -> None:
        """Both passes by each engine; who goes first changes from trial to trial."""
        prompts = [request.token_ids for request in self.requests]
        results: dict[tuple[str, str], Served] = {}
        for engine in self.engines if self._num_trials % 2 == 0 else self.engines[::-1]:
            engine.reset()
            results[engine.name, PASSES[0]] = first = engine.serve(prompts, self.output_len)
            if self.of(engine.name, PASSES[1]) is not None and first.num_cached_tokens is not None:
                results[engine.name, PASSES[1]] = engine.serve(prompts, self.output_len)
            if on_run is not None:
                on_run(engine.name)
        for (engine_name, name), served in results.items():  # a trial counts whole or not at all
            times = self.of(engine_name, name)
            assert times is not None
            times.served.append(served)
        self._num_trials += 1

    def of(self, engine: str, name: str) -> PassTimes | None:
        """One engine's pass; None when there is none."""
        return next((one for one in self.passes if (one.engine, one.name) == (engine, name)), None)

    def ratio(self, peer: str, name: str) -> Ratio | None:
        """How many times as fast our pass is as a peer's; None when the peer made none."""
        ours, theirs = self.of(self.engines[0].name, name), self.of(peer, name)
        if ours is None or theirs is None or not ours.served or not theirs.served:
            return None
        return ratio_of_medians(theirs.seconds, ours.seconds)

    def differing_outputs(self, peer: str) -> list[tuple[int, int]]:
        """(request, first differing output position) where a peer's first pass gave other tokens than ours, first trial."""
        ours, theirs = self.of(self.engines[0].name, PASSES[0]), self.of(peer, PASSES[0])
        assert ours is not None and theirs is not None
        if not ours.served or not theirs.served:
            return []
        pairs = zip(ours.served[0].output_ids, theirs.served[0].output_ids)
        return [
            (number, next(at for at, (one, two) in enumerate(zip(own, other)) if one != two))
            for number, (own, other) in enumerate(pairs)
            if own != other
        ]

    def rates(self, times: PassTimes) -> tuple[float, float, float]:
        """Requests, prompt tokens and output tokens a second, by the median."""
        seconds = median(times.seconds)
        return len(self.requests) / seconds, self.num_prompt_tokens / seconds, self.num_output_tokens / seconds
