"""EngineBenchRun: one run of the engine bench, from its settings to its record."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import labs.benches.engine_bench
import labs.benches.own_engine
from engine.config import EngineConfig
from labcli.bench_record import ENGINE_SOURCES, BenchRecorder
from labcli.progress_bar import ProgressBar
from labcli.record import ResultRecord, json_ready
from labcli.results_store import ResultsStore
from labs.benches.engine_bench import WORKLOADS, Config, EngineBench
from labs.benches.own_engine import OwnEngine, model_folder, settings_of
from labs.benches.resident_memory import MemoryGrowth, memory_growth
from labs.peers.open_engine import open_peer
from labs.protocol import Measurement, Prediction

# Requests whose memory is watched come in rounds of so many, of so many tokens.
MEMORY_ROUND, MEMORY_PROMPT_TOKENS = 50, 8


@dataclass
class FinishedEngineBench:
    """What a run found, and its record."""

    bench: EngineBench
    engine_config: EngineConfig
    computes_with: str
    build_s: float  # of our start
    settings: dict[str, Any]
    prefill_memory: MemoryGrowth | None = None
    request_memory: MemoryGrowth | None = None  # above what was resident after the first tenth of the requests
    num_memory_requests: int = 0
    notes: list[str] = field(default_factory=list)
    record: ResultRecord | None = None
    path: Path | None = None


@dataclass(frozen=True)
class EngineBenchRun:
    """All settings of one run, checked."""

    config: Config
    engine_config: EngineConfig  # without a size of the pool: it is made to fit
    num_threads: int
    store: ResultsStore | None  # None: keep nothing
    against: tuple[str, ...] = ()  # peers, see labs/peers/open_engine.py
    vllm_python: str | None = None  # None: this interpreter
    memory_requests: int = 0  # how many requests to watch the memory over
    cache_dir: str | None = None

    def execute(self) -> FinishedEngineBench:
        """Run, and save the record.

        Raises PeerError and the engine's errors, and Interrupted after Ctrl-C; what was measured is saved first.
        """
        with ProgressBar() as bar, ExitStack() as stack:
            if self.store is not None:
                self.store.check_writable("bench-engine")
            # Before our clock: the conversion of a model, once, is no part of an engine's start.
            folder = model_folder(self.engine_config.model, self.cache_dir, bar.loading) if self.against else ""
            own = OwnEngine(self._fitted(), self.num_threads, cache_dir=self.cache_dir, on_load=bar.loading)
            settings = settings_of(own.engine.config, own, self.num_threads, folder)
            peers = [stack.enter_context(open_peer(name, settings, self.vllm_python, bar.loading)) for name in self.against]
            bench = EngineBench(self.config, [own, *peers], own.engine.runner.vocab_size, self.engine_config.block_size)
            finished = FinishedEngineBench(bench, own.engine.config, own.computes_with, own.build_s, json_ready(settings))
            recorder = BenchRecorder(
                "bench-engine", "How fast is the engine, beside its peers?", self.store, (labs.benches.engine_bench, labs.benches.own_engine, *ENGINE_SOURCES),
                lambda: _measurements(finished), lambda: self._conditions(finished),
            )  # fmt: skip
            with recorder.keeping_what_was_measured(finished):
                self._measure_first_prefill(finished, own)
                bar.expect(len(WORKLOADS) * len(bench.engines) * (1 + self.config.trials))
                bench.warm_up(lambda label: bar.advance(label, 1))
                for _ in range(self.config.trials):
                    bench.run_trial(lambda label: bar.advance(label, 1))
                self._measure_many_requests(finished, own, bar)
        return finished

    def _fitted(self) -> EngineConfig:
        config = self.engine_config
        self.config.check_blocks(config.block_size)
        blocks = -(-max(self.config.pool_tokens, self.config.longest_request + config.block_size) // config.block_size) + 2
        # One length for all: a peer checks its pool against the longest request it may get.
        return config.replace(num_gpu_blocks=blocks, max_model_len=config.max_model_len or self.config.longest_request)

    def _measure_first_prefill(self, finished: FinishedEngineBench, own: OwnEngine) -> None:
        """What the first long prompt needs beyond imports, weights and pool: later ones find its buffers there."""
        prompt = [token_id % finished.bench.vocab_size for token_id in range(1, self.config.prompt_tokens + 1)]
        finished.prefill_memory = memory_growth(lambda: own.serve([prompt], 1))

    def _measure_many_requests(self, finished: FinishedEngineBench, own: OwnEngine, bar: ProgressBar) -> None:
        """Whether memory grows with the number of requests; of our engine alone, which is the one in this process."""
        bench = finished.bench
        rounds = self.memory_requests // MEMORY_ROUND
        if rounds < 2:
            return
        bar.expect(rounds)

        def serve(first: int, last: int) -> None:
            for number in range(first, last):
                starts = range(number * MEMORY_ROUND, (number + 1) * MEMORY_ROUND)
                own.serve([[(start * 7 + at) % bench.vocab_size for at in range(MEMORY_PROMPT_TOKENS)] for start in starts], 1)
                bar.advance("memory over many requests", 1)

        settled = max(1, rounds // 10)
        serve(0, settled)  # what the first requests bring is not growth
        finished.request_memory = memory_growth(lambda: serve(settled, rounds))
        finished.num_memory_requests = (rounds - settled) * MEMORY_ROUND

    def _conditions(self, finished: FinishedEngineBench) -> dict[str, Any]:
        engines = [{"name": one.name, "version": one.version, "start_s": one.start_s} for one in finished.bench.engines]
        return {
            "lab_config": json_ready(self.config) | {"against": list(self.against), "memory_requests": self.memory_requests},
            "target": {
                "kind": "engine",
                "engine_config": json_ready(finished.engine_config),
                "computes_with": finished.computes_with,
                "settings": {name: value for name, value in finished.settings.items() if name != "model_folder"},
            },
            "details": {"engines": engines, "build_s": finished.build_s},
        }


def _measurements(finished: FinishedEngineBench) -> list[Measurement]:
    bench, found = finished.bench, []
    for times in bench.times:
        if not times.seconds:
            continue  # interrupted before its first trial
        found.append(Measurement("seconds", "s", tuple(times.seconds), times.workload, times.engine))
        hits = tuple(one for one in times.num_cached_tokens if one is not None)
        if hits:
            predicted = bench.expected_hits(times.workload)
            expected = Prediction(predicted.value, predicted.law)
            found.append(Measurement("hits", "tokens", hits, times.workload, times.engine, expected))
    for name, growth in (("prefill", finished.prefill_memory), ("many requests", finished.request_memory)):
        if growth is not None:
            found.append(Measurement("peak growth", "bytes", (growth.peak_bytes,), "memory", name))
            found.append(Measurement("kept growth", "bytes", (growth.kept_bytes,), "memory", name))
    return found
