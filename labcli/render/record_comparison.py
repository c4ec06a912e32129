"""A comparison of two records as people read it, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any, Mapping, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labcli.printable import printable_record
from labcli.record import ResultRecord, json_ready
from labcli.record_comparison import Change, MeasuredChange, RecordComparison
from labcli.render.quantity import format_samples
from labcli.render.trimmed import Trimmed
from labcli.render.verdict import commit_words, lab_words, verdict_words, when_words
from labcli.results_store import StoredRecord
from labcli.target_facts import TargetFacts
from labcli.utf8_output import write_utf8

_STYLES = {"equal": "green", "changed": "bold yellow", "not significant": "", "cannot tell": "dim", "not compared": "dim"}
_MOST_SOURCES = 8  # file names told one by one


def print_comparison(
    first: StoredRecord, second: StoredRecord, comparison: RecordComparison, console: Console | None = None
) -> None:
    """Both records, what changed around them, then quantity by quantity."""
    console = console or Console(highlight=False)
    first, second = (replace(one, record=printable_record(one.record)) for one in (first, second))
    comparison = printable_record(comparison)
    console.print(Trimmed(Text(f"{lab_words(first.record)}: {first.record.lab['question']}", style="bold")))
    _print_facts(console, {name: _run_words(one.record) for name, one in (("A", first), ("B", second))})
    _print_changes(console, comparison)
    counts, times, rates = comparison.of("count"), comparison.of("time"), comparison.of("rate")
    _print_measured(console, "Counts", counts, comparison.not_compared.get("counts"), show_ratio=False)
    # Of the times, those that a reason excludes stand in no table; computed ones may still be compared.
    _print_measured(
        console, "Times, B over A: median of each, 95 % interval of the ratio", times, comparison.not_compared.get("times")
    )
    _print_measured(console, "Rates, B over A", rates, comparison.not_compared.get("times"))
    judged = [one for one in (*times, *rates) if one.low is not None]
    if len(judged) >= 20:
        chance = f"of {len(judged)} intervals, about {round(len(judged) / 20)} leave 1 out by chance"
        console.print(Trimmed(Text(chance, style="dim")))
    for name, only in (("A", comparison.only_first), ("B", comparison.only_second)):
        if only:
            groups = "; ".join(dict.fromkeys(one.group or one.row or one.name for one in only))
            console.print()
            _print_facts(console, {f"only in {name}": f"{len(only)} measurement{'' if len(only) == 1 else 's'}: {groups}"})


def write_comparison_json(first: StoredRecord, second: StoredRecord, comparison: RecordComparison) -> None:
    """The same on stdout, as one JSON object."""
    content: dict[str, Any] = {
        name: {"run_id": one.record.run_id, "started_at": one.record.started_at, "path": str(one.path)}
        for name, one in (("first", first), ("second", second))
    }
    content["lab"] = {"number": first.record.lab["number"], "name": first.record.lab["name"]}
    for name in ("configuration", "code", "environment"):
        content[name] = [json_ready(change) for change in getattr(comparison, name)]
    content["workload"] = comparison.workload
    content["not_compared"] = dict(comparison.not_compared)
    content["measured"] = [asdict(one) for one in comparison.measured]
    for name in ("only_first", "only_second"):
        content[name] = [
            {"group": one.group, "row": one.row, "name": one.name, "unit": one.unit} for one in getattr(comparison, name)
        ]
    write_utf8(json.dumps(content, indent=2) + "\n")


def _print_changes(console: Console, comparison: RecordComparison) -> None:
    first, second = comparison.first, comparison.second
    commits = (commit_words(first), commit_words(second))
    code = [f"commit {commits[0]} → {commits[1]}"] if commits[0] != commits[1] else []
    files = [one.what for one in comparison.code if one.what not in ("commit", "dirty")]
    if files:
        more = f" and {len(files) - _MOST_SOURCES} more" if len(files) > _MOST_SOURCES else ""
        code.append(
            f"{len(files)} source file{' differs' if len(files) == 1 else 's differ'}: {', '.join(files[:_MOST_SOURCES])}{more}"
        )
    workload = {
        "same": "the same",
        "different": "different tokens were sent",
        "cannot tell": "cannot tell: the records hold no digests to compare",
    }
    console.print()
    console.print(Trimmed(Text("What changed", style="bold")))
    facts = {
        "configuration": "; ".join(map(_change, comparison.configuration)) or "nothing",
        "code": "; ".join(code) or "nothing",
        "environment": "; ".join(map(_change, comparison.environment)) or "nothing",
        "workload": workload[comparison.workload],
    }
    _print_facts(console, facts)


def _run_words(record: ResultRecord) -> str:
    return " · ".join((record.run_id[:8], f"{when_words(record)} UTC", TargetFacts.of(record).words, verdict_words(record)))


def _change(change: Change) -> str:
    return f"{change.what} {_value(change.first)} → {_value(change.second)}"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict, bool)) else str(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _print_measured(
    console: Console, title: str, measured: Sequence[MeasuredChange], reason: str | None, *, show_ratio: bool = True
) -> None:
    """A line that counts the verdicts, then a table of all but the equal."""
    if not measured:
        return
    console.print()
    console.print(Trimmed(Text(title, style="bold")))
    verdicts = [one.verdict for one in measured]
    summary = ", ".join(f"{verdicts.count(verdict):,} {verdict}" for verdict in _STYLES if verdict in verdicts)
    summary += f" ({reason})" if reason and "not compared" in verdicts else ""
    console.print(Trimmed(Padding(Text(summary), (0, 0, 0, 2))))
    shown = [one for one in measured if one.verdict not in ("equal", "not compared")]
    if not shown:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("where", overflow="fold", ratio=1)
    table.add_column("A", justify="right", overflow="fold")
    table.add_column("B", justify="right", overflow="fold")
    table.add_column("B/A" if show_ratio else "change", justify="right", no_wrap=True)
    group = None
    for one in shown:
        if one.group != group:
            group = one.group
            table.add_row(Text(group, style="dim"))
        where = ", ".join(part for part in (one.row, one.name) if part)
        table.add_row(
            Text(where),
            _samples(one, one.first),
            _samples(one, one.second),
            Text(_verdict(one, show_ratio), style=_STYLES[one.verdict]),
        )
    console.print(Trimmed(Padding(table, (0, 0, 0, 2))))


def _samples(one: MeasuredChange, samples: Sequence[float | int]) -> str:
    """The median alone where an interval stands beside it."""
    text = format_samples(samples, one.unit)
    return text.partition(" [")[0] if len(samples) > 1 else text


def _verdict(one: MeasuredChange, show_ratio: bool) -> str:
    if not show_ratio:
        difference = sum(one.second) / len(one.second) - sum(one.first) / len(one.first)
        return f"{difference:+,.6g}"
    if one.verdict == "cannot tell":
        return f"cannot tell ({len(one.first)} and {len(one.second)} samples)"
    if one.low is None or one.high is None:
        return "changed" if one.ratio is None else f"{one.ratio:.3g}, exact"
    interval = f"{one.ratio:.3g} [{one.low:.3g}–{one.high:.3g}]"
    return interval if one.verdict == "changed" else f"{interval}, not significant"


def _print_facts(console: Console, facts: Mapping[str, str]) -> None:
    """`name  text`, with later lines of a text below its first."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(ratio=1, overflow="fold")
    for name, text in facts.items():
        grid.add_row(name, Text(text))
    console.print(Trimmed(Padding(grid, (0, 0, 0, 2))))
