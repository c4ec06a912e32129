"""`labcli bench`: benchmarks beside named peers.

    labcli bench cache
    labcli bench cache --against vllm --vllm-python ~/vllm/bin/python
    labcli bench prefix-caching --num-prompts 1 --repeat-count 50 --input-length-range 256:256
    labcli bench engine --against vllm --vllm-python ~/vllm/bin/python
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Optional, Sequence

import typer

from labcli.command_group import CommandGroup
from labcli.shared_options import CacheDir, NoSave, RecordAsJson, ResultsDir, VllmPython

_Compile = Annotated[
    Optional[bool],
    typer.Option(
        "--compile/--no-compile", help="Our kernels, and vLLM's torch.compile. [default: ours where it can be, vLLM eager]"
    ),
]

bench = typer.Typer(cls=CommandGroup, rich_markup_mode=None, help="Benchmarks beside named peers.")


@bench.callback()
def _bench() -> None:
    """Benchmarks beside named peers."""


@bench.command("cache")
def bench_cache(
    num_requests: Annotated[int, typer.Option(help="Prompts, one after the other.")] = 2_000,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of a prompt, on average; lengths differ by a tenth.")] = 2_000,
    shared_tokens: Annotated[int, typer.Option(help="Of them a system prompt.")] = 1_000,
    num_system_prompts: Annotated[int, typer.Option(help="Different system prompts.")] = 50,
    block_size: Annotated[int, typer.Option(help="Tokens in a block, and in a page.")] = 16,
    small_pool_blocks: Annotated[int, typer.Option(help="Blocks of the pool that evicts.")] = 1_024,
    algorithm: Annotated[str, typer.Option(help="sha256, sha256_cbor, xxhash or xxhash_cbor.")] = "sha256",
    trials: Annotated[int, typer.Option(help="Passes over all prompts.")] = 5,
    seed: Annotated[int, typer.Option(help="Decides the prompts.")] = 0,
    against: Annotated[Optional[str], typer.Option(metavar="PEER", help="vllm: its KVCacheManager in turns with ours.")] = None,
    vllm_python: VllmPython = None,
    results_dir: ResultsDir = "results",
    json_: RecordAsJson = False,
    no_save: NoSave = False,
) -> int:
    """Time the caches' bookkeeping: name, look up, allocate and free, without a model."""
    from labcli.cache_bench_run import CacheBenchRun
    from labcli.fault import UsageFault
    from labcli.results_store import ResultsStore
    from labs.benches.cache_cost import Config

    if against not in (None, "vllm"):
        raise UsageFault(f"--against is {against!r}", "vllm")
    if vllm_python is not None and against is None:
        raise UsageFault("--vllm-python means nothing without --against vllm", "--against vllm --vllm-python PATH")
    config = Config(
        num_requests, prompt_tokens, shared_tokens, num_system_prompts, block_size, small_pool_blocks, algorithm, trials, seed
    )
    store = None if no_save else ResultsStore(results_dir)
    finished = CacheBenchRun(config, store, against is not None, vllm_python).execute()
    if json_:
        from labcli.render.record_json import write_json

        write_json(finished.record)
    else:
        from labcli.render.cache_table import print_cache_result

        print_cache_result(finished)
    for missed in finished.record.missed:
        print(f"labcli: {missed.row}: {missed.value:,} hits, vLLM found {missed.predicted.value:,}", file=sys.stderr)
    return 1 if finished.record.missed else 0


_AGAINST = "A peer in turns with ours, repeatable: vllm, transformers (generate), transformers-batch (generate_batch)."


