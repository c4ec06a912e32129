"""A lab explained: its file's own text, the laws it predicts with, and what can be set."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from dataclasses import MISSING, fields
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labcli.lab_config import describe_type, settable_fields
from labcli.render.trimmed import Trimmed
from labs.catalog import CatalogEntry
from labs.lab_laws import laws_of
from labs.protocol import Lab

_HEADING = re.compile(r"^(Background|Predicted[^.,:]*|How to read it|Sources)(?=[.,:])")


def print_lab_explanation(entry: CatalogEntry, console: Console | None = None) -> None:
    """Print the explanation on stdout, or on the console given."""
    console = console or Console(highlight=False)
    lab = entry.load()
    text = importlib.import_module(entry.module_name).__doc__ or ""
    console.print(Text(lab.title, style="bold"))
    for paragraph in _paragraphs(text)[1:]:  # the first is the title
        console.print()
        console.print(Trimmed(paragraph))
    console.print()
    _print_laws(console, entry)
    _print_fields(console, lab)
    console.print(Text("Run it", style="bold"))
    for target in lab.targets:
        typed = {"engine": "", "server": " --target http://127.0.0.1:8000"}.get(target, f" --target {target}")
        console.print(Text(f"  labcli run-lab {lab.number:02d}{typed}"))
    console.print(Text(f"  labcli run-lab {lab.number:02d} --quick --set FIELD=VALUE"))


def _paragraphs(text: str) -> list[Text | Padding]:
    """Paragraphs to be wrapped anew; of indented ones, lists of two columns too, and drawings as they are."""
    found: list[Text | Padding] = []
    for block in textwrap.dedent(text).strip("\n").split("\n\n"):
        if block.startswith("  "):
            found.append(Padding(_two_columns(textwrap.dedent(block)), (0, 0, 0, 2)))
            continue
        paragraph = Text(" ".join(block.split()))
        paragraph.highlight_regex(_HEADING, "bold")
        found.append(paragraph)
    return found


def _two_columns(block: str) -> Table | Text:
    """Lines of a name, two spaces or more, and its text, as a grid; anything else as it is.

    A line that begins where the texts begin goes on with the text above it.
    """
    rows: list[list[str]] = []
    column = None
    for line in block.splitlines():
        found = re.fullmatch(r"(\S.*?)\s{2,}(\S.*)", line)
        if found is not None and column in (None, found.start(2)):
            column = found.start(2)
            rows.append([found[1], found[2]])
        elif rows and line[: column or 0].isspace():
            rows[-1][1] += " " + line.strip()
        else:
            return Text(block)
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, text in rows:
        grid.add_row(Text(name), Text(text))
    return grid


def _print_laws(console: Console, entry: CatalogEntry) -> None:
    laws = laws_of(entry.path)
    if not laws:
        return
    console.print(Text("Laws", style="bold"))
    for law in laws:
        console.print(Trimmed(Padding(Text.assemble((law.name, "bold"), " = ", law.formula), (0, 0, 0, 2))))
        console.print(Trimmed(Padding(Text(law.text, style="dim"), (0, 0, 0, 6))))
    console.print()


def _print_fields(console: Console, lab: Lab) -> None:
    console.print(Text("What --set changes", style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("field", "default", "quick", "meaning"):
        table.add_column(title, overflow="fold", no_wrap=title == "field")
    types_by_field, comments = settable_fields(lab.config_type), _field_comments(lab.config_type)
    for field in fields(lab.config_type):
        if field.name in types_by_field:
            default = None if field.default is MISSING else field.default
            meaning = comments.get(field.name) or describe_type(types_by_field[field.name])
            table.add_row(field.name, _shown(default), _shown(getattr(lab.quick, field.name)), Text(meaning))
    console.print(Trimmed(Padding(table, (0, 0, 0, 2))))
    console.print()


def _field_comments(config_type: type) -> dict[str, str]:
    """What stands behind each field in the source: `num_requests: int = 10  # of the shared series`."""
    lines = re.findall(r"^    (\w+): [^#\n]*#\s*(.+)$", inspect.getsource(config_type), re.MULTILINE)
    return dict(lines)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
