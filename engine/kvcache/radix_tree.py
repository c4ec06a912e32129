"""RadixTree: token prefixes and the slots that hold their K/V, in a tree of shared runs.

A node holds a run of tokens and one slot per token; a path from the root spells a prefix. A run splits where two
prefixes part, so each shared run is stored once:

    root ── [1 2 3 4] ─┬─ [5 6]        prefixes 1 2 3 4 5 6
                       └─ [7 8 9]               1 2 3 4 7 8 9

Runs are whole pages of `page_size` tokens. Name spaces share nothing: they are separate children of the root.
A lock on a node protects the path from the root to it. Eviction removes whole unlocked leaves, by policy; a parent
left without children competes at once.

The tree stands on its own: it knows tokens, slots, and a clock that is handed in.

Source: SGLang 0.5.23, srt/mem_cache/radix_cache.py and evict_policy.py.
"""

from __future__ import annotations

import heapq
import sys
import time
from array import array
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, NamedTuple, Sequence

from engine.kvcache.cache_identity import Namespace

NO_NAMESPACE = Namespace(None, None)


class RadixNode:
    """A run of tokens with its slots, the times it was made and used, and who uses it now."""

    __slots__ = (
        "tokens", "slots", "parent", "children", "namespace",
        "lock_count", "hit_count", "priority", "last_access", "creation", "id", "page_names",
    )  # fmt: skip

    def __init__(self, node_id: int, tokens: array, slots: array, parent: RadixNode | None, namespace: Namespace, now: float):
        self.id = node_id
        self.tokens = tokens  # [num_tokens]
        self.slots = slots  # [num_tokens]
        self.parent = parent
        self.children: dict[Any, RadixNode] = {}
        self.namespace = namespace
        self.lock_count = 0
        self.hit_count = 0
        self.priority = 0
        self.last_access = now
        self.creation = now
        self.page_names: list[bytes] | None = None  # one a page, where somebody follows the tree by name


class RadixMatch(NamedTuple):
    """Tokens found, their slots, and the node where the match ended (the root for none)."""

    num_tokens: int
    slots: array
    node: RadixNode


@dataclass(slots=True)
class RadixEviction:
    """What an eviction removed: tokens in all, and the nodes in order (their runs and slots intact)."""

    num_tokens: int = 0
    nodes: list[RadixNode] = field(default_factory=list)


# Smaller is evicted first.
_EVICTION_KEYS: dict[str, Callable[[RadixNode, int], Any]] = {
    "lru": lambda node, _: node.last_access,
    "lfu": lambda node, _: (node.hit_count, node.last_access),
    "fifo": lambda node, _: node.creation,
    "mru": lambda node, _: -node.last_access,
    "filo": lambda node, _: -node.creation,
    "priority": lambda node, _: (node.priority, node.last_access),
    "slru": lambda node, threshold: (node.hit_count >= threshold, node.last_access),
}
EVICTION_POLICIES = tuple(_EVICTION_KEYS)


