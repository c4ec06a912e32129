"""A lab's record as people read it: tables, laws, findings, the conclusion, the record's path.

One table for each group of measurements, one line for each row; predicted, measured, equal or not:

                       hits
    scenario          pred.   meas.  =  ttft_cold
    shared fraction  18,000  18,000  ✓  82.3 ms [80.1–90.4]

Quantities that are too many for the terminal's width go on in a further table. No line is ever cut off; of thousands of
measurements the first of each group are told, and how many more there are.
"""

from __future__ import annotations

from itertools import groupby, islice
from pathlib import Path
from typing import Any, Iterable, Sequence

from rich.console import Console
from rich.measure import Measurement as Width
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labcli.printable import printable, printable_record
from labcli.record import ResultRecord
from labcli.render.quantity import format_samples, format_value
from labcli.render.trimmed import Trimmed
from labcli.target_facts import TargetFacts
from labs.outcome import UNCOUNTED
from labs.protocol import Measurement

MOST_MEASUREMENTS = 1_000  # of a record; a table that nobody reads takes a minute to lay out
MOST_GROUPS = 100
MOST_LINES = 30  # of the laws of a group, its notes, the findings
_MOST_ROWS = 12  # named behind a law or a note
_MARKS = {True: Text("✓", style="green"), False: Text("✗", style="bold red"), None: Text("")}


def print_lab_report(record: ResultRecord, path: Path | None, console: Console | None = None) -> None:
    """Print the whole report on stdout, or on the console given."""
    console = console or Console(highlight=False)
    record = printable_record(record)
    number = record.lab["number"]
    title = record.lab["question"] if number is None else f"Lab {number:02d}: {record.lab['question']}"
    console.print(Trimmed(Text(title, style="bold")))
    console.print(Trimmed(Text(_conditions(record), style="dim")))
    groups = _groups(record.measurements)
    most = len(record.measurements)
    if most > MOST_MEASUREMENTS:
        most = MOST_MEASUREMENTS // min(len(groups), MOST_GROUPS)
    for group, measurements in groups[:MOST_GROUPS]:
        console.print()
        if group:
            console.print(Trimmed(Text(group, style="bold")))
        _print_tables(console, measurements[:most])
        _print_more(console, len(measurements) - most, "measurements")
        _print_laws_and_notes(console, measurements)
    _print_more(console, len(groups) - MOST_GROUPS, "groups of measurements")
    if record.findings:
        console.print()
        console.print(Text("Findings", style="bold"))
        _print_hanging(console, (("-", finding) for finding in record.findings[:MOST_LINES]))
        _print_more(console, len(record.findings) - MOST_LINES, "findings")
    if record.conclusion:
        console.print()
        console.print(Text("Conclusion", style="bold"))
        console.print(Trimmed(Text(record.conclusion)))
    console.print()
    console.print(Trimmed(Text(_verdict(record), style="bold red" if record.missed or record.error else "bold green")))
    if path is not None:
        console.print(Text(f"record: {printable(path)}"), soft_wrap=True)  # a path stays whole, to be copied


def _print_more(console: Console, number: int, what: str) -> None:
    if number > 0:
        console.print(Trimmed(Text(f"  … and {number:,} more {what}; --json has all", style="dim")))


def _conditions(record: ResultRecord) -> str:
    parts = [f"target {record.target['kind']}"]
    opened = record.target.get("opened") or []
    facts = TargetFacts.of(record)
    if facts.is_server:
        parts = [f"target {facts.words} at {facts.address}"]
        if isolation := _isolation(record.target, opened):
            parts.append(isolation)
    elif opened:
        parts.append(" ".join((opened[0]["model"], opened[0]["dtype"], "on", opened[0]["device"])))
    if record.target.get("gpu"):
        parts.append(f"gpu {record.target['gpu']}")
    if record.cache_state is not None:
        parts.append(f"cache {record.cache_state} at the start")
    return " · ".join(parts)


def _isolation(target: dict[str, Any], opened: Sequence[dict[str, Any]]) -> str:
    """How a server's cache was emptied between phases; of older records, as the last target opened there tells."""
    how = {
        "reset": "cache reset between phases",
        "renamed": "no reset: prompts given other ids between phases",
        "renamed and reset": "cache reset between phases, or where that failed prompts given other ids",
    }
    return how.get(target.get("isolation") or opened[-1].get("config", {}).get("isolation", ""), "")


def _verdict(record: ResultRecord) -> str:
    if not record.num_predictions:
        return "nothing was predicted"
    met = record.num_predictions - len(record.missed)
    if record.error == UNCOUNTED:
        return f"{met:,} of {record.num_predictions:,} predictions met, none of them about tokens found"
    has_range = any(one.predicted is not None and one.predicted.low is not None for one in record.measurements)
    how = "met, counts exactly, ratios within their range" if has_range else "met exactly"
    return f"{met:,} of {record.num_predictions:,} predictions {how}"


def _groups(measurements: Sequence[Measurement]) -> list[tuple[str, list[Measurement]]]:
    """Measurements by group, in the order in which each group first appears."""
    groups: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault(measurement.group, []).append(measurement)
    return list(groups.items())


