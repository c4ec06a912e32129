"""SchedulerReplay: a recorded scheduler scenario, done again by our Scheduler, step by step, with the recorder's fake model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Iterator

from engine.config import EngineConfig
from engine.kvcache.block_hash import DEFAULT_NONE_HASH_SEED, BlockHasher
from engine.kvcache.block_pool import BlockPool
from engine.kvcache.kv_cache_manager import KVCacheManager
from engine.kvcache.prefix_cache import HashPrefixCache, NoPrefixCache
from engine.metrics import PrefixCacheStats
from engine.request import FinishReason, Request, SamplingParams
from engine.scheduler import ScheduledRequest, Scheduler
from labs.conformance.comparison import Comparison
from labs.conformance.golden import expand


class SchedulerReplay:
    """One scenario, step by step. Schema: labs/recorded/README.md, part 2."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        config = scenario["config"]
        self.scenario, self.vocab = scenario, config["vocab"]
        self.hasher = BlockHasher("sha256", config["block_size"], DEFAULT_NONE_HASH_SEED)
        self.pool = BlockPool(config["num_blocks"])
        self.cache = HashPrefixCache(self.pool, config["block_size"]) if config["enable_caching"] else NoPrefixCache()
        self.manager = KVCacheManager(
            self.pool, self.cache, config["block_size"], config["max_model_len"], config["watermark"]
        )
        engine_config = EngineConfig(
            block_size=config["block_size"],
            max_num_seqs=config["max_num_seqs"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
            long_prefill_token_threshold=config["long_prefill_token_threshold"],
            enable_chunked_prefill=config["chunked_prefill"],
            scheduler_reserve_full_isl=config["reserve_full_isl"],
            policy=config["policy"],
        )
        # As vLLM 0.32.0 does it: its answer is what is compared, right or not.
        self.scheduler = Scheduler(engine_config, self.manager, config["max_model_len"], keeps_refunded=True)
        self.requests: dict[str, Request] = {}
        self.number: dict[str, int] = {}
        self.totals = PrefixCacheStats()

    @property
    def num_requests(self) -> int:
        """Requests in the scenario."""
        return len(self.scenario["arrivals"])

    def run(self) -> Iterator[Comparison]:
        """Every step, then the end."""
        for step, recorded in enumerate(self.scenario["steps"]):
            yield Comparison(f"step {step}", recorded, self._step(step, recorded))
        recorded = self.scenario["final"]
        ours = {"total_steps": len(self.scenario["steps"]), **self.final()}
        yield Comparison("the end", recorded, ours)

    def _step(self, step: int, recorded: dict[str, Any]) -> dict[str, Any]:
        ours: dict[str, Any] = {}
        results = [self._act(action, ours) for action in self.scenario["actions"] if action["step"] == step]
        if results:
            ours["actions"] = results
        self._arrive(step)
        output = self.scheduler.schedule()
        ours["scheduled"] = [[item.request.request_id, item.num_tokens] for item in output.scheduled]
        ours["new"] = [[request.request_id, hit] for request, hit in output.admitted]
        ours["resumed"] = [[request.request_id, hit] for request, hit in output.resumed]
        ours["preempted"] = [request.request_id for request in output.preempted]
        ours["tables"] = {
            request.request_id: list(self.manager.block_table(request)) for request in self.scheduler.running
        }
        tokens = [self._sample(item) for item in output.scheduled]
        ours["sampled"] = [
            [item.request.request_id, token] for item, token in zip(output.scheduled, tokens) if token is not None
        ]
        finished = self.scheduler.update_from_output(output, tokens)
        ours["finished"] = [request.request_id for request in finished]
        ours["running"] = [request.request_id for request in self.scheduler.running]
        ours["waiting"] = [request.request_id for request in self.scheduler.waiting]
        stats = self.manager.take_stats()
        self.totals.add(stats)
        counts = asdict(stats)
        if counts.pop("reset"):
            ours["stats_reset"] = True
        if any(counts.values()):
            ours["stats"] = list(counts.values())
        ours["usage"] = self.manager.usage
        if "queue" in recorded:
            ours["queue"] = self.pool.free_queue.all_ids()
        # Empty lists may be left out of the recording.
        return {key: value for key, value in ours.items() if key in recorded or value not in ([], {})}

    def _act(self, action: dict[str, Any], ours: dict[str, Any]) -> bool:
        if action["do"] == "abort":
            request = self.requests.get(action["id"])
            if request is None or request.is_finished:
                return False
            self.scheduler.finish(request, FinishReason.ABORT)
            return True
        success, preempted = self.scheduler.reset_prefix_cache(action["force"])
        if action["force"]:
            ours["preempted_by_reset"] = [request.request_id for request in preempted]
        return success

    def _arrive(self, step: int) -> None:
        for number, arrival in enumerate(self.scenario["arrivals"]):
            if arrival["step"] == step:
                params = SamplingParams(
                    max_tokens=arrival["max_tokens"], ignore_eos=True, prompt_logprobs=arrival.get("prompt_logprobs")
                )
                request = Request(
                    arrival["id"],
                    expand(arrival["prompt"]),
                    params,
                    cache_salt=arrival.get("salt"),
                    priority=arrival.get("priority", 0),
                    arrival_time=float(number),
                    block_hasher=self.hasher,
                )
                self.requests[request.request_id], self.number[request.request_id] = request, number
                self.scheduler.add_request(request)

    def _sample(self, item: ScheduledRequest) -> int | None:
        if not item.samples:
            return None
        return (self.number[item.request.request_id] * 31 + item.request.num_tokens) % self.vocab

    def final(self) -> dict[str, Any]:
        """What is left when the run has ended."""
        requests = self.requests
        totals = asdict(self.totals)
        totals.pop("reset")
        return {
            "drained": not self.scheduler.has_unfinished_requests,
            "stats": totals,
            "preemptions": {id: request.num_preemptions for id, request in requests.items() if request.num_preemptions},
            "outputs": {id: request.output_token_ids for id, request in requests.items()},
            "reported_cached_tokens": {
                id: request.num_cached_tokens for id, request in requests.items() if request.num_output_tokens
            },
            "finish_reason": {
                id: request.finish_reason.value for id, request in requests.items() if request.finish_reason
            },
            "queue": self.pool.free_queue.all_ids(),
            "cached_keys": self.cache.num_cached_keys,
            "hashed_blocks": sorted(getattr(self.cache, "name_of_block", {})),
        }
