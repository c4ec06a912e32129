"""Records as a list, two lines each, so that 80 columns hold them; and as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from labcli.render.verdict import STATUS_STYLES, commit_words, lab_words, predictions_met, when_words
from labcli.results_store import StoredRecord
from labcli.target_facts import TargetFacts


def print_record_list(stored: Sequence[StoredRecord], num_more: int, console: Console | None = None) -> None:
    """Newest first. num_more: records that are not shown."""
    console = console or Console(highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run\nstarted, UTC", no_wrap=True)
    table.add_column("lab\ntarget", overflow="fold")
    table.add_column("status\ncache", no_wrap=True)
    table.add_column("met\ncode", justify="right", no_wrap=True)
    for one in stored:
        record = one.record
        table.add_row(
            Text(f"{record.run_id[:8]}\n") + Text(when_words(record), style="dim"),
            Text(f"{lab_words(record)}\n") + Text(TargetFacts.of(record).words, style="dim"),
            Text(f"{record.status}\n", style=STATUS_STYLES[record.status]) + Text(record.cache_state or "–", style="dim"),
            Text(f"{predictions_met(record)}\n") + Text(commit_words(record), style="dim"),
        )
    console.print(table)
    if num_more:
        console.print()
        console.print(
            f"{num_more:,} older record{'' if num_more == 1 else 's'} not shown; --limit {num_more + len(stored)} shows all"
        )


def write_list_json(stored: Sequence[StoredRecord]) -> None:
    """The same on stdout, as a JSON list."""
    json.dump([_summary(one) for one in stored], sys.stdout, indent=2)
    sys.stdout.write("\n")


def _summary(one: StoredRecord) -> dict[str, Any]:
    record, facts = one.record, TargetFacts.of(one.record)
    return {
        "run_id": record.run_id,
        "started_at": record.started_at,
        "lab": {"number": record.lab["number"], "name": record.lab["name"]},
        "target": {"kind": facts.kind, "gpu": facts.gpu, "model": facts.model, "dtype": facts.dtype, "device": facts.device},
        "status": record.status,
        "predictions": {"met": record.num_predictions - len(record.missed), "all": record.num_predictions},
        "cache_state": record.cache_state,
        "commit": record.environment.get("commit"),
        "dirty": record.environment.get("dirty"),
        "path": str(one.path),
    }
