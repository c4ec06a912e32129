"""Our RadixTree does, operation by operation, what SGLang 0.5.23's RadixCache was recorded doing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from engine.kvcache.cache_identity import Namespace
from engine.kvcache.radix_tree import RadixNode, RadixTree
from tests.oracle.golden_files import expand, scenarios


def runs(slots) -> list[list[int]]:
    """Slots as [first, count] runs."""
    result: list[list[int]] = []
    for slot in slots:
        if result and slot == sum(result[-1]):
            result[-1][1] += 1
        else:
            result.append([slot, 1])
    return result


def namespace(op: dict[str, Any]) -> Namespace:
    return Namespace(op.get("extra_key"), op.get("salt") or None)


def path(node: RadixNode) -> list[int]:
    tokens: list[int] = []
    while node.parent is not None:
        tokens[:0] = node.tokens
        node = node.parent
    return tokens


class RadixReplay:
    def __init__(self, scenario: dict[str, Any]) -> None:
        config = scenario["config"]
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

    def apply(self, index: int, op: dict[str, Any]) -> dict[str, Any]:
        self.index = index
        ours = getattr(self, f"_{op['op']}")(op)
        ours["sizes"] = [self.tree.total_size, self.tree.evictable_size, self.tree.protected_size]
        ours["nodes"] = sum(1 for _ in self.tree.nodes())
        return ours

    def _match(self, op):
        match = self.tree.match(expand(op["tokens"]), namespace(op))
        return {"len": match.num_tokens, "slots": runs(match.slots)}

    def _insert(self, op):
        tokens = expand(op["tokens"])
        slots = range(op["slot"], op["slot"] + len(tokens))
        prefix_len, _ = self.tree.insert(tokens, slots, namespace(op), op.get("priority", 0), op.get("inserted_len", 0))
        return {"prefix_len": prefix_len}

    def _evict(self, op):
        eviction = self.tree.evict(op["count"])
        lost = [
            {"ns": list(node.namespace), "path": path(node), "len": len(node.tokens), "slots": runs(node.slots)}
            for node in eviction.nodes
        ]
        return {"evicted": eviction.num_tokens, "lost": lost}

    def _lock(self, op):
        match = self.tree.match(expand(op["tokens"]), namespace(op))
        self.handles[op["handle"]] = match.node
        return {"len": match.num_tokens, "delta": self.tree.lock(match.node)}

    def _unlock(self, op):
        return {"delta": self.tree.unlock(self.handles.pop(op["handle"]))}

    def _reset(self, op):
        self.tree.reset()
        return {}

    def final(self) -> dict[str, Any]:
        def order(node: RadixNode):
            return [(part is not None, part or "") for part in node.namespace], path(node)

        rows = []
        for node in sorted(self.tree.nodes(), key=order):
            full = path(node)
            rows.append(
                {
                    "ns": list(node.namespace),
                    "start": len(full) - len(node.tokens),
                    "tokens": list(node.tokens),
                    "slots": runs(node.slots),
                    "lock": node.lock_count,
                    "hits": node.hit_count,
                    "priority": node.priority,
                    "used_op": self.op_of_reading[node.last_access],
                    "made_op": self.op_of_reading[node.creation],
                    "evictable_leaf": node in self.tree.evictable_leaves,
                }
            )
        return {"open_locks": sorted(self.handles), "tree": rows}


def normal(value: Any) -> Any:
    """Token notation expanded, so that both sides compare token by token."""
    if isinstance(value, dict):
        return {
            key: expand(item) if key in ("tokens", "path") else normal(item) for key, item in value.items()
        }
    if isinstance(value, list):
        return [normal(item) for item in value]
    return value


ENABLED = [scenario for scenario in scenarios("radix") if not scenario["config"]["disable"]]


@pytest.mark.parametrize("scenario", ENABLED, ids=lambda scenario: scenario["name"])
def test_radix_scenario_is_reproduced_exactly(scenario):
    replay = RadixReplay(scenario)
    for index, (op, expected) in enumerate(zip(scenario["ops"], scenario["expect"])):
        assert normal(replay.apply(index, op)) == normal(expected), f"operation {index}: {op}"
    assert normal(replay.final()) == normal(scenario["final"])
