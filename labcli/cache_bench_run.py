"""CacheBenchRun: one run of the cache bench, from its settings to its record."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import engine.kvcache.block_pool
import engine.kvcache.kv_cache_manager
import engine.kvcache.prefix_cache
import engine.kvcache.radix_tree
import labs.benches.cache_bench
import labs.benches.cache_cost
from labcli.bench_record import BenchRecorder
from labcli.progress_bar import ProgressBar
from labcli.record import ResultRecord, json_ready
from labcli.results_store import ResultsStore
from labs.benches.cache_bench import CacheBench, LookupCost
from labs.benches.cache_cost import Config
from labs.peers.vllm_cache import VllmCache
from labs.protocol import Measurement, Prediction

_SOURCES = (
    labs.benches.cache_cost, labs.benches.cache_bench, engine.kvcache.block_pool, engine.kvcache.kv_cache_manager,
    engine.kvcache.prefix_cache, engine.kvcache.radix_tree,
)  # fmt: skip


@dataclass
class FinishedCacheBench:
    """What a run found, and its record."""

    bench: CacheBench
    memory: dict[str, float] = field(default_factory=dict)  # bytes per block, by cache
    lookups: list[LookupCost] = field(default_factory=list)
    record: ResultRecord | None = None
    path: Path | None = None

    @property
    def notes(self) -> list[str]:
        """Why not to lean on a time; empty when there is nothing to say."""
        costs = [cost for cost in self.bench.costs if cost.seconds and cost.spread.stability_note]
        return [f"{cost.prefix_cache}, {cost.pool}: {cost.spread.stability_note}" for cost in costs]


@dataclass(frozen=True)
class CacheBenchRun:
    """All settings of one run, checked."""

    config: Config
    store: ResultsStore | None  # None: keep nothing
    against_vllm: bool = False
    vllm_python: str | None = None  # None: this interpreter

    def execute(self) -> FinishedCacheBench:
        """Run, and save the record. Raises PeerError, and Interrupted after Ctrl-C; what was measured is saved first."""
        with ProgressBar() as bar, ExitStack() as stack:
            peer = None
            if self.against_vllm:
                bar.loading("starting vLLM", 0, 1)
                peer = stack.enter_context(VllmCache(self.vllm_python))
                bar.loading("starting vLLM", 1, 1)
            if self.store is not None:
                self.store.check_writable("bench-cache")
            finished = FinishedCacheBench(CacheBench(self.config, peer))
            recorder = BenchRecorder(
                "bench-cache", "What does a prefix cache's bookkeeping cost?", self.store, _SOURCES,
                lambda: _measurements(finished), self._conditions,
            )  # fmt: skip
            with recorder.keeping_what_was_measured(finished):
                bar.expect(self.config.trials * len(finished.bench.costs))
                for _ in range(self.config.trials):
                    finished.bench.run_trial(lambda label: bar.advance(label, 1))
                finished.memory = finished.bench.measure_memory()
                finished.lookups = finished.bench.measure_lookups()
        return finished

    def _conditions(self) -> dict[str, Any]:
        return {
            "lab_config": json_ready(self.config) | {"against": "vllm" if self.against_vllm else None},
            "target": {"kind": "none"},
        }


def _measurements(finished: FinishedCacheBench) -> list[Measurement]:
    found = []
    for cost in finished.bench.costs:
        if not cost.seconds:
            continue  # interrupted before its first pass
        row = f"{cost.prefix_cache}, {cost.pool}"
        params = {"num_blocks": cost.num_blocks, "num_tokens": cost.num_tokens}
        found.append(Measurement("seconds", "s", tuple(cost.seconds), "all prompts", row, params=params))
        peer = finished.bench.cost("vllm", cost.pool)
        expected = None
        if cost.prefix_cache == "hash" and peer is not None and peer.hits:
            expected = Prediction(peer.hits[0], f"vLLM {finished.bench.peer.version}, the same prompts in the same pool")
        found.append(Measurement("hits", "tokens", tuple(cost.hits), "all prompts", row, expected, params=params))
    for name, value in finished.memory.items():
        found.append(Measurement("memory", "bytes", (value,), "per block", name))
    for lookup in finished.lookups:
        for length, samples in lookup.samples_s:
            row = f"{lookup.prefix_cache}, {length} tokens"
            found.append(Measurement("lookup", "s", samples, "lookup", row, params={"num_tokens": length}))
    return found
