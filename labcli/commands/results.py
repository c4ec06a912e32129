"""`labcli results`: records that were kept, to list, read again, compare, export and show.

labcli results                                 the newest records
labcli results show 04                         the latest run of lab 04, with charts
labcli results compare 04~1 04                 the one before it with the latest
labcli results export --csv --output runs.csv  every sample
labcli results report                          report.html: one page that needs nothing else
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Optional, Sequence, TextIO

import typer

from labcli.command_group import CommandGroup
from labcli.shared_options import ResultsDir


class _ResultsGroup(CommandGroup):
    """Lists the records where no other command is named; a command may also stand behind its options."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            at = self._first_word(args)
            named = at < len(args) and args[at] in self.commands
            args = [args[at], *args[:at], *args[at + 1 :]] if named else ["list", *args]
        return super().parse_args(ctx, args)

    def _first_word(self, args: list[str]) -> int:
        """The place of the first argument that is neither an option nor an option's value."""
        options = [one for command in self.commands.values() for one in command.params if getattr(one, "is_flag", False)]
        flags = {"--help"}.union(*((*one.opts, *one.secondary_opts) for one in options))
        at = 0
        while at < len(args) and args[at].startswith("-"):
            at += 1 if "=" in args[at] or args[at] in flags else 2
        return at


results = typer.Typer(cls=_ResultsGroup, rich_markup_mode=None, help="List, show, compare, export and report what was kept.")

_Lab = Annotated[
    Optional[str], typer.Option("--lab", metavar="LAB", help="Of this lab or bench alone: 04, hit-rate, hash-bench.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
_RECORD = "A path, the beginning of a file name or run id, latest, a lab (04: its latest), 04~1 (the one before)."


@results.callback()
def _results() -> None:
    """List, show, compare, export and report what was kept."""


@results.command("list")
def list_records(
    lab: _Lab = None,
    limit: Annotated[int, typer.Option(help="Records to show at most.")] = 20,
    json_: _Json = False,
    results_dir: ResultsDir = "results",
) -> None:
    """List records, newest first."""
    from labcli.fault import UsageFault
    from labcli.render.record_list import print_record_list, write_list_json

    if limit < 1:
        raise UsageFault(f"--limit is {limit}", "a whole number from 1")
    store, paths = _find(results_dir, lab)
    stored = []
    paths_left = iter(paths)
    for one in store.read(paths_left, _say_damaged):
        stored.append(one)
        if len(stored) == limit:
            break  # the others are not even opened
    if json_:
        write_list_json(stored)
    elif stored:
        print_record_list(stored, sum(1 for _ in paths_left))
    if not stored:
        _say_none(results_dir, lab, sys.stderr if json_ else sys.stdout)


@results.command("show")
def show_record(
    record: Annotated[str, typer.Argument(metavar="RECORD", help=_RECORD)],
    json_: _Json = False,
    charts: Annotated[bool, typer.Option("--charts/--no-charts", help="Whether charts follow the report.")] = True,
    results_dir: ResultsDir = "results",
) -> None:
    """Show a record as its run did, with its charts."""
    from labcli.record_lookup import lookup_record
    from labcli.results_store import ResultsStore

    stored = lookup_record(ResultsStore(results_dir), record, _say_damaged)
    if json_:
        from labcli.render.record_json import write_json

        write_json(stored.record)
        return
    from labcli.render.shown_record import print_shown_record

    print_shown_record(stored, with_charts=charts)


@results.command("compare")
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help=_RECORD)],
    second: Annotated[str, typer.Argument(metavar="B", help="The same; B is compared with A.")],
    across_machines: Annotated[
        bool, typer.Option("--across-machines", help="Compare times of two machines all the same.")
    ] = False,
    json_: _Json = False,
    results_dir: ResultsDir = "results",
) -> None:
    """Say what changed between two runs of a lab.

    Configuration, code, environment and workload first, then whether the counts and times did.
    """
    from labcli.record_comparison import compare_records
    from labcli.record_lookup import lookup_record
    from labcli.render.record_comparison import print_comparison, write_comparison_json
    from labcli.results_store import ResultsStore

    store = ResultsStore(results_dir)
    a, b = lookup_record(store, first, _say_damaged), lookup_record(store, second, _say_damaged)
    comparison = compare_records(a.record, b.record, across_machines=across_machines)
    (write_comparison_json if json_ else print_comparison)(a, b, comparison)


