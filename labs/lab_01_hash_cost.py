"""Lab 01: what does naming a block cost, per algorithm, and beside tokenising and prefill?

Background. A prefix cache finds blocks by name, and a name is a hash over the whole prefix: the parent's name, the
block's tokens, and what else shapes K/V. Four algorithms are in use: tokens are serialised with pickle or canonical CBOR,
and the bytes digested with SHA-256 or 128-bit XXH3. Hashing runs on the CPU before a request is scheduled, for every
request, hit or miss; so it is part of each TTFT.

Predicted. A prompt of L tokens has ⌊L/B⌋ names and L mod B tokens without one. Equal input gives equal names: every
digest recorded from vLLM 0.32.0 and SGLang 0.5.23 comes out again, and naming a whole prompt at once gives the names
that the definition gives block by block. k further tokens give ⌊(L + k)/B⌋ − ⌊L/B⌋ new names and touch no old one. Times
are not predicted: they belong to the processor.

How to read it. The digest alone is what would be left if serialising cost nothing. SHA-256 takes a quarter to half of the
time on a processor with instructions for it, and XXH3 next to nothing; the rest is serialisation. Time ~ L^1 says that
hashing is linear: an implementation that hashes its whole prefix for each block would show 2. Beside tokenising the same
text (engine only: `sim` has no tokenizer) hashing is small, and beside a prefill smaller still. So choose the algorithm for
what it protects (SHA-256 where strangers share a cache) and for who must agree on names: sha256 and sha256_cbor name alike
in all processes, except that with sha256 a block in which equal keys repeat may differ; xxhash and xxhash_cbor only where
one PYTHONHASHSEED is set everywhere.

Sources: vLLM 0.32.0, utils/hashing.py, v1/core/kv_cache_utils.py and benchmarks/benchmark_prefix_block_hash.py; SGLang
0.5.23, mem_cache/cpp_utils/hash_binding.cpp; labs/theory.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.config import HASH_ALGORITHMS
from engine.errors import ConfigError, MissingPackage
from engine.kvcache.block_hash import hash_block_tokens
from engine.kvcache.cache_identity import CacheIdentity
from labs import theory
from labs.benches import hash_cost
from labs.benches.hash_cost import HashBench, HashCost, HashGrowth, NamedChain, measure_growth
from labs.chart import Chart, ChartSeries, bars_of
from labs.protocol import Lab, LabReport, LabSession, Measurement, Prediction
from labs.recorded.engine_hashes import sglang_page_hashes, vllm_block_hashes
from labs.series import prove_cold
from labs.targets.base import Target, TargetError
from labs.workload import SharedPrefixWorkload


@dataclass(frozen=True)
class Config:
    """The prompt of the other labs, and chains of other lengths."""

    system_tokens: int = 2_000
    user_tokens: int = 200
    appended_tokens: int = 200  # as if the model had generated them
    block_size: int = 16
    algorithms: tuple[str, ...] = HASH_ALGORITHMS
    trials: int = 7  # per time
    growth_tokens: tuple[int, ...] = hash_cost.GROWTH_TOKENS
    num_requests: int = 3  # cold ones, for the TTFT
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("system_tokens", 1, 1_000_000), ("user_tokens", 1, 100_000), ("appended_tokens", 0, 1_000_000),
            ("block_size", 1, 65_536), ("trials", 1, 1_000), ("num_requests", 1, 64), ("seed", 0, 2**63 - 1),
        ):  # fmt: skip
            if not low <= getattr(self, name) <= high:
                raise ConfigError(name, getattr(self, name), f"a whole number from {low} to {high}")
        unknown = [name for name in self.algorithms if name not in HASH_ALGORITHMS]
        if unknown or not self.algorithms:
            raise ConfigError("algorithms", ",".join(self.algorithms), ", ".join(HASH_ALGORITHMS))
        if self.num_tokens < self.block_size:
            raise ConfigError("block_size", self.block_size, f"a whole number from 1 to {self.num_tokens}: one block must be full")
        lengths, most = self.growth_tokens, min(1_000_000 * self.block_size, 5_000_000)
        if len(lengths) < 3 or list(lengths) != sorted(set(lengths)) or lengths[0] < self.block_size or lengths[-1] > most:
            accepted = f"at least three rising whole numbers from {self.block_size} to {most}"
            raise ConfigError("growth_tokens", ",".join(map(str, lengths)), accepted)

    @property
    def num_tokens(self) -> int:
        """L."""
        return self.system_tokens + self.user_tokens


def run(session: LabSession, config: Config) -> LabReport:
    """Names first, then their cost, then the cost's growth, then what stands beside it."""
    session.expect(len(config.algorithms) + config.trials + len(config.algorithms) + config.num_requests)
    # The engine's own choices stay: only the pool must hold one prompt and the canary.
    target = session.open_target(prefix_cache="hash", block_size=config.block_size, num_gpu_blocks=_pool_blocks(config))
    try:
        workload = _workload(target, config)
        prompt = workload.prompts[0]
        recorded, chains = _names(session, config, prompt)
        costs, cost_times = _costs(session, config, chains)
        growth = _growth(session, config)
        share, tokenise_s, ttfts_s, cold = _beside_the_request(session, target, workload, costs, config)
        info = target.info
    finally:
        target.close()
    findings = [*recorded.findings, *_cost_findings(costs), _growth_finding(growth), _share_finding(costs, tokenise_s, ttfts_s, info, config)]
    return LabReport(
        (*recorded.measurements, *cost_times, *_growth_measurements(growth), *share),
        "cold" if cold else "uncontrolled",
        tuple(findings),
        "A block's name costs microseconds: hashing is linear in the prompt, is paid once per token, and is "
        "lost in the time of a prefill. If a profile shows it, look for prefixes hashed anew at each step, or for blocks of one "
        "token. Choose SHA-256 where strangers share a cache, since collisions of XXH3 can be made on purpose; and sha256_cbor where "
        "several processes must agree on names: the start of both xxhash chains is random unless PYTHONHASHSEED is set, and "
        "pickle's names depend on which equal objects are one.",
        {"workload": workload.digest},
        (_cost_chart(costs), _growth_chart(growth)),
    )


