"""EvictionModel: what each request of a series finds in a pool too small for all of them, by moving names in a list.

Two small models that predict without the engine. Requests come one after the other, each with one generated token; two
prompts are the same or share nothing, so a prompt is known by its letter:

    NamedBlocks   vLLM's pool: a list of free blocks, handed out from the front
                  front [ –  –  A5 A4 A3 A2 A1 B5 B4 B3 B2 B1 ] back      unnamed first, then least recently freed
    WholeLeaves   SGLang's tree: prompts are leaves, and a leaf dies as a whole

Sources: vLLM 0.32.0, v1/core/block_pool.py; SGLang 0.5.23, srt/mem_cache/radix_cache.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

BlockName = tuple[str, int]  # a prompt's letter, and which of its blocks


@dataclass
class Served:
    """What one request found, and which blocks died for it, in order."""

    hits: int  # tokens
    evicted: list[BlockName] = field(default_factory=list)  # also those that the request itself fills anew


class EvictionModel(Protocol):
    """A pool of `num_blocks` blocks of `unit` tokens."""

    def serve(self, prompt: str, num_tokens: int) -> Served:
        """Look the prompt up, take blocks for what is missing, give all back. The prompt must fit the pool."""
        ...


class NamedBlocks:
    """vLLM's order: a request's blocks go back tail first, so its first block is the last of them to be handed out."""

    def __init__(self, num_blocks: int, unit: int, heads_first: bool = False) -> None:
        self.unit = unit
        self.heads_first = heads_first
        self.free: list[BlockName | None] = [None] * num_blocks  # None: holds nothing that can be found

    def serve(self, prompt: str, num_tokens: int) -> Served:
        names = [(prompt, index) for index in range(num_tokens // self.unit)]
        num_wanted, present = -(-num_tokens // self.unit), set(self.free)
        num_found = 0
        while num_found < (num_tokens - 1) // self.unit and names[num_found] in present:
            num_found += 1
        hits, others = set(names[:num_found]), []
        for name in self.free:
            if name in hits:
                hits.discard(name)  # taken out of the middle; a second block of that name stays
            else:
                others.append(name)
        taken, kept = others[: num_wanted - num_found], others[num_wanted - num_found :]
        partial = [None] * (num_wanted - len(names))
        self.free = partial + kept + (names if self.heads_first else names[::-1])
        return Served(num_found * self.unit, [name for name in taken if name is not None])


@dataclass
class _Run:
    """Pages [start, end) of a prompt in one node of the tree."""

    start: int
    end: int
    last_use: int


class WholeLeaves:
    """SGLang's order: the leaf used longest ago goes first, whole. A prompt found but for its last page is cut there."""

    def __init__(self, num_blocks: int, unit: int) -> None:
        self.unit = unit
        self.num_free = num_blocks
        self.runs: dict[str, list[_Run]] = {}  # by prompt, from the root down; the last one is its leaf
        self.clock = 0

    def serve(self, prompt: str, num_tokens: int) -> Served:
        self.clock += 1
        most, num_full, num_wanted = (num_tokens - 1) // self.unit, num_tokens // self.unit, -(-num_tokens // self.unit)
        locked = self._match(prompt, most)
        num_found = locked[-1].end if locked else 0
        num_new = num_wanted - num_found
        served = Served(num_found * self.unit)
        while self.num_free < num_new:
            served.evicted += self._evict(locked)
        runs = self.runs.setdefault(prompt, [])
        num_stored = runs[-1].end if runs else 0
        if num_stored < num_full:
            runs.append(_Run(num_stored, num_full, self.clock))
            self.num_free -= num_full - num_stored
        for run in runs:
            run.last_use = self.clock
        return served

    def _match(self, prompt: str, most: int) -> list[_Run]:
        """The runs of the first `most` pages, marked as used; a longer run is cut."""
        found: list[_Run] = []
        for run in list(self.runs.get(prompt, ())):
            if run.start >= most:
                break
            run.last_use = self.clock
            if run.end > most:
                lower = _Run(most, run.end, self.clock)
                run.end = most
                self.runs[prompt].append(lower)
            found.append(run)
        return found

    def _evict(self, locked: list[_Run]) -> list[BlockName]:
        """The pages of the leaf used longest ago, which is free from now on."""
        leaves = [(runs[-1].last_use, prompt) for prompt, runs in self.runs.items() if runs and runs[-1] not in locked]
        _, prompt = min(leaves)
        run = self.runs[prompt].pop()
        self.num_free += run.end - run.start
        return [(prompt, page) for page in range(run.start, run.end)]


def replay(model: EvictionModel, prompts: list[str], num_tokens: int) -> list[Served]:
    """Serve prompts of one length, one after the other."""
    return [model.serve(prompt, num_tokens) for prompt in prompts]
