"""BlockMap: the state of every block of a pool, step by step, as the letters of a chart.

    step 1   aaaaa.....     one letter a block, in the order in which the empty pool hands its blocks out
    step 2   cccc.aaaaa
    step 3   AAxxxx....     found again, and evicted for the rest

What a block holds is named by its whole prefix, with either cache. An eviction is noted when the cache takes the name off the
block, so "handed out and filled anew in one step" is one, with other content or with the same. A block that lost its content
and was given to a request shows the loss.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Hashable, Iterator, Sequence

from engine.kvcache.radix_tree import RadixNode
from engine.llm_engine import LLMEngine
from engine.scheduler import SchedulerOutput
from labs.chart import Chart, ChartSeries
from labs.targets.base import Target
from labs.watch.step_watch import watch_steps

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

    engine   idle; what its cache still holds stands behind the free blocks
    labels   what to call the first, second, … step; beyond them, and without, a step has its number
    changes  leave out a step that looks like the one before

    MAX_ROWS are drawn; evictions are noted beyond them.
    """

    def __init__(self, engine: LLMEngine, labels: Sequence[str] = (), changes: bool = False) -> None:
        self._engine = engine
        self._names = labels
        self._changes = changes
        free = engine.manager.pool.free_queue.all_ids()
        self._columns = [*free, *sorted(set(range(1, engine.manager.pool.num_blocks)) - set(free))]
        self._lost: list[tuple[int, Hashable]] = []  # block and content, of the step at work
        self._num_steps = 0
        self.labels: list[str] = []
        self.cells: list[str] = []
        self.evicted: list[Hashable] = []  # contents, in the order of the pool's blocks within a step

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note every step inside the `with`."""
        cache = self._engine.manager.prefix_cache
        # Where content ends: a named block is handed out, or a tree gives up leaves.
        watched = ("forget", "make_room")
        for name in watched:
            setattr(cache, name, self._noting(getattr(cache, name)))
        try:
            with watch_steps(self._engine, self._after):
                yield
        finally:
            for name in watched:
                delattr(cache, name)  # the class's own is left

    def chart(self, title: str, x_label: str) -> Chart:
        return Chart("block_map", title, (ChartSeries("blocks", tuple(self.labels), cells=tuple(self.cells)),), "blocks", x_label)

    def _noting(self, inside: Callable[[Any], int]) -> Callable[[Any], int]:
        """The same, with what it takes from the cache noted."""

        def take(argument: Any) -> int:
            before = cached_content(self._engine)
            num_blocks = inside(argument)
            now = cached_content(self._engine)
            self._lost += [(block, name) for block, name in before.items() if now.get(block) != name]
            return num_blocks

        return take

    def _after(self, plan: SchedulerOutput) -> None:
        now, lost = cached_content(self._engine), {block for block, _ in self._lost}
        self.evicted += [name for _, name in sorted(self._lost, key=lambda one: self._columns.index(one[0]))]
        self._lost.clear()
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