@dataclass(frozen=True)
class _Names:
    measurements: tuple[Measurement, ...]
    findings: tuple[str, ...]


def _names(session: LabSession, config: Config, prompt: tuple[int, ...]) -> tuple[_Names, list[NamedChain]]:
    """Every count of names, each with its law."""
    found: list[Measurement] = []
    chains: list[NamedChain] = []
    block_hashes = [entry for entry in vllm_block_hashes() if entry.digest is not None]
    num_reproduced = 0
    for algorithm in config.algorithms:
        mine = [entry for entry in block_hashes if entry.algorithm == algorithm]
        law = Prediction(*theory.predict(theory.reproduced_hashes, len(mine)))
        try:
            chain = NamedChain(algorithm, prompt, config.block_size)
            num_equal = sum(entry.reproduce() == entry.digest for entry in mine)
        except MissingPackage as missing:
            raise TargetError(f"{algorithm}: {missing}; accepted: --set algorithms=sha256") from missing
        chains.append(chain)
        num_reproduced += num_equal
        rows = [Measurement("recorded", "digests", (num_equal,), _NAMES, algorithm, law)]
        found += rows + _chain_counts(chain, prompt, config)
        session.record(*found[-(len(rows) + 4) :])
        session.progress(f"names, {algorithm}")
    pages = sglang_page_hashes()
    num_pages = sum(len(entry.digests) for entry in pages)
    equal_pages = sum(mine.hex() == theirs for entry in pages for mine, theirs in zip(entry.reproduce(), entry.digests))
    law = Prediction(*theory.predict(theory.reproduced_hashes, num_pages))
    found.append(Measurement("recorded", "digests", (equal_pages,), _NAMES, "SGLang's pages", law))
    session.record(found[-1])
    total = sum(entry.algorithm in config.algorithms for entry in block_hashes)
    finding = (
        f"recorded digests that came out again: {num_reproduced} of {total} block names of vLLM 0.32.0, "
        f"{equal_pages} of {num_pages} page names of SGLang 0.5.23"
    )
    return _Names(tuple(found), (finding,)), chains


