"""The prefix caching bench as people read it: the script's own lines, then each pass with hits, times, rates, ratios."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from labcli.prefix_bench_run import FinishedPrefixBench
from labcli.render.plain_table import plain_table
from labcli.render.quantity import format_seconds
from labs.benches.prefix_bench import PASSES, PrefixBench
from labs.measure import Spread, percentiles

PERCENTS = (50, 90, 99)


def print_prefix_result(finished: FinishedPrefixBench, console: Console | None = None) -> None:
    """Print all that was measured, and the record's path."""
    console = console or Console(highlight=False)
    bench, config, lengths = finished.bench, finished.config, finished.lengths
    ours, *peers = bench.engines
    # As vLLM's script prints it, so that what reads its output reads this.
    source = "dataset" if config.dataset_path is not None else "random prompts"
    console.print(f"Start to sample {config.num_prompts} prompts from {source}")
    console.print(f"Sampled {finished.num_sampled} requests.")
    console.print(f"Average input length: {lengths.average}")
    console.print(f"P50 input length: {lengths.median}")
    console.print(f"Min Prompt Length: {lengths.minimum}")
    console.print(f"Max Prompt Length: {lengths.maximum}")
    console.print("Testing filtered requests")
    console.print("------start generating------")
    first = bench.of(ours.name, PASSES[0])
    assert first is not None
    console.print(f"cost time {first.seconds[0]}")
    console.print()
    console.print(Text(f"{finished.engine_config.model}, {finished.dtype}, blocks of {finished.engine_config.unit_size}; {finished.computes_with}"), soft_wrap=True)
    console.print(
        f"{len(bench.requests):,} requests, {bench.num_prompt_tokens:,} prompt tokens, {config.output_len} outputs each; "
        f"{len(first.served)} trial{'' if len(first.served) == 1 else 's'}; cache before the first pass: {finished.cache_state}",
        soft_wrap=True,
    )
    console.print()
    served = [times for times in bench.passes if times.served]
    table = plain_table("pass", "engine", "time", "hits", names=("pass", "engine"))
    for times in served:
        hits = f"{times.hits[0]:,} ({times.hits[0] / bench.num_prompt_tokens:.1%})" if times.hits else "not said"
        table.add_row(_short(times.name), times.engine, format_seconds(times.seconds), hits)
    console.print(table)
    console.print()
    table = plain_table("pass", "engine", "requests/s", "prompt tokens/s", "outputs/s", names=("pass", "engine"))
    for times in served:
        requests_s, prompt_s, output_s = bench.rates(times)
        table.add_row(_short(times.name), times.engine, f"{requests_s:,.1f}", f"{prompt_s:,.0f}", f"{output_s:,.0f}")
    console.print(table)
    console.print()
    console.print("all requests are sent at once: a first token (TTFT) waits for those before it")
    table = plain_table("pass", "engine", "what", *(f"p{percent}" for percent in PERCENTS), names=("pass", "engine", "what"))
    for times in served:
        for what, samples in (
            ("cold TTFT", times.ttfts_s(False)),
            ("warm TTFT", times.ttfts_s(True)),
            ("token gap", times.token_gaps_s),
        ):
            if samples:
                cuts = percentiles(samples, PERCENTS)
                table.add_row(_short(times.name), times.engine, what, *(format_seconds([cuts[one]]) for one in PERCENTS))
    console.print(table)
    console.print()
    for name, prediction in finished.predicted.items():
        console.print(f"{name}: the law says {prediction.value:,} hits = {prediction.law}")
    for times in served:
        ratio = bench.ratio(times.engine, times.name) if times.engine != ours.name else None
        if ratio is not None:
            console.print(
                f"{times.name}: {ratio.value:.2f} times as fast as {times.engine} {_version(bench, times.engine)} "
                f"[{ratio.low:.2f}–{ratio.high:.2f}]", soft_wrap=True,
            )  # fmt: skip
    compiled = f" (of it {finished.build_s:.1f} s compiling, once)" if finished.build_s else ""
    console.print(f"ready after: {', '.join(f'{one.name} {one.version} {one.start_s:.1f} s' for one in bench.engines)}{compiled}", soft_wrap=True)
    for peer in peers:
        differing = bench.differing_outputs(peer.name)
        if differing:
            number, at = differing[0]
            console.print(
                f"output tokens: {len(differing):,} of {len(bench.requests):,} requests differ from {peer.name}'s, the first in "
                f"request {number} from output {at} on; if they are equal with --dtype float32, rounding decided between two logits",
                soft_wrap=True,
            )
        else:
            console.print(f"output tokens: equal to {peer.name}'s in all {len(bench.requests):,} requests")
    notes = [*finished.notes, *(note for one in served if (note := Spread.of(one.seconds).stability_note))]
    for note in dict.fromkeys(notes):
        console.print(Text(f"note: {note}"), soft_wrap=True)
    if finished.path is not None:
        console.print()
        console.print(Text(f"record: {finished.path}"), soft_wrap=True)


def _short(name: str) -> str:
    return name.removesuffix(" pass")


def _version(bench: PrefixBench, name: str) -> str:
    return next(engine.version for engine in bench.engines if engine.name == name)
