"""Lab 12: do independent processes name blocks alike?

Background. A block's name is a hash over its parent's name, its tokens and its extra keys; the first block's parent is a
text that the process chooses when it starts. A second engine, a router that sends requests where their prefix is, or an
outer store of K/V finds a block only if it makes the same name of the same tokens. Nothing warns when it does not: every
lookup is a miss.

Predicted, of n blocks. All names are equal if both processes start their chains alike, and none if they do not, since every
name contains the start:

    PYTHONHASHSEED unset     sha256, sha256_cbor: a fixed text, all; xxhash, xxhash_cbor: a random one, none
    the same in both         it is the start of every algorithm: all
    two values               none
    set in one alone         none, of sha256 too: what is set there replaces the fixed text
    SGLang's page hashes     no start at all: always all

A trap of pickle (sha256, xxhash): it writes an object that it met before as a reference. A block that holds the same image
twice is named differently where the image's identifier is one object and where it is two equal ones: the blocks before it
are equal, it and all behind it are not. CBOR knows values only.

How to read it. Counts are equal names, block by block, of real processes that share nothing but the token ids. The last table
is the same for an engine that has cached the prompt: the names in its KV events beside those that a router in another
process makes of the ids. `own` is a router with this process's PYTHONHASHSEED, `other` one with another.

Sources: vLLM 0.32.0, v1/core/kv_cache_utils.py and utils/hashing.py; SGLang 0.5.23, mem_cache/utils.py.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Mapping, Sequence

from engine.config import HASH_ALGORITHMS
from engine.errors import ConfigError, MissingPackage
from engine.kvcache.block_hash import BlockHash, event_block_hash, get_hash_function
from engine.kvcache.kv_events import BlockStored
from engine.kvcache.page_hash import PageHash, event_page_hash
from labs import theory
from labs.caches import Cache, hash_cache, radix_cache
from labs.chart import Chart, bars_of
from labs.field_check import check_numbers
from labs.outcome import outcome_line
from labs.peers.block_name_worker import BlockNames, NamingTask, ask_workers
from labs.protocol import Lab, LabReport, LabSession, Measurement, Prediction
from labs.series import prove_cold
from labs.targets.base import Target, TargetError
from labs.workload import workload_digest

LARGEST_HASH_SEED = 2**32 - 1  # that Python itself accepts
PAGES = "page hashes"  # SGLang's, beside the four algorithms of the hash cache


@dataclass(frozen=True)
class Config:
    """Sizes, in tokens unless said otherwise."""

    num_blocks: int = 32  # of the prompt
    block_size: int = 16  # of the hash cache; at least 2, for two images in one block
    page_size: int = 16  # of the radix cache
    algorithms: tuple[str, ...] = HASH_ALGORITHMS
    hash_seed: int = 0  # PYTHONHASHSEED of two of the processes; kept in the record, so take none that is in use elsewhere
    other_hash_seed: int = 1  # and of a third
    seed: int = 0  # of the token ids

    def __post_init__(self) -> None:
        seeds = {"hash_seed": LARGEST_HASH_SEED, "other_hash_seed": LARGEST_HASH_SEED}
        check_numbers(self, {"block_size": 2, "num_blocks": 2, "hash_seed": 0, "other_hash_seed": 0}, seeds)
        if not self.algorithms or not set(self.algorithms) <= set(HASH_ALGORITHMS):
            raise ConfigError("algorithms", ",".join(self.algorithms), ", ".join(HASH_ALGORITHMS))
        if len(set(self.algorithms)) < len(self.algorithms):
            raise ConfigError("algorithms", ",".join(self.algorithms), "each once")
        if self.hash_seed == self.other_hash_seed:
            raise ConfigError("other_hash_seed", self.other_hash_seed, f"another than hash_seed, {self.hash_seed}")

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def image_offset(self) -> int:
        """Start of the block with two images: in the middle, so that there are blocks before and behind it."""
        return self.num_blocks // 2 * self.block_size


def run(session: LabSession, config: Config) -> LabReport:
    """Name one prompt in several processes, and in the target's engine, and compare."""
    _check_packages(config.algorithms)
    prompt, canary_ids = _prompt(session, config)
    task = NamingTask(prompt, config.block_size, config.page_size, config.algorithms, config.image_offset)
    engines = [(name, hash_cache(config.block_size)) for name in config.algorithms] + [(PAGES, radix_cache(config.page_size))]
    own_seed, other_seed = os.environ.get("PYTHONHASHSEED"), str(config.other_hash_seed)
    if own_seed == other_seed:
        other_seed = str(config.hash_seed)
    seeds = [None, None, str(config.hash_seed), str(config.hash_seed), str(config.other_hash_seed), own_seed, other_seed]
    session.expect(len(seeds) + len(engines))
    names = ask_workers(task, seeds)
    session.progress("names, in processes of their own", len(seeds))
    measurements = [*_compare_processes(config, names[:5]), *_compare_objects(config, names[2], names[3])]
    session.record(*measurements)
    cold = True
    routers = dict(zip((own_seed, other_seed), names[5:]))
    for name, cache in engines:
        found, started_cold = _compare_engine(session, name, cache, config, prompt, canary_ids, routers)
        measurements += found
        cold = cold and started_cold
    return LabReport(
        tuple(measurements),
        "cold" if cold else "uncontrolled",
        tuple(_findings(config, measurements)),
        _conclusion(measurements),
        # Not its value: with xxhash it is what keeps prepared collisions out.
        {"workload": workload_digest([[prompt]]), "has_hash_seed": own_seed is not None},
        (_chart(config, measurements),),
    )


