"""BlockMap: the state of every block of a pool, step by step, as the letters of a chart.

    step 1   aaaaa.....     one letter a block, in the order in which the empty pool hands its blocks out
    step 2   cccc.aaaaa
    step 3   AAxxxx....     found again, and evicted for the rest

What a block holds is named by its whole prefix, with either cache, so that "handed out and filled anew with other content
in one step" is seen as an eviction. A block that lost its content and was given to a request shows the loss.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Hashable, Sequence

from engine.kvcache.radix_tree import RadixNode
from engine.llm_engine import LLMEngine
from engine.scheduler import SchedulerOutput
from labs.chart import Chart, ChartSeries
from labs.watch.step_watch import watch_steps
from labs.targets.base import Target

MAX_ROWS = 24  # what fits a terminal


def cached_content(engine: LLMEngine) -> dict[int, Hashable]:
    """Block id -> name of its content, for every block that a lookup could find now."""
    cache = engine.manager.prefix_cache
    if engine.config.prefix_cache == "hash":
        return dict(cache.name_of_block)
    size = engine.config.page_size
    names: dict[RadixNode, list[Hashable]] = {}
    content: dict[int, Hashable] = {}
    for node in cache.tree.nodes():  # parents before children
        above = names.get(node.parent, [None])[-1]
        names[node] = _chain(node.tokens, size, above)
        content.update(zip((slot // size for slot in node.slots[::size]), names[node]))
    return content


def content_of(target: Target, prompt: Sequence[int]) -> list[Hashable]:
    """The names under which a prompt's full blocks are found, first block first."""
    if target.info.prefix_cache == "hash":
        return [bytes.fromhex(name) for name in target.block_hashes(prompt)]
    return _chain(prompt, target.info.unit_size, None)


def _chain(tokens: Sequence[int], size: int, above: Hashable) -> list[Hashable]:
    """A name for each whole page, which contains everything before it."""
    names: list[Hashable] = []
    for start in range(0, len(tokens) // size * size, size):
        above = hash((above, tuple(tokens[start : start + size])))
        names.append(above)
    return names


class BlockMap:
    """Rows of letters, one a step, and what was evicted in all of them.

    engine   idle, its cache empty
    labels   what to call the first, second, … step; beyond them, and without, a step has its number
    changes  leave out a step that looks like the one before

    MAX_ROWS are drawn; evictions are noted beyond them.
    """

    def __init__(self, engine: LLMEngine, labels: Sequence[str] = (), changes: bool = False) -> None:
        self._engine = engine
        self._names = labels
        self._changes = changes
        self._columns = engine.manager.pool.free_queue.all_ids()
        self._before: dict[int, Hashable] = {}
        self._num_steps = 0
        self.labels: list[str] = []
        self.cells: list[str] = []
        self.evicted: list[Hashable] = []  # contents, in the order of the pool's blocks within a step

    def watching(self) -> AbstractContextManager[None]:
        """Note every step inside the `with`."""
        return watch_steps(self._engine, self._after, self._note_before)

    def chart(self, title: str, x_label: str) -> Chart:
        return Chart("block_map", title, (ChartSeries("blocks", tuple(self.labels), cells=tuple(self.cells)),), "blocks", x_label)

    def _note_before(self) -> None:
        self._before = cached_content(self._engine)

    def _after(self, plan: SchedulerOutput) -> None:
        now = cached_content(self._engine)
        lost = [block for block in self._columns if block in self._before and now.get(block) != self._before[block]]
        self.evicted += [self._before[block] for block in lost]
        row = "".join("x" if block in lost else self._letter(block, block in now) for block in self._columns)
        if len(self.cells) < MAX_ROWS and not (self._changes and self.cells and row == self.cells[-1]):
            self.labels.append(self._names[self._num_steps] if self._num_steps < len(self._names) else str(self._num_steps + 1))
            self.cells.append(row)
        self._num_steps += 1

    def _letter(self, block: int, is_cached: bool) -> str:
        num_users = self._engine.manager.pool.ref_counts[block]
        # A tree counts as a user of what it stores.
        num_requests = num_users - 1 if is_cached and self._engine.config.prefix_cache == "radix" else num_users
        if num_requests:
            return "A" if is_cached else "a"
        return "c" if is_cached else "."
