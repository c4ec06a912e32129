"""The hash bench as people read it: costs, where they go, growth, vLLM beside us, one prompt; or vLLM's own lines."""

from __future__ import annotations

import statistics
import sys
from typing import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labcli.hash_run import HashResult
from labcli.render.plain_table import plain_table
from labcli.render.quantity import format_seconds
from labs.benches.hash_comparison import HashComparison
from labs.benches.hash_cost import HashCost, HashGrowth
from labs.benches.prompt_cost import PromptCost
from labs.measure import Ratio


def print_hash_result(result: HashResult, console: Console | None = None) -> None:
    """Print all that was measured, notes on it, and the record's path."""
    console = console or Console(highlight=False)
    if result.prompt is not None:
        _print_prompt(console, result.prompt)
    if result.costs:
        first = result.costs[0]
        console.print(
            f"{_count(first.num_blocks, 'block')} of {_count(first.block_size, 'token')} in one chain, "
            f"{_count(len(first.whole_s), 'trial')}; per block, per token and throughput from the best"
        )
        console.print()
        console.print(_cost_table(result.costs))
        console.print()
        console.print("Where it goes, ns per block, and the same for blocks that are named by one call each")
        console.print(_split_table(result.costs))
    if result.growth:
        console.print()
        lengths = result.growth[0].num_tokens
        console.print(f"Growth with length, whole prompts of {lengths[0]:,} to {lengths[-1]:,} tokens, a line through the medians")
        console.print(_growth_table(result.growth))
    if result.comparisons:
        console.print()
        console.print(f"Beside vLLM {result.peer_version}, the same blocks in turns: its ns per block, and how many times as fast")
        console.print("labcli is, by medians [95 %]; last, how many times as fast it would be if serialising cost nothing")
        console.print(_comparison_table(result.comparisons))
    if result.notes:
        console.print()
        for note in result.notes:
            console.print(Text(f"note: {note}"))
    if result.path is not None:
        console.print()
        console.print(Text(f"record: {result.path}"), soft_wrap=True)


def print_vllm_lines(result: HashResult) -> None:
    """The lines that vLLM's benchmark_prefix_block_hash.py prints, with our times; everything else goes to stderr."""
    config = result.config
    print(f"Benchmarking {len(config.algorithms)} algorithms on {config.num_blocks} blocks (block size={config.block_size}).")
    for cost in result.costs:
        average_s = statistics.fmean(cost.whole_s)
        print(
            f"{cost.algorithm:14s} avg: {average_s:.6f}s  best: {cost.best_s:.6f}s  "
            f"throughput: {cost.tokens_per_s / 1e6:.2f}M tokens/s"
        )
    for comparison in result.comparisons:
        print(f"labcli: {comparison.cost.algorithm}: {_ratio(comparison.whole_ratio)} times as fast as vLLM", file=sys.stderr)
    for note in result.notes:
        print(f"labcli: {note}", file=sys.stderr)
    if result.path is not None:
        print(f"labcli: record: {result.path}", file=sys.stderr)


def _table(*titles: str) -> Table:
    return plain_table(*titles, names=titles[:1])


def _cost_table(costs: Sequence[HashCost]) -> Table:
    table = _table("algorithm", "best", "median", "spread", "ns/block", "ns/token", "M tokens/s")
    for cost in costs:
        table.add_row(
            cost.algorithm,
            format_seconds([cost.best_s]),
            format_seconds([cost.spread.median]),
            f"{cost.spread.relative:.0%}",
            f"{cost.ns_per_block:,.0f}",
            f"{cost.ns_per_token:,.1f}",
            f"{cost.tokens_per_s / 1e6:,.1f}",
        )
    return table


def _split_table(costs: Sequence[HashCost]) -> Table:
    table = _table("algorithm", "serialising", "digest alone", "together", "digest", "one block a call")
    for cost in costs:
        table.add_row(
            cost.algorithm,
            f"{cost.serialise_ns_per_block:,.0f}",
            f"{cost.digest_ns_per_block:,.0f}",
            f"{cost.ns_per_block:,.0f}",
            f"{cost.digest_ns_per_block / cost.ns_per_block:.0%}",
            f"{cost.append_ns_per_block:,.0f}",
        )
    return table


def _growth_table(growth: Sequence[HashGrowth]) -> Table:
    table = _table("algorithm", "ns/token", "R²", "time ~ L^", "longest")
    for one in growth:
        table.add_row(
            one.algorithm,
            f"{one.ns_per_token:,.1f}",
            f"{one.r_squared:.4f}",
            f"{one.exponent:.2f}",
            format_seconds([one.medians_s[-1]]),
        )
    return table


def _comparison_table(comparisons: Sequence[HashComparison]) -> Table:
    table = _table("algorithm", "equal names", "vLLM", "whole prompt", "one block a call", "digest")
    for one in comparisons:
        equal = one.num_equal_names == one.cost.num_blocks
        table.add_row(
            one.cost.algorithm,
            Text("all" if equal else f"{one.num_equal_names:,} of {one.cost.num_blocks:,}", style="green" if equal else "bold red"),
            f"{one.peer_ns_per_block:,.0f}",
            _ratio(one.whole_ratio),
            _ratio(one.append_ratio),
            f"{one.floor_ratio.value:.1f}",
        )
    return table


def _print_prompt(console: Console, prompt: PromptCost) -> None:
    console.print(
        f"{prompt.kind}: {_count(prompt.num_tokens, 'token')} = {_count(prompt.num_blocks, 'block')} of {prompt.block_size:,}, "
        f"named, and {_count(prompt.num_unnamed, 'token')} in no full block, unnamed"
    )
    prefill_s = prompt.prefill.best_s
    table = _table("of this prompt", "time", "of tokenising", "of prefill")
    for cost in prompt.hashing:
        of_tokenising = f"{cost.best_s / min(prompt.tokenise_s):.1%}" if prompt.tokenise_s else ""
        table.add_row(f"hashing, {cost.algorithm}", format_seconds([cost.best_s]), of_tokenising, f"{cost.best_s / prefill_s:.2%}")
    if prompt.tokenise_s:
        best_s = min(prompt.tokenise_s)
        table.add_row("tokenising", format_seconds([best_s]), "", f"{best_s / prefill_s:.2%}")
    table.add_row("prefill", format_seconds([prefill_s]), "", "")
    console.print(table)
    console.print(Text(f"prefill: {prompt.prefill.basis}", style="dim"))
    console.print()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.value:.2f} [{ratio.low:.2f}–{ratio.high:.2f}]"
