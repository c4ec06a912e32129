"""EngineBench: four workloads that an engine for prefix caching labs lives from, ours and a peer's in turns.

    workload    what is timed                                                     from a cache that
    cold        one prompt of 2,200 tokens, to its first token                    is empty
    warm        another that begins with 1,984 of the same tokens                 holds the first
    repeat      50 times the same prompt of 256 tokens at once, 10 outputs each   is empty
    decode      32 different prompts at once, 32 outputs each: from the           is empty
                last first token to the last token

Prompts are random ids, new in each trial, the same for all engines. One round of a trial-sized warm-up comes first:
an engine's first steps set things up. Who goes first changes from trial to trial.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from statistics import median
from typing import Callable, Mapping, Sequence

from engine.errors import ConfigError
from labs import theory
from labs.benches.timed_engine import Served, TimedEngine, TokenIds
from labs.measure import Ratio, ratio_of_medians
from labs.theory import Predicted

WORKLOADS = ("cold", "warm", "repeat", "decode")


@dataclass(frozen=True)
class Config:
    """Sizes in tokens, and how often."""

    prompt_tokens: int = 2_200
    cached_tokens: int = 1_984  # a multiple of the block size: all of it is found
    repeat_tokens: int = 256
    repeat_count: int = 50
    repeat_outputs: int = 10
    decode_tokens: int = 128
    decode_requests: int = 32
    decode_outputs: int = 32
    trials: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            low = 0 if name == "seed" else 2 if name == "decode_outputs" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ConfigError(name, value, f"a whole number from {low}")
        if self.cached_tokens >= self.prompt_tokens:
            raise ConfigError("cached_tokens", self.cached_tokens, f"a whole number below prompt_tokens, {self.prompt_tokens}")

    def check_blocks(self, block_size: int) -> None:
        """Raises ConfigError when the cached tokens are not whole blocks."""
        if self.cached_tokens % block_size:
            raise ConfigError("cached_tokens", self.cached_tokens, f"a multiple of the block size, {block_size}")

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request, outputs included."""
        return max(self.prompt_tokens + 1, self.repeat_tokens + self.repeat_outputs, self.decode_tokens + self.decode_outputs)

    @property
    def pool_tokens(self) -> int:
        """Tokens that the largest workload holds at once, with room for unfilled blocks."""
        repeat = self.repeat_tokens * 2 + self.repeat_count * (self.repeat_outputs + 64)
        return 2 * max(
            2 * self.prompt_tokens, repeat, self.decode_requests * (self.decode_tokens + self.decode_outputs + 64)
        )


@dataclass
class WorkloadTimes:
    """What one engine took for one workload, trial by trial."""

    engine: str
    workload: str
    seconds: list[float] = field(default_factory=list)
    num_cached_tokens: list[int | None] = field(default_factory=list)  # summed over requests; None: not said
    output_ids: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)


