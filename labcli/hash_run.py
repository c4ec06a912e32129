"""HashRun: one run of the hash bench, from its settings to its record, whatever way it ends.

    a random chain, or a prompt from a file ──▶ each algorithm, in turns ──▶ growth with length ──▶ record saved
                                                 (and vLLM's own function)    (of a random chain)
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Sequence

import engine.kvcache.block_encoding
import engine.kvcache.block_hash
import labs.benches.hash_comparison
import labs.benches.hash_cost
import labs.benches.prompt_cost
from engine.config import EngineConfig
from engine.errors import MissingPackage
from labcli.environment import read_environment
from labcli.fault import Interrupted
from labcli.progress_bar import ProgressBar
from labcli.record import ResultRecord, json_ready
from labcli.results_store import ResultsStore
from labcli.run_identity import new_run_id, source_hashes, utc_now
from labs import theory
from labs.benches.hash_comparison import ComparedBench, HashComparison
from labs.benches.hash_cost import (
    Config,
    HashBench,
    HashCost,
    HashGrowth,
    NamedChain,
    growth_lengths,
    make_token_ids,
    measure_growth,
)
from labs.benches.prompt_cost import Prefill, PromptCost, prefill_by_cost_model, prefill_on_engine, time_tokenising, tokenise
from labs.diagnose.prompt_file import PromptFile
from labs.peers.vllm_hashing import PeerEnded, PeerError, VllmHashing
from labs.protocol import Measurement, Prediction

_QUESTION = "What does naming a block cost, per algorithm?"


@dataclass(frozen=True)
class PromptSettings:
    """A prompt to be named instead of a random chain, and what stands beside it."""

    prompt: PromptFile
    model: str  # its tokenizer, and the engine's model
    prefill: str  # "engine", or the name of a GPU in the cost model
    shape: str  # the model whose prefill that GPU would compute
    cache_dir: str | None = None


@dataclass
class HashResult:
    """What a run found; parts that were not asked for stay empty."""

    config: Config
    costs: list[HashCost] = field(default_factory=list)
    comparisons: list[HashComparison] = field(default_factory=list)
    growth: list[HashGrowth] = field(default_factory=list)
    prompt: PromptCost | None = None
    peer_version: str | None = None
    growth_skipped: bool = False
    skipped: dict[str, str] = field(default_factory=dict)  # algorithm -> why
    record: ResultRecord | None = None
    path: Path | None = None

    @property
    def notes(self) -> list[str]:
        """Why not to lean on a time; empty when there is nothing to say."""
        notes = [f"{cost.algorithm}: {cost.spread.stability_note}" for cost in self.costs if cost.spread.stability_note]
        for cost in self.costs:
            if cost.ns_per_block < cost.digest_ns_per_block:
                notes.append(f"{cost.algorithm}: the digest alone took longer than the whole: the machine was disturbed")
        if self.peer_version is not None and not self.comparisons:
            notes.append("no block is full: there is nothing to compare with vLLM")
        if self.growth_skipped:
            notes.append("growth with length is left out: too few of its prompts fill a block of this size")
        return notes


@dataclass(frozen=True)
class HashRun:
    """All settings of one run, checked."""

    config: Config
    store: ResultsStore | None  # None: keep nothing
    prompt: PromptSettings | None = None
    against_vllm: bool = False
    vllm_python: str | None = None  # None: this interpreter
    with_growth: bool = True

    def execute(self) -> HashResult:
        """Run, and save the record.

        Raises MissingPackage when no algorithm can be timed, PeerError, Interrupted after Ctrl-C (what was measured is
        saved first), and what reading or serving a prompt raises.
        """
        result = HashResult(self.config)
        started_at = utc_now()
        try:
            with ProgressBar() as bar, ExitStack() as stack:
                peer = stack.enter_context(self._start_peer(bar)) if self.against_vllm else None
                # After the peer: one that is refused leaves no folder behind.
                if self.store is not None:
                    self.store.check_writable("hash-bench")
                self._measure(result, peer, bar)
        except KeyboardInterrupt:
            if not result.costs:
                raise Interrupted("interrupted before anything was measured") from None
            self._keep(result, started_at, "interrupted")
            where = f"saved in {result.path}" if result.path else "not saved"
            raise Interrupted(f"interrupted; what was measured is {where}") from None
        except Exception as error:
            if result.costs:
                self._keep(result, started_at, "failed", type(error).__name__)
                error.add_note(f"what was measured before that is {f'saved in {result.path}' if result.path else 'not saved'}")
            raise
        self._keep(result, started_at, "ok")
        return result

    def _start_peer(self, bar: ProgressBar) -> VllmHashing:
        bar.loading("starting vLLM", 0, 1)
        peer = VllmHashing(self.vllm_python)
        bar.loading("starting vLLM", 1, 1)
        return peer

    def _measure(self, result: HashResult, peer: VllmHashing | None, bar: ProgressBar) -> None:
        token_ids, tokenise_s = self._token_ids(bar)
        chains = self._chains(token_ids, result)
        if peer is not None:
            result.peer_version = peer.version
        if peer is not None and chains:
            self._compare(chains, peer, result, bar)
        elif chains:
            self._bench(chains, result, bar)
        if self.prompt is not None:
            hashing = tuple(result.costs)
            prefill = self._prefill(token_ids, bar)
            result.prompt = PromptCost(
                self.prompt.prompt.kind, len(token_ids), self.config.block_size, hashing, tokenise_s, prefill
            )
        elif self.with_growth:
            self._measure_growth(chains, result, bar)

    def _measure_growth(self, chains: Sequence[NamedChain], result: HashResult, bar: ProgressBar) -> None:
        lengths = growth_lengths(self.config.block_size)
        result.growth_skipped = not lengths
        if not lengths:
            return
        bar.expect(len(chains))
        for chain in chains:
            result.growth.append(measure_growth(chain.hasher.algorithm, self.config, lengths))
            bar.advance(f"{chain.hasher.algorithm}: growth with length", 1)

    def _token_ids(self, bar: ProgressBar) -> tuple[list[int], tuple[float, ...]]:
        """What is hashed, and the seconds that tokenising it took."""
        if self.prompt is None:
            return make_token_ids(self.config), ()
        prompt = self.prompt.prompt
        if prompt.token_ids is not None:
            return prompt.token_ids, ()
        from engine.model.tokenizer import open_tokenizer

        tokenizer = open_tokenizer(self.prompt.model, self.prompt.cache_dir, bar.loading)
        return tokenise(prompt, tokenizer), time_tokenising(prompt, tokenizer, self.config.trials)

    def _chains(self, token_ids: Sequence[int], result: HashResult) -> list[NamedChain]:
        chains = []
        if len(token_ids) < self.config.block_size:
            return chains  # a short prompt: no block is full, nothing is named
        for algorithm in self.config.algorithms:
            try:
                chains.append(NamedChain(algorithm, token_ids, self.config.block_size))
            except MissingPackage as missing:
                self._skip(algorithm, str(missing), result)
        if not chains:
            raise MissingPackage("no algorithm could be timed; accepted: pip install xxhash cbor2, or --algorithms sha256")
        return chains

    def _skip(self, algorithm: str, reason: str, result: HashResult) -> None:
        result.skipped[algorithm] = reason
        print(f"labcli: skipping {algorithm}: {reason}", file=sys.stderr)

    def _bench(self, chains: Sequence[NamedChain], result: HashResult, bar: ProgressBar) -> None:
        bar.expect(self.config.trials)
        bench = HashBench(chains)
        for _ in range(self.config.trials):
            bench.run_trial()
            result.costs = bench.costs
            bar.advance("hashing", 1)

    def _compare(self, chains: list[NamedChain], peer: VllmHashing, result: HashResult, bar: ProgressBar) -> None:
        peer.load(chains[0].token_ids[: self.config.block_size], self.config.block_size)
        for chain in list(chains):
            try:
                peer.names(chain.hasher.algorithm, chain.none_hash_seed)
            except PeerEnded:
                raise
            except PeerError as error:
                self._skip(chain.hasher.algorithm, f"vLLM's interpreter: {error}", result)
                chains.remove(chain)
        if not chains:
            raise PeerError("vLLM's interpreter could not hash with any of these algorithms; accepted: pip install xxhash there")
        bar.expect(self.config.trials)
        bench = ComparedBench(chains, peer)
        for _ in range(self.config.trials):
            bench.run_trial()
            result.comparisons = bench.comparisons
            result.costs = [comparison.cost for comparison in result.comparisons]
            bar.advance("hashing, in turns with vLLM", 1)

    def _prefill(self, token_ids: Sequence[int], bar: ProgressBar) -> Prefill:
        assert self.prompt is not None
        if self.prompt.prefill != "engine":
            return prefill_by_cost_model(len(token_ids), self.prompt.shape, self.prompt.prefill)
        from labcli.held_interrupts import held_interrupts
        from labs.targets.open_target import import_model_packages, open_target_factory

        with held_interrupts():
            import_model_packages()
        open_target = open_target_factory(
            "engine", EngineConfig(model=self.prompt.model), cache_dir=self.prompt.cache_dir, progress=bar.loading
        )
        bar.expect(self.config.trials + 1)
        return prefill_on_engine(token_ids, open_target, self.config.trials, lambda: bar.advance("prefilling", 1))

    def _keep(self, result: HashResult, started_at: str, status: str, error: str | None = None) -> None:
        measurements = _measurements(result)
        if status == "ok" and any(one.agrees is False for one in measurements):
            status = "disagrees"
        result.record = ResultRecord(
            run_id=new_run_id(),
            started_at=started_at,
            finished_at=utc_now(),
            environment=read_environment(),
            lab={"number": None, "name": "hash-bench", "question": _QUESTION},
            sources=source_hashes(
                {
                    "labs/benches/hash_cost.py": labs.benches.hash_cost.__file__,
                    "labs/benches/hash_comparison.py": labs.benches.hash_comparison.__file__,
                    "labs/benches/prompt_cost.py": labs.benches.prompt_cost.__file__,
                    "engine/kvcache/block_hash.py": engine.kvcache.block_hash.__file__,
                    "engine/kvcache/block_encoding.py": engine.kvcache.block_encoding.__file__,
                }
            ),
            lab_config=_recorded_config(self),
            target={"kind": "none"},
            status=status,
            error=error,
            measurements=tuple(measurements),
            findings=tuple(result.notes),
            details=json_ready(_details(result)),
        )
        if self.store is not None:
            result.path = self.store.save(result.record)


def _recorded_config(run: HashRun) -> dict[str, Any]:
    config = json_ready(run.config)
    if run.prompt is not None:
        # What was drawn for a random chain says nothing about a prompt; the prompt itself is never recorded.
        for name in ("num_blocks", "vocab_size", "seed"):
            config.pop(name)
        settings = run.prompt
        config["prompt"] = {"kind": settings.prompt.kind, "model": settings.model, "prefill": settings.prefill, "shape": settings.shape}
    config["against"] = "vllm" if run.against_vllm else None
    return config


def _measurements(result: HashResult) -> list[Measurement]:
    found = []
    for cost in result.costs:
        params = {"algorithm": cost.algorithm, "num_blocks": cost.num_blocks, "block_size": cost.block_size}
        for name, samples in (("whole", cost.whole_s), ("append", cost.append_s), ("digest", cost.digest_s)):
            found.append(Measurement(name, "s", samples, "chain", cost.algorithm, params=params))
    for comparison in result.comparisons:
        cost = comparison.cost
        law = Prediction(*theory.predict(theory.full_blocks, cost.num_blocks * cost.block_size, cost.block_size))
        params = {"algorithm": cost.algorithm, "peer": "vllm", "version": result.peer_version}
        found.append(Measurement("peer", "s", comparison.peer_s, "chain", cost.algorithm, params=params))
        found.append(
            Measurement("equal_names", "blocks", (comparison.num_equal_names,), "chain", cost.algorithm, law, params=params)
        )
    for growth in result.growth:
        for num_tokens, samples in zip(growth.num_tokens, growth.samples_s):
            params = {"algorithm": growth.algorithm, "num_tokens": num_tokens, "block_size": growth.block_size}
            found.append(Measurement("whole", "s", samples, "growth", f"{growth.algorithm}, {num_tokens} tokens", params=params))
    if result.prompt is not None:
        if result.prompt.tokenise_s:
            found.append(Measurement("tokenise", "s", result.prompt.tokenise_s, "prompt", "tokenising"))
        prefill = result.prompt.prefill
        found.append(Measurement("prefill", "s", prefill.samples_s, "prompt", "prefill", note=prefill.basis))
    return found


def _details(result: HashResult) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if result.skipped:
        details["skipped"] = result.skipped
    if result.growth:
        details["growth"] = {
            growth.algorithm: {"ns_per_token": growth.ns_per_token, "r_squared": growth.r_squared, "exponent": growth.exponent}
            for growth in result.growth
        }
    if result.prompt is not None:
        prompt = result.prompt
        details["prompt"] = {
            "num_tokens": prompt.num_tokens, "num_blocks": prompt.num_blocks, "num_unnamed": prompt.num_unnamed,
        }  # fmt: skip
    return details
