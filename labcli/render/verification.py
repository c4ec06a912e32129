"""A verification as people read it, and as programs do."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from rich.console import Console
from rich.text import Text

from labcli.render.plain_table import plain_table
from labs.conformance.live_verification import LiveVerification
from labs.conformance.verification import Verification

_LIVE_NAMES = {"manager": "KVCacheManager", "scheduler": "Scheduler"}
_SOURCES = {
    "manager": "vLLM 0.32.0, KVCacheManager",
    "scheduler": "vLLM 0.32.0, Scheduler",
    "radix": "SGLang 0.5.23, RadixCache",
}


def print_verification(verification: Verification, seconds: float, console: Console | None = None) -> None:
    """One line a kind, one for all, and the verdict."""
    console = console or Console(highlight=False)
    table = plain_table("recorded from", "scenarios", "requests", "steps", "differ", names=("recorded from",))
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


def print_live_verification(live: LiveVerification, version: str, *, is_whole: bool, console: Console | None = None) -> None:
    """One line a kind and pool, the seed, and the verdict; is_whole: the run came to its end."""
    console = console or Console(highlight=False)
    name = f"vLLM {version}"
    table = plain_table(name, "pool blocks", "scenarios", "requests", "steps", "differ", names=(name,))
    parts = live.parts
    for part in parts:
        verified = part.verified
        differ = Text(f"{len(verified.differences):,}", style="bold red" if verified.differences else "green")
        counts = (part.num_blocks, verified.num_scenarios, verified.num_requests, verified.num_steps)
        table.add_row(_LIVE_NAMES[verified.kind], *(f"{count:,}" for count in counts), differ)
    console.print(table)
    requests = sum(part.verified.num_requests for part in parts)
    steps = sum(part.verified.num_steps for part in parts)
    done = sum(part.verified.num_scenarios for part in parts)
    differ = len(live.differences)
    console.print()
    verdict = f"{differ:,} scenarios differ" if differ else "0 differing requests, 0 differing steps"
    text = f"{verdict} of {requests:,} random requests in {steps:,} steps (--seed {live.seed})"
    if not is_whole:
        text += f"; broken off after {done:,} of {live.num_scenarios:,} scenarios"
    console.print(Text(text, style="bold red" if differ or not is_whole else "bold green"), soft_wrap=True)


def write_live_json(live: LiveVerification, version: str, error: str | None) -> None:
    """The same on stdout, as one JSON object; error: what the run broke off with, None when it came to its end."""
    parts = [{"num_blocks": part.num_blocks, **asdict(part.verified)} for part in live.parts]
    content = {"vllm": version, "seed": live.seed, "error": error, "parts": parts}
    json.dump(content, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def write_verification_json(verification: Verification) -> None:
    """The same on stdout, as one JSON object."""
    json.dump({"parts": [asdict(part) for part in verification.parts]}, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
