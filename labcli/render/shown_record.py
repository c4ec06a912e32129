"""A kept record as people read it again: which run it was, the report its run printed, and its charts."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from labcli.printable import printable_record
from labcli.render.charts_terminal import print_chart
from labcli.render.lab_report import print_lab_report
from labcli.render.record_charts import charts_of
from labcli.render.trimmed import Trimmed
from labcli.render.verdict import STATUS_STYLES, commit_words, when_words
from labcli.results_store import StoredRecord


def print_shown_record(stored: StoredRecord, *, with_charts: bool = True, console: Console | None = None) -> None:
    """Print it on stdout, or on the console given."""
    console = console or Console(highlight=False)
    record = printable_record(stored.record)
    line = Text(f"run {record.run_id[:8]} · {when_words(record, seconds=True)} UTC · ", style="dim")
    line.append(record.status, style=STATUS_STYLES[record.status])
    commit = commit_words(record)
    code = (
        "code outside of a checkout"
        if commit == "–"
        else f"commit {commit.rstrip('+')}{', with changes' if '+' in commit else ''}"
    )
    line.append(f" · {code} · machine {record.environment.get('machine') or 'unknown'}")
    console.print(Trimmed(line))
    if record.error:
        console.print(Trimmed(Text(record.error, style="red")))
    print_lab_report(record, stored.path, console)
    if with_charts:
        for chart in charts_of(record):
            console.print()
            print_chart(chart, console)