def _print_tables(console: Console, measurements: Sequence[Measurement]) -> None:
    """As few tables as the width allows, the quantities in their order."""
    places: dict[str, list[int]] = {}  # of the measurements, by name
    for place, one in enumerate(measurements):
        places.setdefault(one.name, []).append(place)
    names = list(places)
    while names:
        # The longest run of quantities that fits; a lone one that does not is told line by line.
        table, count = None, 0
        for tried in range(1, len(names) + 1):
            part = [measurements[place] for place in sorted(place for name in names[:tried] for place in places[name])]
            candidate = _row_table(part)
            widths = _widths(console, candidate)
            if table is not None and widths.maximum > console.width:
                break
            table, count = candidate, tried
            if widths.maximum > console.width:
                table = _line_table(part) if widths.minimum > console.width else table
                break
        assert table is not None
        console.print(Trimmed(table))
        names = names[count:]
        if names:
            console.print()


def _widths(console: Console, table: Table) -> Width:
    return Width.get(console, console.options.update(width=10_000), table)


def _new_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def _row_table(measurements: Sequence[Measurement]) -> Table:
    """One line a row, the quantities side by side."""
    names = list(dict.fromkeys(one.name for one in measurements))
    predicted_names = {one.name for one in measurements if one.predicted is not None}
    cells = {(one.row, one.name): one for one in measurements}
    table = _new_table()
    table.add_column("\nscenario" if predicted_names else "scenario", overflow="fold")
    for name in names:
        if name in predicted_names:
            table.add_column(f"{name}\npred.", justify="right", no_wrap=True)
            table.add_column("\nmeas.", justify="right", no_wrap=True)
            table.add_column("\n=", no_wrap=True)
        else:
            table.add_column(f"\n{name}" if predicted_names else name, no_wrap=True)
    for row in dict.fromkeys(one.row for one in measurements):
        line: list[str | Text] = [Text(row)]
        for name in names:
            three = _cells(cells[row, name]) if (row, name) in cells else ["", "", ""]
            line.extend(three if name in predicted_names else three[1:2])
        table.add_row(*line)
    return table


def _line_table(measurements: Sequence[Measurement]) -> Table:
    """One line a quantity; the row's name stands on its first line."""
    table = _new_table()
    table.add_column("scenario", overflow="fold")
    table.add_column("quantity", no_wrap=True)
    predicted = any(one.predicted is not None for one in measurements)
    if predicted:
        table.add_column("predicted", justify="right", no_wrap=True)
    table.add_column("measured", justify="right" if predicted else "left", no_wrap=True)
    if predicted:
        table.add_column("=", no_wrap=True)
    for row, group in groupby(measurements, key=lambda one: one.row):
        label = Text(row)
        for one in group:
            cells = _cells(one)
            table.add_row(label, one.name, *(cells if predicted else cells[1:2]))
            label = Text("")
    return table


def _cells(one: Measurement) -> list[str | Text]:
    """Predicted, measured, equal or not; without a prediction the measured value alone is told."""
    measured = format_samples(one.samples, one.unit)
    if one.predicted is None:
        return ["", measured, ""]
    return [_predicted(one), measured, _MARKS[one.agrees]]


def _predicted(one: Measurement) -> str:
    law = one.predicted
    assert law is not None
    value = format_value(law.value, one.unit)
    if law.low is None or law.high is None:
        return value
    low, high = format_value(law.low, one.unit), format_value(law.high, one.unit)
    # A range that only allows for rounding looks like the value.
    return value if low == value == high else f"{value} [{low}–{high}]"


def _print_laws_and_notes(console: Console, measurements: Sequence[Measurement]) -> None:
    """The laws the lab calls key, those of missed predictions, and notes; every law is in the record."""
    all_rows = {one.row for one in measurements}
    laws: dict[tuple[str, str], list[str]] = {}
    notes: dict[str, list[str]] = {}
    for one in measurements:
        if one.predicted is not None and (one.key or one.agrees is False):
            laws.setdefault((one.name, one.predicted.law), []).append(one.row)
        if one.note:
            notes.setdefault(one.note, []).append(one.row)
    told_laws = [("law ", f"{name} = {law}{_rows(rows, all_rows)}") for (name, law), rows in islice(laws.items(), MOST_LINES)]
    told_notes = [("note", f"{note}{_rows(rows, all_rows)}") for note, rows in islice(notes.items(), MOST_LINES)]
    _print_hanging(console, told_laws)
    _print_more(console, len(laws) - MOST_LINES, "laws")
    _print_hanging(console, told_notes)
    _print_more(console, len(notes) - MOST_LINES, "notes")


def _rows(rows: Sequence[str], all_rows: set[str]) -> str:
    distinct = [row for row in dict.fromkeys(rows) if row]
    if not distinct or (set(distinct) == all_rows and len(all_rows) > 1):
        return ""
    more = f"; and {len(distinct) - _MOST_ROWS} more" if len(distinct) > _MOST_ROWS else ""
    return f"  ({'; '.join(distinct[:_MOST_ROWS])}{more})"


def _print_hanging(console: Console, lines: Iterable[tuple[str, str]]) -> None:
    """`mark text` each, with later lines of a text below its first."""
    for mark, text in lines:
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(ratio=1)
        grid.add_row(mark, Text(text))
        console.print(Trimmed(Padding(grid, (0, 0, 0, 2))))
