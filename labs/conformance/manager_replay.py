"""ManagerReplay: a recorded manager scenario, done again by our KVCacheManager, operation by operation."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Iterator

from engine.kvcache.block_hash import DEFAULT_NONE_HASH_SEED, BlockHasher
from engine.kvcache.block_pool import BlockPool
from engine.kvcache.cache_identity import LoRA
from engine.kvcache.kv_cache_manager import KVCacheManager
from engine.kvcache.prefix_cache import NO_MATCH, HashPrefixCache, NoPrefixCache
from engine.request import FinishReason, Request, RequestStatus, SamplingParams
from labs.conformance.comparison import Comparison
from labs.conformance.golden import expand


class ManagerReplay:
    """One scenario, operation by operation. Schema: labs/recorded/README.md, part 1."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        config = scenario["config"]
        self.scenario = scenario
        self.pool = BlockPool(config["num_blocks"])
        seed = DEFAULT_NONE_HASH_SEED if config["hash_seed"] is None else config["hash_seed"]
        self.hasher = BlockHasher(config["hash_algo"], config["block_size"], seed)
        self.cache = HashPrefixCache(self.pool, config["block_size"]) if config["enable_caching"] else NoPrefixCache()
        self.manager = KVCacheManager(
            self.pool, self.cache, config["block_size"], config["max_model_len"], config["watermark"]
        )
        self.requests: dict[str, Request] = {}

    @property
    def num_requests(self) -> int:
        """Requests in the scenario."""
        return sum(op["op"] == "new" for op in self.scenario["ops"])

    def run(self) -> Iterator[Comparison]:
        """Every operation, then the end."""
        for index, (op, expected) in enumerate(zip(self.scenario["ops"], self.scenario["expect"])):
            ours = self.apply(op)
            if "state" in expected:
                ours["state"] = self.state()
            yield Comparison(f"operation {index} ({op['op']})", expected, ours)
        yield Comparison("the end", self.scenario["final"], self.final())

    def apply(self, op: dict[str, Any]) -> dict[str, Any]:
        """Do one operation, and say what came of it."""
        return getattr(self, f"_{op['op']}")(op)

    @property
    def named(self) -> dict[int, bytes]:
        """The name of each block that carries one."""
        return getattr(self.cache, "name_of_block", {})

    def state(self) -> dict[str, Any]:
        """The pool after an operation."""
        return {
            "queue": self.pool.free_queue.all_ids(),
            "cached_keys": self.cache.num_cached_keys,
            "hashed_blocks": len(self.named),
            "usage": self.manager.usage,
        }

    def final(self) -> dict[str, Any]:
        """Everything that can be seen of pool, cache and tables."""
        return {
            "queue": self.pool.free_queue.all_ids(),
            "cached_keys": self.cache.num_cached_keys,
            "usage": self.manager.usage,
            "stats": asdict(self.manager.stats),
            "hashes": {str(block): name.hex()[:16] for block, name in self.named.items()},
            "refs": {str(block): count for block, count in enumerate(self.pool.ref_counts) if count},
            "tables": {
                request_id: list(self.manager.block_table(request))
                for request_id, request in self.requests.items()
                if self.manager.block_table(request)
            },
        }

    def _new(self, op: dict[str, Any]) -> dict[str, Any]:
        self.requests[op["id"]] = Request(
            op["id"],
            expand(op["tokens"]),
            SamplingParams(prompt_logprobs=op.get("prompt_logprobs"), skip_reading_prefix_cache=op.get("skip_read")),
            cache_salt=op.get("salt"),
            lora=LoRA(*op["lora"]) if "lora" in op else None,
            block_hasher=self.hasher,
        )
        return {}

    def _lookup(self, op: dict[str, Any]) -> dict[str, Any]:
        match = self.manager.get_computed_blocks(self.requests[op["id"]])
        return {"hit": match.num_tokens, "blocks": list(match.block_ids)}

    def _allocate(self, op: dict[str, Any]) -> dict[str, Any]:
        request, match = self.requests[op["id"]], NO_MATCH
        ours: dict[str, Any] = {}
        if op["lookup"]:
            match = self.manager.get_computed_blocks(request)
            ours |= {"hit": match.num_tokens, "blocks": list(match.block_ids)}
        hit = match.num_tokens
        remaining = request.num_uncomputed_tokens - hit
        count = remaining if op["tokens"] is None else min(op["tokens"], remaining)
        hashed_before = set(self.named)
        new = self.manager.allocate_slots(
            request,
            count,
            match,
            num_lookahead_tokens=op.get("lookahead", 0),
            full_sequence_must_fit=op.get("whole", False),
            has_scheduled_requests=op.get("others", True),
        )
        ours |= {"count": count, "new": new}
        if new is not None:
            ours["evicted"] = [block for block in new if block in hashed_before]
            if op["lookup"]:
                self.manager.record_lookup(request, hit)
            request.num_computed_tokens += hit + count
            request.status = RequestStatus.RUNNING
        return ours

    def _append(self, op: dict[str, Any]) -> dict[str, Any]:
        self.requests[op["id"]].append_output_token_ids(expand(op["tokens"]))
        return {}

    def _free(self, op: dict[str, Any]) -> dict[str, Any]:
        request = self.requests.pop(op["id"])
        request.finish(FinishReason.LENGTH)
        self.manager.free(request)
        return {}

    def _preempt(self, op: dict[str, Any]) -> dict[str, Any]:
        request = self.requests[op["id"]]
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.manager.free(request)
        return {}

    def _reset(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"ok": self.manager.reset_prefix_cache()}

    def _stats(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"stats": asdict(self.manager.take_stats())}
