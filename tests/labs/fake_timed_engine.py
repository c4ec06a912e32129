"""FakeTimedEngine: serves by rule, in given times, with a true prefix cache of blocks."""

from __future__ import annotations

from labs.benches.timed_engine import Served


class FakeTimedEngine:
    version, start_s = "0.fake", 1.5

    def __init__(self, name="labcli", seconds=1.0, block_size=4, shift=0, caches=True):
        self.name, self.seconds, self.block_size, self.shift, self.caches = name, seconds, block_size, shift, caches
        self.known: set[tuple[int, ...]] = set()
        self.calls: list[str] = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def reset(self):
        self.known.clear()
        self.calls.append("reset")

    def serve(self, prompts, num_outputs):
        self.calls.append(f"serve {len(prompts)}")
        hits = []
        for prompt in map(tuple, prompts):
            ends = range(self.block_size, len(prompt) + 1, self.block_size)
            found = [end for end in ends if prompt[:end] in self.known and end < len(prompt)]
            hits.append(max(found, default=0))
            self.known.update(prompt[:end] for end in ends)
        step = self.seconds / num_outputs
        times = tuple(step * (1 + at) for at in range(num_outputs))
        return Served(
            seconds=self.seconds,
            output_ids=tuple(tuple(sum(prompt) + at + self.shift for at in range(num_outputs)) for prompt in prompts),
            token_times_s=(times,) * len(prompts) if self.caches else None,
            num_cached_tokens=tuple(hits) if self.caches else None,
        )