def _check_packages(algorithms: Sequence[str]) -> None:
    for algorithm in algorithms:
        try:
            get_hash_function(algorithm)("")
        except MissingPackage as missing:
            raise TargetError(f"{algorithm}: {missing}; accepted: --set algorithms=sha256") from missing


def _prompt(session: LabSession, config: Config) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Random ids of the target's vocabulary, and a canary with a first token of its own."""
    probe = session.open_target(num_gpu_blocks=2)
    vocab_size, max_model_len = probe.info.vocab_size, probe.info.max_model_len
    probe.close()
    if 2 * config.block_size >= max_model_len:
        most = (max_model_len - 1) // 2
        raise ConfigError("block_size", config.block_size, f"at most {most} with this model: two blocks must fit")
    if config.num_tokens >= max_model_len:
        raise ConfigError("num_blocks", config.num_blocks, f"at most {(max_model_len - 1) // config.block_size} with this model")
    rng = random.Random(config.seed)
    return tuple(rng.randrange(vocab_size - 1) for _ in range(config.num_tokens)), (vocab_size - 1,) * 48


def _starts_alike(name: str, hash_seed: str | None, other: str | None) -> bool:
    """Whether two processes with these PYTHONHASHSEED start the chain alike: the rule, said again and not asked."""
    if name == PAGES:
        return True
    return hash_seed == other and (hash_seed is not None or not name.startswith("xxhash"))


def _in_common(config: Config, name: str, hash_seed: str | None, other: str | None) -> Prediction:
    unit = config.page_size if name == PAGES else config.block_size
    alike = _starts_alike(name, hash_seed, other)
    return Prediction(*theory.predict(theory.names_in_common, config.num_tokens, unit, int(alike)))


def _num_equal(names: Sequence[object], others: Sequence[object]) -> int:
    """Equal names at equal places; −1 when the lists are not of one length, which no law predicts."""
    return sum(one == other for one, other in zip(names, others)) if len(names) == len(others) else -1


def _compare_processes(config: Config, names: Sequence[BlockNames]) -> list[Measurement]:
    """Each algorithm's names in pairs of processes."""
    unset, unset_too, first, first_too, second = names
    seed, other = str(config.hash_seed), str(config.other_hash_seed)
    pairs = {
        "unset": (unset, unset_too, None, None),
        "same": (first, first_too, seed, seed),
        "two": (first, second, seed, other),
        "one": (first, unset, seed, None),
    }
    legend = (
        "PYTHONHASHSEED of the two processes. unset: in neither; same: set alike in both; two: set to two values; "
        "one: set in one, unset in the other"
    )
    found = []
    for name in (*config.algorithms, PAGES):
        for column, (one, another, its_seed, other_seed) in pairs.items():
            law = _in_common(config, name, its_seed, other_seed)
            equal = _num_equal(_names_of(one, name), _names_of(another, name))
            found.append(Measurement(column, "blocks", (equal,), _PROCESSES, name, law, note=legend, key=column == "unset"))
    return found


def _names_of(names: BlockNames, name: str) -> list[str]:
    return names.pages if name == PAGES else names.blocks[name]


def _compare_objects(config: Config, one: BlockNames, other: BlockNames) -> list[Measurement]:
    """One image twice in a block, in two processes whose chains start alike: one object in the first, one or two in the other."""
    whole = theory.predict(theory.full_blocks, config.num_tokens, config.block_size)
    before = theory.predict(theory.full_blocks, config.image_offset, config.block_size)
    found = []
    for name in config.algorithms:
        writes_values = name.endswith("_cbor")
        same, equal = (_num_equal(one.one_object[name], names[name]) for names in (other.one_object, other.two_objects))
        law = Prediction(*(whole if writes_values else before))
        found.append(Measurement("one object", "blocks", (same,), _IMAGES, name, Prediction(*whole)))
        found.append(Measurement("two objects", "blocks", (equal,), _IMAGES, name, law, key=not writes_values))
    return found