@bench.command("prefix-caching")
def bench_prefix_caching(
    num_prompts: Annotated[int, typer.Option(help="Different prompts.")],
    input_length_range: Annotated[str, typer.Option(metavar="MIN:MAX", help="Tokens of a prompt.")],
    dataset_path: Annotated[Optional[str], typer.Option(metavar="FILE", help="A ShareGPT JSON file. [default: random ids]")] = None,
    output_len: Annotated[int, typer.Option(help="Tokens of each output.")] = 10,
    repeat_count: Annotated[int, typer.Option(help="How often each prompt is sent.")] = 1,
    sort: Annotated[bool, typer.Option("--sort", help="Shortest first, in place of a shuffle.")] = False,
    prefix_len: Annotated[int, typer.Option(help="Tokens that all random prompts share.")] = 0,
    disable_detokenize: Annotated[bool, typer.Option("--disable-detokenize", help="Leave outputs as ids.")] = False,
    seed: Annotated[int, typer.Option(help="Decides the prompts, and random weights.")] = 0,
    enable_prefix_caching: Annotated[bool, typer.Option(help="Whether our engine, and vLLM, keep prefixes.")] = True,
    model: Annotated[str, typer.Option(help="smollm2, synthetic:<shape>, a folder or a hub id.")] = "smollm2",
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    block_size: Annotated[
        Optional[int], typer.Option(help="Tokens in a block. [default: 16; with --against vllm 32, as it takes multiples of 32 on a CPU]")
    ] = None,
    set_: Annotated[
        Optional[list[str]], typer.Option("--set", metavar="FIELD=VALUE", help="Any other field of the engine; repeatable.")
    ] = None,
    compile_: _Compile = None,
    trials: Annotated[int, typer.Option(help="How often everything is done.")] = 5,
    num_threads: Annotated[Optional[int], typer.Option(help="Of each engine on a CPU. [default: one a core]")] = None,
    against: Annotated[Optional[list[str]], typer.Option(metavar="PEER", help=_AGAINST)] = None,
    vllm_python: VllmPython = None,
    results_dir: ResultsDir = "results",
    cache_dir: CacheDir = None,
    json_: RecordAsJson = False,
    no_save: NoSave = False,
) -> int:
    """vLLM's prefix caching benchmark: repeated prompts, all at once, cold and warm apart, hits against the law."""
    from engine.config import EngineConfig
    from labs.benches.prefix_bench_prompts import PrefixBenchConfig

    config = PrefixBenchConfig(
        num_prompts, input_length_range, output_len, repeat_count, sort, prefix_len, dataset_path, seed
    )
    _check_file(dataset_path)
    engine_config = EngineConfig(
        model=model, dtype=dtype, device=device, seed=seed, compile=compile_,
        block_size=(32 if "vllm" in (against or ()) else 16) if block_size is None else block_size,
        enable_prefix_caching=enable_prefix_caching,
    ).replace(**_assigned(set_ or ()))  # fmt: skip
    peers = _peers(against or (), vllm_python)
    if peers:
        engine_config = engine_config.replace(device=_cpu_beside_peers(device))
        _check_shared_fields(_assigned(set_ or ()))

    from labcli.prefix_bench_run import PrefixBenchRun
    from labcli.results_store import ResultsStore

    _check_positive("--trials", trials)
    if num_threads is not None:
        _check_positive("--num-threads", num_threads)
    finished = PrefixBenchRun(
        config, engine_config, trials, None if no_save else ResultsStore(results_dir),
        detokenize=not disable_detokenize, num_threads=num_threads, against=peers, vllm_python=vllm_python, cache_dir=cache_dir,
    ).execute()  # fmt: skip
    if json_:
        from labcli.render.record_json import write_json

        write_json(finished.record)
    else:
        from labcli.render.prefix_table import print_prefix_result

        print_prefix_result(finished)
    return _exit_code(finished.record)


