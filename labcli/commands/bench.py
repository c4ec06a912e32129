"""`labcli bench`: benchmarks beside named peers.

    labcli bench cache
    labcli bench cache --against vllm --vllm-python ~/vllm/bin/python
"""

from __future__ import annotations

import sys
from typing import Annotated, Optional

import typer

from labcli.command_group import CommandGroup

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
    vllm_python: Annotated[Optional[str], typer.Option(metavar="PATH", help="A Python that has vLLM. [default: this one]")] = None,
    results_dir: Annotated[
        str, typer.Option(envvar="LABCLI_RESULTS_DIR", metavar="FOLDER", help="Where records are kept.")
    ] = "results",
    json_: Annotated[bool, typer.Option("--json", help="Print the record, and nothing else, on stdout.")] = False,
    no_save: Annotated[bool, typer.Option("--no-save", help="Keep no record.")] = False,
) -> int:
    """Time the caches' bookkeeping: name, look up, allocate and free, without a model."""
    from labcli.bench_run import CacheBenchRun
    from labcli.fault import UsageFault
    from labcli.results_store import ResultsStore
    from labs.cache_cost import Config

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