def _compare_engine(
    session: LabSession,
    name: str,
    cache: Cache,
    config: Config,
    prompt: Sequence[int],
    canary_ids: Sequence[int],
    routers: Mapping[str | None, BlockNames],
) -> tuple[list[Measurement], bool]:
    """The names in an engine's KV events beside those of routers, by their PYTHONHASHSEED; this process's own first."""
    fields = {**cache.engine_fields, "enable_kv_cache_events": True, "num_gpu_blocks": cache.blocks_for(len(prompt))}
    if name != PAGES:
        fields["prefix_caching_hash_algo"] = name
    target = session.open_target(**fields)
    try:
        cold = prove_cold(session, target, canary_ids)
        target.engine.take_kv_events()
        target.complete(prompt)
        published = _published(target)
    finally:
        target.close()
    session.progress(f"an engine's KV events, {name}")
    own_seed = next(iter(routers))
    found = []
    for column, (hash_seed, names) in zip(("own", "other"), routers.items()):
        law = _in_common(config, name, own_seed, hash_seed)
        short = [_event_name(name, digest) for digest in _names_of(names, name)]
        found.append(Measurement(column, "blocks", (_num_equal(short, published),), _ENGINE, name, law))
    session.record(*found)
    return found, cold


def _published(target: Target) -> list[int]:
    events = target.engine.take_kv_events()
    return [name for event in events if isinstance(event, BlockStored) for name in event.block_hashes]


def _event_name(name: str, digest: str) -> int:
    digest_bytes = bytes.fromhex(digest)
    return event_page_hash(PageHash(digest_bytes)) if name == PAGES else event_block_hash(BlockHash(digest_bytes))


def _value(measurements: Sequence[Measurement], group: str, row: str, name: str) -> int:
    return next(int(one.value) for one in measurements if (one.group, one.row, one.name) == (group, row, name))


def _findings(config: Config, measurements: Sequence[Measurement]) -> list[str]:
    total, found = config.num_blocks, []
    for name in config.algorithms:
        unset, one = (_value(measurements, _PROCESSES, name, column) for column in ("unset", "one"))
        found.append(
            f"{name}: two processes without PYTHONHASHSEED agree on {_agreement(unset, total)}; one that has it and one that has "
            f"not agree on {_agreement(one, total)}"
        )
    pickled = [name for name in config.algorithms if not name.endswith("_cbor")]
    for name in pickled:
        equal = _value(measurements, _IMAGES, name, "two objects")
        found.append(
            f"{name}: with the same image twice in block {config.image_offset // config.block_size}, {equal} of {total} names "
            "are the same whether its identifier is one Python object or two equal ones"
        )
    return found


def _agreement(num_equal: int, total: int) -> str:
    """What so many equal names say about the starts of two chains."""
    if num_equal < 0:
        return "nothing: they did not make equally many names"
    start = {0: "each has a start of its own", total: "both have the same start"}.get(num_equal, "which no start explains")
    return f"{num_equal} of {total} names ({start})"


def _conclusion(measurements: Sequence[Measurement]) -> str:
    outcome = outcome_line(measurements, "All names agree where the chains start alike, and none where they do not.")
    return (
        f"{outcome} An outer store of K/V, a second replica, or a router that names prefixes itself sees nothing but names: if "
        "they differ, every lookup misses, and no error says so. In production: use sha256_cbor for what leaves the process: it "
        "depends on values alone; set the same PYTHONHASHSEED on every replica and router, or on none of them; with the xxhash "
        "algorithms it must be set, and is then no secret that could keep prepared collisions out. A name that is equal on two "
        "machines is also one that a stranger can compute: keep salts for tenants that must not share."
    )


def _chart(config: Config, measurements: Sequence[Measurement]) -> Chart:
    columns = {"unset": "PYTHONHASHSEED unset", "same": "the same in both", "two": "two values", "one": "set in one"}
    groups = {
        title: [(name, _value(measurements, _PROCESSES, name, column)) for name in (*config.algorithms, PAGES)]
        for column, title in columns.items()
    }
    return bars_of("Names that two processes have in common, by their PYTHONHASHSEED", groups, unit="blocks")


_PROCESSES = "equal names in two processes"
_IMAGES = "equal names, one image twice in a block: one object in process A; in B it is"
_ENGINE = "an engine's KV events beside a router's names, by its PYTHONHASHSEED"

LAB = Lab(
    number=12,
    name="two-processes",
    question="Do independent processes name blocks alike?",
    config_type=Config,
    quick=Config(num_blocks=8),
    run=run,
)
