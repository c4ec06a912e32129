"""The costs of the block hash as a table, one row an algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labcli.render.quantity import format_seconds
from labs.hash_cost import Config, HashCost


def print_hash_table(costs: Sequence[HashCost], config: Config, path: Path | None, console: Console | None = None) -> None:
    """Print what was hashed, the table, and the record's path."""
    console = console or Console(highlight=False)
    console.print(
        f"{config.num_blocks:,} blocks of {config.block_size:,} tokens in one chain, {config.trials} trials; "
        "per block, per token and throughput from the best"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("algorithm", no_wrap=True)
    for title in ("best", "median", "spread", "ns/block", "ns/token", "M tokens/s"):
        table.add_column(title, justify="right", no_wrap=True)
    for cost in costs:
        table.add_row(
            cost.algorithm,
            format_seconds([cost.best_s]),
            format_seconds([cost.median_s]),
            f"{cost.spread:.0%}",
            f"{cost.ns_per_block:,.0f}",
            f"{cost.ns_per_token:,.1f}",
            f"{cost.tokens_per_s / 1e6:,.1f}",
        )
    console.print()
    console.print(table)
    if path is not None:
        console.print()
        console.print(Text(f"record: {path}"), soft_wrap=True)