def _chain_counts(chain: NamedChain, prompt: tuple[int, ...], config: Config) -> list[Measurement]:
    """Names of the prompt, equal to the definition's, new after an append, and tokens without one."""
    size, num_tokens = config.block_size, len(prompt)
    hasher, algorithm = chain.hasher, chain.hasher.algorithm
    parent, num_equal = hasher.none_hash, 0
    for number, name in enumerate(chain.names):
        parent = hash_block_tokens(hasher.hash_function, parent, prompt[number * size : (number + 1) * size])
        num_equal += parent == name
    grown, names = list(prompt), list(chain.names)
    for token_id in (prompt * (config.appended_tokens // num_tokens + 1))[: config.appended_tokens]:
        grown.append(token_id)
        hasher.extend(names, grown, CacheIdentity())
    num_new = len(names) - len(chain.names) if names[: len(chain.names)] == chain.names else -1
    full = theory.predict(theory.full_blocks, num_tokens, size)
    new = theory.predict(theory.newly_full_blocks, num_tokens, config.appended_tokens, size)
    tail = theory.predict(theory.unnamed_tail, num_tokens, size)
    unnamed = num_tokens - len(chain.names) * size
    return [
        Measurement("names", "blocks", (len(chain.names),), _NAMES, algorithm, Prediction(*full), key=True),
        Measurement("as defined", "blocks", (num_equal,), _NAMES, algorithm, Prediction(*full)),
        Measurement("new", "blocks", (num_new,), _NAMES, algorithm, Prediction(*new), key=True),
        Measurement("unnamed", "tokens", (unnamed,), _NAMES, algorithm, Prediction(*tail), key=True),
    ]


def _costs(session: LabSession, config: Config, chains: list[NamedChain]) -> tuple[list[HashCost], list[Measurement]]:
    bench = HashBench(chains)
    for trial in range(config.trials):
        bench.run_trial()
        session.progress(f"hashing, trial {trial + 1}")
    costs, found = bench.costs, []
    for cost in costs:
        kinds = (("whole_prompt", cost.whole_s), ("one_block_a_call", cost.append_s), ("digest_alone", cost.digest_s))
        found += [Measurement(name, "s", samples, _COSTS, cost.algorithm) for name, samples in kinds]
        per_block = tuple(seconds / cost.num_blocks for seconds in cost.whole_s)
        found.append(Measurement("per_block", "s", per_block, _COSTS, cost.algorithm))
        found.append(Measurement("per_token", "s", tuple(one / cost.block_size for one in per_block), _COSTS, cost.algorithm))
    session.record(*found)
    return costs, found


def _growth(session: LabSession, config: Config) -> list[HashGrowth]:
    found = []
    for algorithm in config.algorithms:
        sizes = hash_cost.Config(block_size=config.block_size, seed=config.seed, trials=config.trials)
        growth = measure_growth(algorithm, sizes, config.growth_tokens)
        session.record(*_growth_measurements([growth]))
        session.progress(f"growth, {algorithm}")
        found.append(growth)
    return found


def _growth_measurements(growth: list[HashGrowth]) -> list[Measurement]:
    return [
        Measurement(one.algorithm, "s", samples, _GROWTH, f"{num_tokens:,} tokens", params={"num_tokens": num_tokens})
        for one in growth
        for num_tokens, samples in zip(one.num_tokens, one.samples_s)
    ]


def _beside_the_request(
    session: LabSession, target: Target, workload: SharedPrefixWorkload, costs: list[HashCost], config: Config
) -> tuple[list[Measurement], tuple[float, ...], tuple[float, ...], bool]:
    """The prompt sent cold: its TTFT, and hashing's and tokenising's share of it."""
    cold, ttfts_s, hits, prompt = True, [], [], workload.prompts[0]
    for _ in range(config.num_requests):
        cold = prove_cold(session, target, workload.canary_ids) and cold
        completion = target.complete(prompt)
        ttfts_s.append(completion.ttft_s)
        hits.append(completion.num_cached_tokens)
        session.progress("a cold request")
    tokenise_s = _tokenise(target, prompt, config.trials)
    miss = Prediction(*theory.predict(theory.reuse, 0, len(prompt), config.block_size))
    row = f"{len(prompt):,} tokens"
    found = [
        Measurement("hits", "tokens", tuple(hits), _REQUEST, row, miss),
        Measurement("ttft_cold", "s", tuple(ttfts_s), _REQUEST, row, note=_clock_note(target)),
    ]
    if tokenise_s:
        found.append(Measurement("tokenising", "s", tokenise_s, _REQUEST, row))
    dearest = _dearest(costs)
    found.append(
        Measurement("hashing", "s", dearest.whole_s, _REQUEST, row, note=f"hashing: {dearest.algorithm}, the dearest here")
    )
    session.record(*found)
    return found, tokenise_s, tuple(ttfts_s), cold


def _tokenise(target: Target, prompt: tuple[int, ...], trials: int) -> tuple[float, ...]:
    tokenizer = target.tokenizer()
    if tokenizer is None:
        return ()
    from labs.benches.prompt_cost import time_tokenising
    from labs.diagnose.prompt_file import PromptFile

    return time_tokenising(PromptFile(text=tokenizer.decode(prompt)), tokenizer, trials)


def _workload(target: Target, config: Config) -> SharedPrefixWorkload:
    tokenizer = target.tokenizer()
    sizes = {"seed": config.seed, "num_shared": config.system_tokens, "num_tail": config.user_tokens, "num_requests": 1}
    try:
        if tokenizer is not None and tokenizer.has_chat_template:
            return SharedPrefixWorkload.from_text(tokenizer, **sizes)
        return SharedPrefixWorkload.from_token_ids(target.info.vocab_size, **sizes)
    except ConfigError as error:
        names = {"num_shared": "system_tokens", "num_tail": "user_tokens"}
        raise ConfigError(names.get(error.field, error.field), error.value, error.accepted) from error


def _pool_blocks(config: Config) -> int:
    # The prompt, one token of output, the canary, and the null block.
    canary_tokens = max(48, config.block_size) + config.block_size
    return -(-(config.num_tokens + 1) // config.block_size) + -(-canary_tokens // config.block_size) + 4


def _cost_chart(costs: list[HashCost]) -> Chart:
    """Nanoseconds a block, the digest's part and the rest."""
    digests = [(cost.algorithm, min(cost.digest_ns_per_block, cost.ns_per_block)) for cost in costs]
    rest = [(cost.algorithm, cost.ns_per_block - digest) for cost, (_, digest) in zip(costs, digests)]
    title = "A block's name: what the digest takes, and what serialising takes"
    return bars_of(title, {"digest": digests, "serialising": rest}, unit="ns")


def _growth_chart(growth: list[HashGrowth]) -> Chart:
    points = [(one, tuple(zip(one.num_tokens, (min(samples) * 1e3 for samples in one.samples_s)))) for one in growth]
    series = tuple(ChartSeries(one.algorithm, points=at) for one, at in points)
    return Chart("lines", "Hashing is linear in the prompt", series, "ms", "prompt, tokens", "best time, ms")


def _cost_findings(costs: list[HashCost]) -> list[str]:
    found = []
    for cost in costs:
        share = min(cost.digest_ns_per_block / cost.ns_per_block, 1.0)
        found.append(
            f"{cost.algorithm}: {cost.ns_per_block:,.0f} ns a block, {cost.ns_per_token:,.0f} ns a token, "
            f"of which the digest {share:.0%} and serialising {1 - share:.0%}"
            + (f" ({cost.spread.stability_note})" if cost.spread.stability_note else "")
        )
    return found


def _growth_finding(growth: list[HashGrowth]) -> str:
    parts = [f"{one.algorithm} time ~ L^{one.exponent:.2f} (R² {one.r_squared:.3f})" for one in growth]
    lengths = growth[0].num_tokens
    return f"from {lengths[0]:,} to {lengths[-1]:,} tokens: " + ", ".join(parts) + "; 1 is linear, 2 would be quadratic"


def _share_finding(
    costs: list[HashCost], tokenise_s: tuple[float, ...], ttfts_s: tuple[float, ...], info: Any, config: Config
) -> str:
    dearest, ttft_s = _dearest(costs), min(ttfts_s)
    text = f"naming the {config.num_tokens:,} tokens ({dearest.algorithm}) is {dearest.best_s / ttft_s:.3%} of their cold TTFT"
    if tokenise_s:
        text += f" and {dearest.best_s / min(tokenise_s):.1%} of tokenising them"
    where = f"{info.model} on {info.device}"
    return f"{text}, {where}; hashing was measured on this machine" if info.kind == "sim" else f"{text}, {where}"


def _dearest(costs: list[HashCost]) -> HashCost:
    return max(costs, key=lambda cost: cost.best_s)


def _clock_note(target: Target) -> str:
    if target.info.kind == "sim":
        return "the TTFT is by the cost model, hashing is measured on this machine; there is no tokenizer to time"
    return ""


_NAMES, _COSTS = "names", "cost of the prompt's chain"
_GROWTH, _REQUEST = "growth, whole prompts", "beside the request"

LAB = Lab(
    number=1,
    name="hash-cost",
    question="What does naming a block cost, per algorithm, and beside tokenising and prefill?",
    config_type=Config,
    quick=Config(
        system_tokens=240, user_tokens=80, appended_tokens=40, trials=5, growth_tokens=(1_000, 5_000, 20_000), num_requests=1
    ),
    run=run,
)
