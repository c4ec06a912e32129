"""RadixTree against a dict from (name space, prefix) to the slots of the prefix's last page.

The runs of the tree are modelled without a tree: a run is named by the prefix at its end, and reaches back to the
longest other run's end that is a prefix of it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.kvcache.cache_identity import Namespace
from engine.kvcache.radix_tree import EVICTION_POLICIES, RadixNode, RadixTree

Prefix = tuple[Namespace, tuple[int, ...]]
NAMESPACES = [Namespace(None, None), Namespace(None, "a"), Namespace("a", None)]
# Pages that part in the first or the last token, and a rest that fills no page.
KEYS = st.tuples(st.sampled_from(NAMESPACES), st.lists(st.integers(0, 2), max_size=5), st.booleans())


@dataclass
class Run:
    access: int
    creation: int
    hits: int = 0
    priority: int = 0


EVICTED_FIRST: dict[str, Any] = {
    "lru": lambda run: run.access,
    "mru": lambda run: -run.access,
    "fifo": lambda run: run.creation,
    "filo": lambda run: -run.creation,
    "lfu": lambda run: (run.hits, run.access),
    "slru": lambda run: (run.hits >= 2, run.access),
    "priority": lambda run: (run.priority, run.access),
}
assert set(EVICTED_FIRST) == set(EVICTION_POLICIES)


class TreeMachine(RuleBasedStateMachine):
    page_size: ClassVar[int]

    @initialize(policy=st.sampled_from(EVICTION_POLICIES))
    def open(self, policy: str) -> None:
        self.policy = policy
        self.tree = RadixTree(self.page_size, policy, clock=count().__next__)
        self.ticks, self.fresh_slots = count(), count(1000)
        self.pages: dict[Prefix, list[int]] = {}  # each stored prefix of whole pages -> slots of its last page
        self.runs: dict[Prefix, Run] = {}  # by the prefix at the run's end
        self.locks: list[tuple[RadixNode, Prefix]] = []

    # The model.

    def key(self, drawn: tuple[Namespace, list[int], bool]) -> tuple[Namespace, list[int]]:
        namespace, kinds, rest = drawn
        size = self.page_size
        pages = [[1] * size, [1] * (size - 1) + [2], [3] * size]
        return namespace, [token for kind in kinds for token in pages[kind]] + ([1] * (size - 1) if rest else [])

    def heads(self, prefix: Prefix) -> list[Prefix]:
        """The prefixes of whole pages, short ones first, `prefix` the last of them."""
        namespace, tokens = prefix
        return [(namespace, tokens[:end]) for end in range(self.page_size, len(tokens) + 1, self.page_size)]

    def slots(self, prefix: Prefix) -> list[int]:
        return [slot for head in self.heads(prefix) for slot in self.pages[head]]

    def lock_count(self, prefix: Prefix) -> int:
        return sum(1 for _, locked in self.locks if prefix in self.heads(locked))

    def walk(self, namespace: Namespace, tokens: list[int]) -> Prefix:
        """The longest stored prefix of the tokens; it ends a run from now on, and its runs are used now."""
        now = next(self.ticks)
        found = (namespace, ())
        for head in self.heads((namespace, tuple(tokens))):
            if head not in self.pages:
                break
            found = head
        for head in self.heads(found):
            if head in self.runs:
                self.runs[head].access = now
        if found[1] and found not in self.runs:  # it ends inside a run, the shortest that goes on from it
            end = min((run for run in self.runs if found in self.heads(run)), key=lambda run: len(run[1]))
            self.runs[end].access = now
            made = next(self.ticks)
            self.runs[found] = replace(self.runs[end], access=made, creation=made)
        return found

    def leaves(self) -> list[Prefix]:
        return [
            run
            for run in self.runs
            if not self.lock_count(run) and not any(other != run and run in self.heads(other) for other in self.runs)
        ]

    # What is done to both.

    @rule(drawn=KEYS, locked=st.booleans())
    def match(self, drawn: tuple[Namespace, list[int], bool], locked: bool) -> None:
        namespace, tokens = self.key(drawn)
        found = self.tree.match(tokens, namespace)
        prefix = self.walk(namespace, tokens)
        assert (found.num_tokens, list(found.slots)) == (len(prefix[1]), self.slots(prefix))
        assert list(self.tree.path_slots(found.node)) == self.slots(prefix)
        unlocked = sum(self.page_size for head in self.heads(prefix) if not self.lock_count(head))
        assert self.tree.unlocked_size(found.node) == unlocked
        if locked:
            self.lock(found.node, prefix)

    @rule(drawn=KEYS, locked=st.booleans(), priority=st.integers(0, 2), published=st.integers(0, 3))
    def insert(self, drawn: tuple[Namespace, list[int], bool], locked: bool, priority: int, published: int) -> None:
        namespace, tokens = self.key(drawn)
        slots, inserted_len = [next(self.fresh_slots) for _ in tokens], published * self.page_size
        num_present, node = self.tree.insert(tokens, slots, namespace, priority, inserted_len)
        present = self.walk(namespace, tokens)
        assert num_present == len(present[1])
        for head in self.heads(present):
            if head in self.runs:
                self.runs[head].priority = max(self.runs[head].priority, priority)
                self.runs[head].hits += len(head[1]) > inserted_len
        heads = self.heads((namespace, tuple(tokens)))
        for number, head in enumerate(heads):
            self.pages.setdefault(head, slots[number * self.page_size : (number + 1) * self.page_size])
        end = heads[-1] if heads else present
        if end != present:
            made = next(self.ticks)
            self.runs[end] = Run(made, made, hits=1, priority=priority)
        assert list(self.tree.path_slots(node)) == self.slots(end)
        if locked:
            self.lock(node, end)

    def lock(self, node: RadixNode, prefix: Prefix) -> None:
        before = self.tree.evictable_size
        newly = sum(self.page_size for head in self.heads(prefix) if not self.lock_count(head))
        self.locks.append((node, prefix))
        assert self.tree.lock(node) == -newly and self.tree.evictable_size == before - newly

    @precondition(lambda self: self.locks)
    @rule(pick=st.integers(0, 99))
    def unlock(self, pick: int) -> None:
        node, prefix = self.locks.pop(pick % len(self.locks))
        newly = sum(self.page_size for head in self.heads(prefix) if not self.lock_count(head))
        assert self.tree.unlock(node) == newly

    @rule(num_pages=st.integers(0, 6))
    def evict(self, num_pages: int) -> None:
        num_tokens = num_pages * self.page_size
        eviction = self.tree.evict(num_tokens)
        num_removed = 0
        wanted: list[list[int]] = []
        while num_removed < num_tokens and (leaves := self.leaves()):
            victim = min(leaves, key=lambda run: EVICTED_FIRST[self.policy](self.runs[run]))
            del self.runs[victim]
            removed: list[int] = []
            for head in reversed(self.heads(victim)):
                if any(head in self.heads(run) for run in self.runs):
                    break
                removed = self.pages.pop(head) + removed
            wanted.append(removed)
            num_removed += len(removed)
        assert [list(node.slots) for node in eviction.nodes] == wanted and eviction.num_tokens == num_removed

    @precondition(lambda self: not self.locks)
    @rule()
    def reset(self) -> None:
        self.tree.reset()
        self.pages, self.runs = {}, {}

    @invariant()
    def both_store_the_same(self) -> None:
        tree, stored, ends = self.tree, {}, {}
        paths: dict[RadixNode, array] = {tree.root: array("q")}
        for node in tree.nodes():
            path = paths[node] = paths[node.parent] + node.tokens
            assert node.tokens and len(node.tokens) == len(node.slots) and len(node.tokens) % self.page_size == 0
            assert list(node.parent.children.values()).count(node) == 1
            end = (node.namespace, tuple(path))
            ends[end] = node
            for back, head in enumerate(reversed(self.heads(end)[-(len(node.tokens) // self.page_size) :])):
                stop = len(node.slots) - back * self.page_size
                assert head not in stored, "a prefix is stored once"
                stored[head] = list(node.slots[stop - self.page_size : stop])
        assert stored == self.pages
        assert {end: (node.hit_count, node.priority) for end, node in ends.items()} == {
            end: (run.hits, run.priority) for end, run in self.runs.items()
        }
        assert {end: node.lock_count for end, node in ends.items()} == {end: self.lock_count(end) for end in self.runs}
        num_locked = sum(self.page_size for head in self.pages if self.lock_count(head))
        assert (tree.protected_size, tree.total_size) == (num_locked, len(self.pages) * self.page_size)
        assert tree.evictable_leaves == {ends[leaf] for leaf in self.leaves()}

    @invariant()
    def handles_keep_their_prefix_through_every_split(self) -> None:
        for node, prefix in self.locks:
            assert list(self.tree.path_slots(node)) == self.slots(prefix) and self.tree.unlocked_size(node) == 0


def tree_machine(page_size: int) -> type[TreeMachine]:
    return type(f"TreeMachineOfPage{page_size}", (TreeMachine,), {"page_size": page_size})