class EngineBench:
    """All times of one configuration; `engines[0]` is ours."""

    def __init__(self, config: Config, engines: Sequence[TimedEngine], vocab_size: int, block_size: int) -> None:
        config.check_blocks(block_size)
        self.config, self.engines = config, list(engines)
        self.vocab_size, self.block_size = vocab_size, block_size
        self.times = [WorkloadTimes(engine.name, workload) for workload in WORKLOADS for engine in engines]
        self._rng = random.Random(config.seed)
        self._num_trials = 0

    def expected_hits(self, workload: str) -> Predicted:
        """Tokens that a pass finds in the cache, from the configuration alone."""
        config, size = self.config, self.block_size
        if workload == "warm":
            return theory.predict(theory.reuse, config.cached_tokens, config.prompt_tokens, size)
        if workload == "repeat":
            length = config.repeat_tokens
            return theory.predict(theory.shared_prefix_hits, config.repeat_count, length, length, size)
        return theory.predict(theory.reuse, 0, config.prompt_tokens, size)

    def warm_up(self, on_run: Callable[[str], None] | None = None) -> None:
        """One uncounted pass of everything, by each engine."""
        prompts = self._prompts()
        for engine in self.engines:
            for workload in WORKLOADS:
                self._serve(engine, workload, prompts)
                if on_run is not None:
                    on_run(f"warm-up, {engine.name}, {workload}")

    def run_trial(self, on_run: Callable[[str], None] | None = None) -> None:
        """One pass of each engine through all workloads, in turns."""
        prompts = self._prompts()
        order = self.engines if self._num_trials % 2 == 0 else self.engines[::-1]
        results: dict[tuple[str, str], Served] = {}
        for workload in ("cold", "repeat", "decode"):
            for engine in order:
                # Warm goes right after cold: it needs what cold left behind.
                for one in ("cold", "warm") if workload == "cold" else (workload,):
                    results[engine.name, one] = self._serve(engine, one, prompts)
                    if on_run is not None:
                        on_run(f"{engine.name}, {one}")
        for times in self.times:  # a trial counts whole or not at all
            served = results[times.engine, times.workload]
            times.seconds.append(_timed(served, times.workload))
            cached = served.num_cached_tokens
            times.num_cached_tokens.append(None if cached is None else sum(cached))
            times.output_ids.append(served.output_ids)
        self._num_trials += 1

    def of(self, engine: str, workload: str) -> WorkloadTimes:
        """The times of one engine in one workload."""
        return next(times for times in self.times if (times.engine, times.workload) == (engine, workload))

    def ratio(self, peer: str, workload: str) -> Ratio:
        """How many times as fast ours is as a peer."""
        return ratio_of_medians(self.of(peer, workload).seconds, self.of(self.engines[0].name, workload).seconds)

    def tokens_per_s(self, times: WorkloadTimes) -> float:
        """Output tokens a second of `repeat` and `decode`, prompt tokens a second of the others; by the median."""
        config = self.config
        tokens = {
            "cold": config.prompt_tokens,
            "warm": config.prompt_tokens,
            "repeat": config.repeat_count * config.repeat_outputs,
            "decode": config.decode_requests * (config.decode_outputs - 1),
        }
        return tokens[times.workload] / median(times.seconds)

    def same_outputs(self, peer: str) -> tuple[int, int]:
        """(requests whose output tokens equal ours, requests) of a peer over all workloads and trials."""
        same = total = 0
        for workload in WORKLOADS:
            ours, theirs = self.of(self.engines[0].name, workload), self.of(peer, workload)
            for own, other in zip(ours.output_ids, theirs.output_ids):
                same += sum(one == two for one, two in zip(own, other))
                total += len(own)
        return same, total

    def _prompts(self) -> Mapping[str, list[TokenIds]]:
        config, rng = self.config, self._rng

        def prompt(num_tokens: int) -> list[int]:
            return [rng.randrange(self.vocab_size) for _ in range(num_tokens)]

        cold, repeated = prompt(config.prompt_tokens), prompt(config.repeat_tokens)
        tail = prompt(config.prompt_tokens - config.cached_tokens)
        if tail[0] == cold[config.cached_tokens]:  # by chance: then more would be found than asked for
            tail[0] = (tail[0] + 1) % self.vocab_size
        return {
            "cold": [cold],
            "warm": [cold[: config.cached_tokens] + tail],
            "repeat": [repeated] * config.repeat_count,
            "decode": [prompt(config.decode_tokens) for _ in range(config.decode_requests)],
        }

    def _serve(self, engine: TimedEngine, workload: str, prompts: Mapping[str, list[TokenIds]]) -> Served:
        if workload != "warm":
            engine.reset()
        outputs = {"repeat": self.config.repeat_outputs, "decode": self.config.decode_outputs}.get(workload, 1)
        return engine.serve(prompts[workload], outputs)


def _timed(served: Served, workload: str) -> float:
    if workload != "decode":
        return served.seconds
    assert served.token_times_s is not None, "an engine that is timed while it decodes shows its tokens one by one"
    return max(own[-1] for own in served.token_times_s) - max(own[0] for own in served.token_times_s)