@bench.command("engine")
def bench_engine(
    model: Annotated[str, typer.Option(help="smollm2, a folder or a hub id.")] = "smollm2",
    dtype: Annotated[str, typer.Option(help="auto, bfloat16 or float32; the same for all.")] = "bfloat16",
    block_size: Annotated[int, typer.Option(help="Tokens in a block; vLLM on a CPU takes multiples of 32.")] = 32,
    compile_: _Compile = None,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of the cold prompt.")] = 2_200,
    cached_tokens: Annotated[int, typer.Option(help="Of them in the cache for the warm one.")] = 1_984,
    trials: Annotated[int, typer.Option(help="How often everything is done.")] = 5,
    num_threads: Annotated[int, typer.Option(help="Of each engine.")] = 2,
    memory_requests: Annotated[int, typer.Option(help="Requests to watch the memory over, in rounds of 50; 0: none.")] = 0,
    against: Annotated[Optional[list[str]], typer.Option(metavar="PEER", help="vllm: in turns with ours.")] = None,
    vllm_python: VllmPython = None,
    seed: Annotated[int, typer.Option(help="Decides the prompts.")] = 0,
    results_dir: ResultsDir = "results",
    cache_dir: CacheDir = None,
    json_: RecordAsJson = False,
    no_save: NoSave = False,
) -> int:
    """Time the engine on a CPU: cold and warm prefill, repeated prompts, many requests decoding."""
    from engine.config import EngineConfig
    from labcli.fault import UsageFault
    from labs.benches.engine_bench import Config

    config = Config(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, trials=trials, seed=seed)
    engine_config = EngineConfig(
        model=model, dtype=dtype, device="cpu", block_size=block_size, compile=compile_, max_num_seqs=128
    )
    peers = _peers(against or (), vllm_python)
    if set(peers) - {"vllm"}:
        wrong = next(name for name in peers if name != "vllm")
        raise UsageFault(f"--against is {wrong!r}", "vllm; transformers with labcli bench prefix-caching")
    _check_positive("--num-threads", num_threads)
    if memory_requests < 0 or 0 < memory_requests < 100:
        raise UsageFault(f"--memory-requests is {memory_requests}", "0, or a whole number from 100")

    from labcli.engine_bench_run import EngineBenchRun
    from labcli.results_store import ResultsStore

    finished = EngineBenchRun(
        config, engine_config, num_threads, None if no_save else ResultsStore(results_dir),
        against=peers, vllm_python=vllm_python, memory_requests=memory_requests, cache_dir=cache_dir,
    ).execute()  # fmt: skip
    if json_:
        from labcli.render.record_json import write_json

        write_json(finished.record)
    else:
        from labcli.render.engine_table import print_engine_result

        print_engine_result(finished)
    return _exit_code(finished.record)


def _peers(against: Sequence[str], vllm_python: str | None) -> tuple[str, ...]:
    """The peers asked for, each once."""
    from labcli.fault import UsageFault
    from labs.peers.open_engine import PEERS

    for name in against:
        if name not in PEERS:
            raise UsageFault(f"--against is {name!r}", ", ".join(PEERS))
    if vllm_python is not None and "vllm" not in against:
        raise UsageFault("--vllm-python means nothing without --against vllm", "--against vllm --vllm-python PATH")
    return tuple(dict.fromkeys(against))


def _cpu_beside_peers(device: str) -> str:
    """Peers are timed where all of them run."""
    from labcli.fault import UsageFault

    if device not in ("auto", "cpu"):
        raise UsageFault(f"--device is {device!r} with --against", "--device cpu: engines are compared on the processor")
    return "cpu"


def _check_shared_fields(assigned: dict[str, Any]) -> None:
    """A field that only ours would follow must not stand behind a ratio."""
    from labcli.fault import UsageFault

    shared = {"max_model_len", "max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks", "block_size", "prefix_cache", "page_size"}
    for name in assigned:
        if name not in shared:
            raise UsageFault(f"--set {name} with --against would be followed by our engine alone", ", ".join(sorted(shared)))


def _assigned(assignments: Sequence[str]) -> dict[str, Any]:
    """Fields of EngineConfig from "field=value" texts."""
    from engine.config import EngineConfig
    from labcli.lab_config import parse_assignments

    return parse_assignments(EngineConfig, assignments, "the engine")


def _check_file(path: str | None) -> None:
    """Seconds of loading a model are not spent before it is known that there is nothing to send."""
    from labs.benches.prefix_bench_prompts import check_dataset

    if path is not None:
        check_dataset(path)


def _check_positive(option: str, value: int) -> None:
    from labcli.fault import UsageFault

    if value < 1:
        raise UsageFault(f"{option} is {value}", "a whole number from 1")


def _exit_code(record: Any) -> int:
    for missed in record.missed:
        wrong = next(one for one in missed.samples if one != missed.predicted.value)
        print(f"labcli: {missed.row}, {missed.group}: {wrong:,} hits, the law says {missed.predicted.value:,}", file=sys.stderr)
    return 1 if record.missed else 0
