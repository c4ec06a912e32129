"""Records as a list, two lines each, so that 80 columns hold them, more lines where there is less room; and as JSON."""

from __future__ import annotations

import json
from typing import Any, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labcli.printable import printable_record
from labcli.record import ResultRecord
from labcli.render.trimmed import Trimmed
from labcli.render.verdict import STATUS_STYLES, commit_words, lab_words, predictions_met, when_words
from labcli.results_store import StoredRecord
from labcli.target_facts import TargetFacts
from labcli.utf8_output import write_utf8

_TABLE_WIDTH = 70  # columns


def print_record_list(stored: Sequence[StoredRecord], num_more: int, console: Console | None = None) -> None:
    """Newest first. num_more: records that are not shown."""
    console = console or Console(highlight=False)
    records = [printable_record(one.record) for one in stored]
    if console.width < _TABLE_WIDTH:
        for record in records:
            console.print(Text(f"{record.run_id[:8]}  {when_words(record)}"))
            console.print(Trimmed(Padding(_lines(record), (0, 0, 0, 2))))
    else:
        console.print(Trimmed(_table(records)))
    if num_more:
        console.print()
        older = f"{num_more:,} older record{'' if num_more == 1 else 's'} not shown"
        console.print(Trimmed(Text(f"{older}; --limit {num_more + len(stored)} shows all")))


def _table(records: Sequence[ResultRecord]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run\nstarted, UTC", no_wrap=True)
    table.add_column("lab\ntarget", overflow="fold")
    table.add_column("status\ncache", no_wrap=True)
    table.add_column("met\ncode", justify="right", no_wrap=True)
    for record in records:
        table.add_row(
            Text(f"{record.run_id[:8]}\n") + Text(when_words(record), style="dim"),
            Text(f"{lab_words(record)}\n") + Text(TargetFacts.of(record).words, style="dim"),
            Text(f"{record.status}\n", style=STATUS_STYLES[record.status]) + Text(record.cache_state or "–", style="dim"),
            Text(f"{predictions_met(record)}\n") + Text(commit_words(record), style="dim"),
        )
    return table


def _lines(record: ResultRecord) -> Text:
    """The same where columns would be too narrow: what was run, on what, and how it ended."""
    met = f"{predictions_met(record)} met" if record.num_predictions else "no predictions"
    facts = [record.cache_state, met, commit_words(record)]
    text = Text(f"{lab_words(record)}\n").append(f"{TargetFacts.of(record).words}\n", style="dim")
    return text.append(record.status, style=STATUS_STYLES[record.status]).append(
        "".join(f" · {fact}" for fact in facts if fact), style="dim"
    )


def write_list_json(stored: Sequence[StoredRecord]) -> None:
    """The same on stdout, as a JSON list."""
    write_utf8(json.dumps([_summary(one) for one in stored], indent=2) + "\n")


def _summary(one: StoredRecord) -> dict[str, Any]:
    record, facts = one.record, TargetFacts.of(one.record)
    return {
        "run_id": record.run_id,
        "started_at": record.started_at,
        "lab": {"number": record.lab["number"], "name": record.lab["name"]},
        "target": {
            "kind": facts.kind, "gpu": facts.gpu, "model": facts.model, "dtype": facts.dtype, "device": facts.device,
            "version": facts.version, "address": facts.address,
        },
        "status": record.status,
        "predictions": {"met": record.num_predictions - len(record.missed), "all": record.num_predictions},
        "cache_state": record.cache_state,
        "commit": record.environment.get("commit"),
        "dirty": record.environment.get("dirty"),
        "path": str(one.path),
    }
