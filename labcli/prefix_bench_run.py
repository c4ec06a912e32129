"""PrefixBenchRun: one run of the prefix caching bench, from its settings to its record."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Sequence

import labs.benches.own_engine
import labs.benches.prefix_bench
import labs.benches.prefix_bench_prompts
from engine.config import DEFAULT_POOL_TOKENS, EngineConfig
from labcli.bench_record import ENGINE_SOURCES, BenchRecorder
from labcli.progress_bar import ProgressBar
from labcli.record import ResultRecord, json_ready
from labcli.results_store import ResultsStore
from labs import theory
from labs.benches.own_engine import OwnEngine, model_folder, settings_of
from labs.benches.prefix_bench import PASSES, PassTimes, PrefixBench
from labs.benches.prefix_bench_prompts import (
    BenchRequest,
    InputLengths,
    PrefixBenchConfig,
    arrange,
    describe,
    expected_hits_in_turn,
    sample_prompts,
)  # fmt: skip
from labs.peers.open_engine import open_peer
from labs.protocol import Measurement, Prediction
from labs.workload import workload_digest

# A pool is made to fit the requests up to this many tokens; a larger one is a person's own decision.
MAX_FITTED_POOL_TOKENS = 8 * DEFAULT_POOL_TOKENS


@dataclass
class FinishedPrefixBench:
    """What a run found, and its record."""

    bench: PrefixBench
    config: PrefixBenchConfig
    engine_config: EngineConfig
    computes_with: str
    dtype: str
    build_s: float  # of our start
    num_sampled: int
    lengths: InputLengths
    predicted: dict[str, Prediction]  # hits by pass, where the law says them exactly
    notes: list[str] = field(default_factory=list)
    cache_state: str = "uncontrolled"
    record: ResultRecord | None = None
    path: Path | None = None


@dataclass(frozen=True)
class PrefixBenchRun:
    """All settings of one run, checked."""

    config: PrefixBenchConfig
    engine_config: EngineConfig
    trials: int
    store: ResultsStore | None  # None: keep nothing
    detokenize: bool = True
    num_threads: int | None = None  # None: torch's own choice
    against: tuple[str, ...] = ()  # peers, see labs/peers/open_engine.py
    vllm_python: str | None = None  # None: this interpreter
    cache_dir: str | None = None

    def execute(self) -> FinishedPrefixBench:
        """Run, and save the record.

        Raises PeerError and the engine's errors, and Interrupted after Ctrl-C; what was measured is saved first.
        """
        with ProgressBar() as bar, ExitStack() as stack:
            if self.store is not None:
                self.store.check_writable("bench-prefix-caching")
            fitted = self._fitted()
            # Before our clock: the conversion of a model, once, is no part of an engine's start.
            folder = model_folder(fitted.model, self.cache_dir, bar.loading) if self.against else ""
            own = OwnEngine(fitted, self.num_threads, cache_dir=self.cache_dir, on_load=bar.loading)
            if not self.detokenize:
                own.engine.tokenizer = None
            runner, tokenizer = own.engine.runner, own.engine.runner.loaded.tokenizer  # type: ignore[attr-defined]
            prompts = sample_prompts(self.config, runner.vocab_size, tokenizer, runner.eos_token_ids)
            requests = arrange(prompts, self.config)
            peers = []
            if self.against:
                import torch

                settings = settings_of(fitted, own, self.num_threads or torch.get_num_threads(), folder)
                peers = [stack.enter_context(open_peer(name, settings, self.vllm_python, bar.loading)) for name in self.against]
            bench = PrefixBench(requests, self.config.output_len, [own, *peers], again=fitted.enable_prefix_caching)
            predicted, notes = self._predict(requests, fitted)
            finished = FinishedPrefixBench(
                bench, self.config, own.engine.config, own.computes_with, str(own.engine.runner.loaded.dtype).removeprefix("torch."),  # type: ignore[attr-defined]
                own.build_s, len(prompts), describe(requests), predicted, notes,
            )  # fmt: skip
            recorder = BenchRecorder(
                "bench-prefix-caching", "What is prefix caching worth for repeated prompts?", self.store,
                (labs.benches.prefix_bench, labs.benches.prefix_bench_prompts, labs.benches.own_engine, *ENGINE_SOURCES),
                lambda: _measurements(finished), lambda: self._conditions(finished),
            )  # fmt: skip
            with recorder.keeping_what_was_measured(finished):
                bar.expect(self.trials * len(bench.engines))
                bench.warm_up(runner.vocab_size, self.config.seed)
                for _ in range(self.trials):
                    bench.run_trial(lambda label: bar.advance(label, 1))
                first = bench.of(own.name, PASSES[0])
                if first is not None and first.served and all(one.num_cached_tokens[0] == 0 for one in first.served):
                    finished.cache_state = "cold"  # nothing was found by what came first after each reset
        return finished

    def _fitted(self) -> EngineConfig:
        """With a pool that holds all distinct prompts and all that runs at once, if nobody chose another."""
        config, (_, longest) = self.engine_config, self.config.length_range
        if self.against and config.max_model_len is None:
            # A peer checks its pool against the longest request it may get, not against those it gets.
            config = config.replace(max_model_len=longest + self.config.output_len)
        if config.num_gpu_blocks is not None or config.kv_cache_memory_bytes is not None:
            return config
        at_once = min(config.max_num_seqs, self.config.num_prompts * self.config.repeat_count)
        tokens = self.config.num_prompts * longest + at_once * (longest + self.config.output_len + config.unit_size)
        tokens = min(max(tokens, DEFAULT_POOL_TOKENS), MAX_FITTED_POOL_TOKENS)
        return config.replace(num_gpu_blocks=-(-tokens // config.unit_size) + 2)

    def _predict(self, requests: Sequence[BenchRequest], config: EngineConfig) -> tuple[dict[str, Prediction], list[str]]:
        """Hits of each pass, and why there is no prediction where there is none."""
        total = sum(len(request.token_ids) for request in requests)
        if not config.enable_prefix_caching:
            return {PASSES[0]: Prediction(0, "prefix caching is off")}, []
        if config.long_prefill_token_threshold or not config.enable_chunked_prefill:
            return {}, ["no hits are predicted where prompts are computed in other pieces than the step's budget asks for"]
        if config.use_eagle or config.prefix_match_unit not in (None, config.unit_size):
            return {}, ["no hits are predicted with a drafter or a match unit of its own"]
        tokens = sum(len(ids) for ids in {request.token_ids for request in requests})
        at_once = min(config.max_num_seqs, len(requests)) * (max(len(one.token_ids) for one in requests) + self.config.output_len)
        if (config.num_gpu_blocks or 0) * config.unit_size < tokens + at_once:
            return {}, [f"the pool may evict: {tokens + at_once:,} tokens could be in it at once; hits are not predicted"]
        unit = config.unit_size
        again = Prediction(
            sum(theory.repeat(len(request.token_ids), unit) for request in requests), f"Σ {unit}·⌊(L − 1)/{unit}⌋"
        )
        if config.prefix_cache == "radix" or config.publish_rule == "step":
            in_turn = sum(expected_hits_in_turn(requests, unit))
            note = f"first pass: at most {in_turn:,} of {total:,} tokens: requests of one step do not find each other"
            return {PASSES[1]: again}, [note]
        first = sum(expected_hits_in_turn(requests, unit))
        return {PASSES[0]: Prediction(first, f"Σ {unit}·⌊min(common, L − 1)/{unit}⌋"), PASSES[1]: again}, []

    def _conditions(self, finished: FinishedPrefixBench) -> dict[str, Any]:
        bench = finished.bench
        engines = [{"name": one.name, "version": one.version, "start_s": one.start_s} for one in bench.engines]
        return {
            "lab_config": json_ready(self.config)
            | {"trials": self.trials, "detokenize": self.detokenize, "against": list(self.against), "num_threads": self.num_threads},
            "target": {
                "kind": "engine",
                "engine_config": json_ready(finished.engine_config),
                "computes_with": finished.computes_with,
                "dtype": finished.dtype,
            },
            "cache_state": finished.cache_state,
            "details": {
                "engines": engines,
                "build_s": finished.build_s,
                "lengths": json_ready(finished.lengths),
                "workload": workload_digest([[request.token_ids] for request in bench.requests]),
                "differing_outputs": {
                    engine.name: [list(pair) for pair in bench.differing_outputs(engine.name)] for engine in bench.engines[1:]
                },
            },
        }


def _measurements(finished: FinishedPrefixBench) -> list[Measurement]:
    found: list[Measurement] = []
    for times in finished.bench.passes:
        if not times.served:
            continue  # interrupted before its first trial, or an engine without a cache
        found.append(Measurement("seconds", "s", tuple(times.seconds), times.name, times.engine))
        if times.hits:
            predicted = finished.predicted.get(times.name) if _follows_the_law(times, finished) else None
            found.append(Measurement("hits", "tokens", tuple(times.hits), times.name, times.engine, predicted))
        for kind, hit in (("ttft_cold", False), ("ttft_warm", True)):
            samples = times.ttfts_s(hit)
            if samples:
                found.append(Measurement(kind, "s", tuple(samples), times.name, times.engine))
        if gaps := times.token_gaps_s:
            found.append(Measurement("token_gap", "s", tuple(gaps), times.name, times.engine))
    return found


def _follows_the_law(times: PassTimes, finished: FinishedPrefixBench) -> bool:
    # Peers name full blocks, whatever ours does.
    return times.engine == finished.bench.engines[0].name or finished.engine_config.prefix_cache == "hash"
