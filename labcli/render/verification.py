"""A verification as people read it, and as programs do."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labs.conformance.verification import Verification

_SOURCES = {
    "manager": "vLLM 0.32.0, KVCacheManager",
    "scheduler": "vLLM 0.32.0, Scheduler",
    "radix": "SGLang 0.5.23, RadixCache",
}


def print_verification(verification: Verification, seconds: float, console: Console | None = None) -> None:
    """One line a kind, one for all, and the verdict."""
    console = console or Console(highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("recorded from", no_wrap=True)
    for title in ("scenarios", "requests", "steps", "differ"):
        table.add_column(title, justify="right", no_wrap=True)
    for part in verification.parts:
        differ = Text(f"{len(part.differences):,}", style="bold red" if part.differences else "green")
        counts = (part.num_scenarios, part.num_requests, part.num_steps)
        table.add_row(_SOURCES[part.kind], *(f"{count:,}" for count in counts), differ)
    console.print(table)
    total = sum(part.num_scenarios for part in verification.parts)
    differ = len(verification.differences)
    verdict = f"{differ:,} of {total:,} scenarios differ" if differ else f"0 differences in {total:,} scenarios"
    console.print()
    console.print(Text(f"{verdict} ({seconds:.1f} s)", style="bold red" if differ else "bold green"))


def write_verification_json(verification: Verification) -> None:
    """The same on stdout, as one JSON object."""
    json.dump({"parts": [asdict(part) for part in verification.parts]}, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
