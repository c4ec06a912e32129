"""The cache bench as people read it: throughput of each cache in each pool, ratios, memory, lookups."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from labcli.cache_bench_run import FinishedCacheBench
from labcli.render.plain_table import plain_table
from labcli.render.quantity import format_seconds


def print_cache_result(finished: FinishedCacheBench, console: Console | None = None) -> None:
    """Print all that was measured, notes on it, and the record's path."""
    console = console or Console(highlight=False)
    bench, config = finished.bench, finished.bench.config
    console.print(
        f"{config.num_requests:,} prompts of about {config.prompt_tokens:,} tokens, one at a time, blocks of {config.block_size}, "
        f"{config.algorithm}, {config.trials} passes: named, looked up, allocated, freed"
    )
    console.print()
    table = plain_table("cache", "pool", "M tokens/s", "one pass", "hits", names=("cache", "pool"))
    for cost in bench.costs:
        hits = f"{cost.hits[0] / cost.num_tokens:.1%}"
        table.add_row(cost.prefix_cache, cost.pool, f"{cost.tokens_per_s / 1e6:.2f}", format_seconds(cost.seconds), hits)
    console.print(table)
    for pool in bench.pools:
        ratio = bench.ratio(pool)
        ours, theirs = bench.cost("hash", pool), bench.cost("vllm", pool)
        if ratio is not None and ours is not None and theirs is not None:
            same = "the same hits" if set(ours.hits) == set(theirs.hits) else "OTHER HITS"
            console.print(
                f"hash, {pool}: {ratio.value:.2f} times as fast as vLLM {bench.peer.version} "
                f"[{ratio.low:.2f}–{ratio.high:.2f}], {same}"
            )
    console.print()
    table = plain_table("cache", "bytes a block", "lookup", "of tokens", "time ~ L^", names=("cache",))
    for lookup in finished.lookups:
        length, seconds = lookup.longest
        memory = f"{finished.memory[lookup.prefix_cache]:,.0f}"
        table.add_row(lookup.prefix_cache, memory, format_seconds([seconds]), f"{length:,}", f"{lookup.exponent:.2f}")
    console.print(table)
    if finished.notes:
        console.print()
        for note in finished.notes:
            console.print(Text(f"note: {note}"))
    if finished.path is not None:
        console.print()
        console.print(Text(f"record: {finished.path}"), soft_wrap=True)