class RadixTree:
    """See the module's text.

    page_size            tokens per page; keys are cut down to whole pages
    policy               one of EVICTION_POLICIES
    protected_threshold  hits from which "slru" protects a leaf
    clock                called for each time stamp; readings should grow
    """

    def __init__(
        self, page_size: int, policy: str = "lru", protected_threshold: int = 2, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if policy not in _EVICTION_KEYS:
            raise ValueError(f"eviction policy is {policy!r}; accepted: " + ", ".join(EVICTION_POLICIES))
        self.page_size = page_size
        self._eviction_key = _EVICTION_KEYS[policy]
        self._protected_threshold = protected_threshold
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget everything, locks included."""
        self._num_nodes_made = 0
        self.root = self._new_node(array("q"), array("q"), None, NO_NAMESPACE)
        self.root.priority = -sys.maxsize
        self.evictable_leaves: set[RadixNode] = set()
        self.evictable_size = 0  # tokens in nodes without locks
        self.protected_size = 0  # tokens in locked nodes

    @property
    def total_size(self) -> int:
        """Tokens stored."""
        return self.evictable_size + self.protected_size

    def match(self, token_ids: Sequence[int], namespace: Namespace = NO_NAMESPACE) -> RadixMatch:
        """The longest stored prefix, in whole pages. Marks its nodes as used; splits one where the match ends in it."""
        key = self._page_aligned(token_ids)
        slots = array("q")
        node, num_tokens = self.root, 0
        for node, num_tokens in self._walk(key, namespace):
            slots.extend(node.slots)
        return RadixMatch(num_tokens, slots, node)

    def insert(
        self,
        token_ids: Sequence[int],
        slots: Sequence[int],
        namespace: Namespace = NO_NAMESPACE,
        priority: int = 0,
        inserted_len: int = 0,
    ) -> tuple[int, RadixNode]:
        """Store a prefix; (tokens that were there already, the node where it ends).

        The slots of tokens already there are kept: the caller still owns its own for them.
        slots         [num_tokens], one per token
        inserted_len  tokens the same request stored before: nodes ending at or before it count no further hit
        """
        key = self._page_aligned(token_ids)
        slots = array("q", slots[: len(key)])
        node, start = self.root, 0
        node.priority = max(node.priority, priority)
        for node, start in self._walk(key, namespace):
            node.priority = max(node.priority, priority)
            if start > inserted_len:
                node.hit_count += 1
        prefix_len = start
        if start < len(key):
            leaf = self._new_node(key[start:], slots[start:], node, namespace)
            leaf.priority, leaf.hit_count = priority, 1
            node.children[self._child_key(node, key, start, namespace)] = leaf
            self.evictable_size += len(leaf.tokens)
            self._update_leaf(node)
            self._update_leaf(leaf)
            node = leaf
        return prefix_len, node

    def lock(self, node: RadixNode) -> int:
        """Protect the path to `node`; the change of evictable_size (tokens, not positive)."""
        delta = 0
        while node is not self.root:
            if node.lock_count == 0:
                delta -= len(node.tokens)
            node.lock_count += 1
            self._update_leaf(node)
            node = node.parent
        self.evictable_size += delta
        self.protected_size -= delta
        return delta

    def unlock(self, node: RadixNode) -> int:
        """Take one lock off the path to `node`; the change of evictable_size (tokens, not negative)."""
        delta = 0
        while node is not self.root:
            assert node.lock_count > 0, "unlocked more often than locked"
            node.lock_count -= 1
            if node.lock_count == 0:
                delta += len(node.tokens)
            self._update_leaf(node)
            node = node.parent
        self.evictable_size += delta
        self.protected_size -= delta
        return delta

    def evict(self, num_tokens: int) -> RadixEviction:
        """Remove whole unlocked leaves until `num_tokens` are gone: perhaps more, or fewer if too little is evictable."""
        eviction = RadixEviction()
        # The id breaks ties, so that nodes are never compared.
        heap = [(self._eviction_key(leaf, self._protected_threshold), leaf.id, leaf) for leaf in self.evictable_leaves]
        heapq.heapify(heap)
        while eviction.num_tokens < num_tokens and heap:
            leaf = heapq.heappop(heap)[2]
            parent = leaf.parent
            del parent.children[self._child_key(parent, leaf.tokens, 0, leaf.namespace)]
            self.evictable_leaves.discard(leaf)
            self.evictable_size -= len(leaf.tokens)
            eviction.num_tokens += len(leaf.tokens)
            eviction.nodes.append(leaf)
            self._update_leaf(parent)
            if parent in self.evictable_leaves:
                heapq.heappush(heap, (self._eviction_key(parent, self._protected_threshold), parent.id, parent))
        return eviction

    def path_slots(self, node: RadixNode) -> array:
        """Slots from the root to the end of `node`."""
        runs: list[array] = []
        while node is not self.root:
            runs.append(node.slots)
            node = node.parent
        slots = array("q")
        for run in reversed(runs):
            slots.extend(run)
        return slots

    def unlocked_size(self, node: RadixNode) -> int:
        """Tokens on the path to `node` that a lock on it would protect anew."""
        size = 0
        # A lock covers a whole path, so above a locked node all are locked.
        while node is not self.root and node.lock_count == 0:
            size += len(node.tokens)
            node = node.parent
        return size

    def nodes(self) -> Iterator[RadixNode]:
        """Every node but the root, parents before children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _walk(self, key: array, namespace: Namespace) -> Iterator[tuple[RadixNode, int]]:
        """The nodes that hold the start of `key`, each with the tokens matched up to its end; all are used now.

        A node that `key` leaves half-way is split, and its upper part is the last.
        """
        now = self._clock()
        node, start = self.root, 0
        node.last_access = now
        while start < len(key):
            child = node.children.get(self._child_key(node, key, start, namespace))
            if child is None:
                return
            child.last_access = now
            length = self._common_length(child.tokens, key, start)
            node = child if length == len(child.tokens) else self._split(child, length)
            start += length
            yield node, start

    def _new_node(self, tokens: array, slots: array, parent: RadixNode | None, namespace: Namespace) -> RadixNode:
        self._num_nodes_made += 1
        return RadixNode(self._num_nodes_made, tokens, slots, parent, namespace, self._clock())

    def _split(self, node: RadixNode, length: int) -> RadixNode:
        """Cut a node's run after `length` tokens; the new upper part.

        Handles on the node stay with the lower part, which is why the *upper* one is the new node.
        """
        upper = self._new_node(node.tokens[:length], node.slots[:length], node.parent, node.namespace)
        upper.lock_count, upper.hit_count, upper.priority = node.lock_count, node.hit_count, node.priority
        node.parent.children[self._child_key(node.parent, node.tokens, 0, node.namespace)] = upper
        node.tokens, node.slots, node.parent = node.tokens[length:], node.slots[length:], upper
        if node.page_names is not None:
            num_pages = length // self.page_size
            upper.page_names, node.page_names = node.page_names[:num_pages], node.page_names[num_pages:]
        upper.children[self._child_key(upper, node.tokens, 0, node.namespace)] = node
        return upper

    def _update_leaf(self, node: RadixNode) -> None:
        if node is not self.root and not node.children and node.lock_count == 0:
            self.evictable_leaves.add(node)
        else:
            self.evictable_leaves.discard(node)

    def _page_aligned(self, token_ids: Sequence[int]) -> array:
        return array("q", token_ids[: len(token_ids) // self.page_size * self.page_size])

    def _child_key(self, parent: RadixNode, key: array, start: int, namespace: Namespace) -> Any:
        """A child is found by its first page; below the root the name space is settled."""
        page = key[start] if self.page_size == 1 else tuple(key[start : start + self.page_size])
        return (namespace, page) if parent is self.root else page

    def _common_length(self, run: array, key: array, start: int) -> int:
        """Tokens that `run` and `key` from `start` on have in common, in whole pages (at least one: the child's key)."""
        high = min(len(run), len(key) - start)
        if run[:high] == key[start : start + high]:
            return high // self.page_size * self.page_size
        low = 0  # equal up to here; different before `high`
        while high - low > 1:
            middle = (low + high) // 2
            if run[low:middle] == key[start + low : start + middle]:
                low = middle
            else:
                high = middle
        return low // self.page_size * self.page_size
