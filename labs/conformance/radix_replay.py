"""RadixReplay: a recorded radix scenario, done again by our RadixTree, operation by operation."""

from __future__ import annotations

import itertools
from typing import Any, Iterator, Sequence

from engine.kvcache.cache_identity import Namespace
from engine.kvcache.radix_tree import RadixNode, RadixTree
from labs.conformance.comparison import Comparison
from labs.conformance.golden import expand


class RadixReplay:
    """One scenario, operation by operation. Schema: labs/recorded/README.md, part 3."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        config = scenario["config"]
        self.scenario = scenario
        self.reading = itertools.count()
        self.op_of_reading: dict[int, int] = {}
        self.index = -1
        threshold = (config["policy_config"] or {}).get("protected_threshold", 2)
        self.tree = RadixTree(config["page_size"], config["policy"], threshold, clock=self._clock)
        self.handles: dict[Any, RadixNode] = {}

    def _clock(self) -> int:
        reading = next(self.reading)
        self.op_of_reading[reading] = self.index
        return reading

    @property
    def num_requests(self) -> int:
        """A tree knows keys, not requests: those inserted."""
        return sum(op["op"] == "insert" for op in self.scenario["ops"])

    def run(self) -> Iterator[Comparison]:
        """Every operation, then the end."""
        for index, (op, expected) in enumerate(zip(self.scenario["ops"], self.scenario["expect"])):
            yield Comparison(f"operation {index} ({op['op']})", _expanded(expected), _expanded(self._apply(index, op)))
        yield Comparison("the end", _expanded(self.scenario["final"]), _expanded(self.final()))

    def _apply(self, index: int, op: dict[str, Any]) -> dict[str, Any]:
        self.index = index
        ours = getattr(self, f"_{op['op']}")(op)
        ours["sizes"] = [self.tree.total_size, self.tree.evictable_size, self.tree.protected_size]
        ours["nodes"] = sum(1 for _ in self.tree.nodes())
        return ours

    def _match(self, op: dict[str, Any]) -> dict[str, Any]:
        match = self.tree.match(expand(op["tokens"]), _namespace(op))
        return {"len": match.num_tokens, "slots": _runs(match.slots)}

    def _insert(self, op: dict[str, Any]) -> dict[str, Any]:
        if self.scenario["config"]["disable"]:
            return {"prefix_len": 0}  # a tree that stores nothing; all the rest follows
        tokens = expand(op["tokens"])
        slots = range(op["slot"], op["slot"] + len(tokens))
        prefix_len, _ = self.tree.insert(tokens, slots, _namespace(op), op.get("priority", 0), op.get("inserted_len", 0))
        return {"prefix_len": prefix_len}

    def _evict(self, op: dict[str, Any]) -> dict[str, Any]:
        eviction = self.tree.evict(op["count"])
        lost = [
            {"ns": list(node.namespace), "path": _path(node), "len": len(node.tokens), "slots": _runs(node.slots)}
            for node in eviction.nodes
        ]
        return {"evicted": eviction.num_tokens, "lost": lost}

    def _lock(self, op: dict[str, Any]) -> dict[str, Any]:
        match = self.tree.match(expand(op["tokens"]), _namespace(op))
        self.handles[op["handle"]] = match.node
        return {"len": match.num_tokens, "delta": self.tree.lock(match.node)}

    def _unlock(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"delta": self.tree.unlock(self.handles.pop(op["handle"]))}

    def _reset(self, op: dict[str, Any]) -> dict[str, Any]:
        self.tree.reset()
        return {}

    def final(self) -> dict[str, Any]:
        """The whole tree."""

        def order(node: RadixNode):
            return [(part is not None, part or "") for part in node.namespace], _path(node)

        rows = []
        for node in sorted(self.tree.nodes(), key=order):
            full = _path(node)
            rows.append(
                {
                    "ns": list(node.namespace),
                    "start": len(full) - len(node.tokens),
                    "tokens": list(node.tokens),
                    "slots": _runs(node.slots),
                    "lock": node.lock_count,
                    "hits": node.hit_count,
                    "priority": node.priority,
                    "used_op": self.op_of_reading[node.last_access],
                    "made_op": self.op_of_reading[node.creation],
                    "evictable_leaf": node in self.tree.evictable_leaves,
                }
            )
        return {"open_locks": sorted(self.handles), "tree": rows}


def _runs(slots: Sequence[int]) -> list[list[int]]:
    """Slots as [first, count] runs."""
    result: list[list[int]] = []
    for slot in slots:
        if result and slot == sum(result[-1]):
            result[-1][1] += 1
        else:
            result.append([slot, 1])
    return result


def _namespace(op: dict[str, Any]) -> Namespace:
    return Namespace(op.get("extra_key"), op.get("salt") or None)


def _path(node: RadixNode) -> list[int]:
    tokens: list[int] = []
    while node.parent is not None:
        tokens[:0] = node.tokens
        node = node.parent
    return tokens


def _expanded(value: Any) -> Any:
    """Token notation expanded, so that both sides compare token by token."""
    if isinstance(value, dict):
        return {
            key: expand(item) if key in ("tokens", "path") else _expanded(item) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_expanded(item) for item in value]
    return value
