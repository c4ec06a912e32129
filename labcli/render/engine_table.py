"""The engine bench as people read it: each workload's times and ratios, start-up, equal outputs, memory."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from labcli.engine_bench_run import FinishedEngineBench
from labcli.render.plain_table import plain_table
from labcli.render.quantity import format_seconds
from labs.benches.engine_bench import WORKLOADS

_RATES = {"cold": "prompt tokens", "warm": "prompt tokens", "repeat": "outputs", "decode": "outputs"}


def print_engine_result(finished: FinishedEngineBench, console: Console | None = None) -> None:
    """Print all that was measured, and the record's path."""
    console = console or Console(highlight=False)
    bench, config, settings = finished.bench, finished.bench.config, finished.settings
    ours, *peers = bench.engines
    beside = f"; vLLM {'with torch.compile' if settings['compile'] else 'eager'}" if peers else ""
    console.print(
        Text(
            f"{finished.engine_config.model}, {settings['dtype']}, {settings['num_threads']} threads, blocks of "
            f"{settings['block_size']}, {config.trials} trials in turns; ours: {finished.computes_with}{beside}"
        ),
        soft_wrap=True,
    )
    console.print(
        f"cold: {config.prompt_tokens:,} tokens · warm: {config.cached_tokens:,} of them cached · repeat: {config.repeat_count} × "
        f"{config.repeat_tokens} tokens, {config.repeat_outputs} outputs · decode: {config.decode_requests} requests, "
        f"{config.decode_outputs} outputs after {config.decode_tokens} tokens",
        soft_wrap=True,
    )
    console.print()
    table = plain_table("workload", "engine", "time", "tokens/s", "of", "hits", names=("workload", "engine", "of"))
    for workload in WORKLOADS:
        for engine in bench.engines:
            times = bench.of(engine.name, workload)
            hits = times.num_cached_tokens[0]
            table.add_row(
                workload if engine is ours else "", engine.name, format_seconds(times.seconds), f"{bench.tokens_per_s(times):,.0f}",
                _RATES[workload], "not said" if hits is None else f"{hits:,}",
            )  # fmt: skip
    console.print(table)
    console.print()
    for peer in peers:
        for workload in WORKLOADS:
            ratio = bench.ratio(peer.name, workload)
            console.print(f"{workload}: {ratio.value:.2f} times as fast as {peer.name} [{ratio.low:.2f}–{ratio.high:.2f}]")
    console.print()
    starts = ", ".join(f"{engine.name} {engine.version} {engine.start_s:.1f} s" for engine in bench.engines)
    compiled = f" (of ours {finished.build_s:.1f} s compiling, once)" if finished.build_s else ""
    console.print(f"ready after: {starts}{compiled}", soft_wrap=True)
    for peer in peers:
        same, total = bench.same_outputs(peer.name)
        console.print(f"output tokens: {same:,} of {total:,} requests equal to {peer.name}'s")
    if finished.prefill_memory is not None:
        console.print(
            f"resident memory above the ready engine (imports, weights, pool): {finished.prefill_memory.peak_bytes / 1e6:,.0f} MB "
            f"at the highest of its first prefill of {config.prompt_tokens:,} tokens",
            soft_wrap=True,
        )
    if finished.request_memory is not None:
        console.print(f"after {finished.num_memory_requests:,} more requests: {finished.request_memory.kept_bytes / 1e6:+,.1f} MB")
    if finished.path is not None:
        console.print()
        console.print(Text(f"record: {finished.path}"), soft_wrap=True)