@results.command("export")
def export(
    records: Annotated[Optional[list[str]], typer.Argument(metavar="[RECORD]...", help=f"{_RECORD} [default: all]")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="As CSV: one line a sample.")] = False,
    output: Annotated[Optional[str], typer.Option(metavar="FILE", help="[default: stdout]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    lab: _Lab = None,
    results_dir: ResultsDir = "results",
) -> None:
    """Write every sample as CSV, for data frames."""
    from labcli.fault import UsageFault
    from labcli.render.record_csv import records_csv
    from labcli.utf8_output import write_utf8
    from labcli.whole_file import new_file, replace_file

    if not csv:
        raise UsageFault("no format", "--csv")
    path = None if output is None else _output_path(output)
    if path is not None and path.exists() and not force:
        raise UsageFault(f"{output} exists", "another --output, or --force to replace it")
    stored = _chosen(results_dir, lab, records or (), latest_only=False)
    text = records_csv(stored)
    if path is None:
        return write_utf8(text)
    try:
        (replace_file if force else new_file)(path, text)
    except FileExistsError:  # another process was faster
        raise UsageFault(f"{output} exists", "another --output, or --force to replace it") from None
    _say_written(stored, output, "")


@results.command("report")
def report(
    records: Annotated[
        Optional[list[str]], typer.Argument(metavar="[RECORD]...", help=f"{_RECORD} [default: each lab's latest]")
    ] = None,
    output: Annotated[str, typer.Option(metavar="FILE", help="Replaced if it is such a page.")] = "report.html",
    lab: _Lab = None,
    results_dir: ResultsDir = "results",
) -> None:
    """Write one HTML page that needs no other file.

    Of each record: charts, laws, findings, conditions and all measurements.
    """
    from labcli.render.report_html import build_report
    from labcli.run_identity import utc_now
    from labcli.whole_file import replace_file

    path = _output_path(output)
    _check_replaceable(path, output)
    stored = _chosen(results_dir, lab, records or (), latest_only=True)
    text = build_report(stored, utc_now())
    replace_file(path, text)
    _say_written(stored, output, f" ({len(text.encode('utf-8', errors='replace')) / 1000:,.0f} kB)")


def _find(results_dir: str, lab: str | None) -> tuple[Any, list[Path]]:
    """The store, and the paths of a lab's records or of all, newest first."""
    from labcli.record_lookup import known_label
    from labcli.results_store import ResultsStore

    store = ResultsStore(results_dir)
    if lab is None:
        return store, store.find()
    label = known_label(store, lab)
    return store, [] if label is None else store.find(label)


def _chosen(results_dir: str, lab: str | None, names: Sequence[str], *, latest_only: bool) -> list[Any]:
    """The records named; without names all of a lab's or of all labs, or the latest of each. Raises UsageFault for none."""
    from labcli.fault import UsageFault

    found = _records(results_dir, lab, names, latest_only=latest_only)
    if not found:
        of = "" if lab is None else f" of {lab}"
        raise UsageFault(f"no records{of} in {results_dir}, so nothing was written", "a --results-dir that labcli run-lab filled")
    return found


def _records(results_dir: str, lab: str | None, names: Sequence[str], *, latest_only: bool) -> list[Any]:
    from labcli.fault import UsageFault
    from labcli.record_lookup import lookup_record

    store, paths = _find(results_dir, lab)
    if names:
        if lab is not None:
            raise UsageFault("--lab was given with records", "one or the other")
        found = (lookup_record(store, name, _say_damaged) for name in names)
        return list({one.record.run_id: one for one in found}.values())  # each once, by whatever names
    if latest_only:
        labels = dict.fromkeys(path.parent.name for path in paths)
        by_label = ([path for path in paths if path.parent.name == label] for label in sorted(labels, key=_bench_last))
        latest = (next(store.read(of_label, _say_damaged), None) for of_label in by_label)
        return [one for one in latest if one is not None]
    return list(store.read(paths, _say_damaged))


def _bench_last(label: str) -> tuple[bool, str]:
    return not label[:1].isdecimal(), label


def _output_path(output: str) -> Path:
    """The file to write: what a link points to, not the link. Raises UsageFault for what is no file and cannot become one."""
    from labcli.fault import UsageFault

    if not output.strip():
        raise UsageFault(f"--output is {output!r}", "a file in a folder that exists")
    path = Path(output)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UsageFault(f"--output is {output}, which is no regular file", "a file in a folder that exists")
    path = Path(os.path.realpath(path))
    if path.is_dir() or not path.parent.is_dir():
        raise UsageFault(f"--output is {output}", "a file in a folder that exists")
    return path


def _check_replaceable(path: Path, output: str) -> None:
    """A page of ours may be replaced; anything else that has its name is somebody's."""
    from labcli.fault import UsageFault
    from labcli.render.report_html import MARKER

    if path.exists():
        with open(path, "rb") as file:
            if MARKER.encode() not in file.read(200):
                raise UsageFault(f"{output} is no report of labcli and would be lost", "--output with another name")


def _say_damaged(path: Path, reason: str) -> None:
    from labcli.printable import printable

    print(printable(f"labcli: {path} is left out: {' '.join(reason.split())}"), file=sys.stderr)


def _say_written(stored: Sequence[Any], output: str, size: str) -> None:
    from labcli.printable import printable

    print(printable(f"{len(stored):,} record{'' if len(stored) == 1 else 's'} in {output}{size}"))


def _say_none(results_dir: str, lab: str | None, stream: TextIO) -> None:
    from labcli.printable import printable

    of = "" if lab is None else f" of {lab}"
    example = "04" if lab is None or not lab.strip().isdecimal() else lab
    print(printable(f"no records{of} in {results_dir} yet; labcli run-lab {example} makes one"), file=stream)
