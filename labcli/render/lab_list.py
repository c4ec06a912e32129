"""The list of labs: a table, or lines below each other where its columns would be too narrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from labcli.render.trimmed import Trimmed
from labs.protocol import Lab

_TABLE_WIDTH = 78  # columns


@dataclass(frozen=True)
class LabList:
    """For rich to print; nothing of it is ever cut off."""

    labs: Sequence[Lab]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if options.max_width >= _TABLE_WIDTH:
            yield Trimmed(_table(self.labs))
            return
        for lab in self.labs:
            yield Text(f"{lab.number:02d}  {lab.name}")
            yield Trimmed(Padding(Text(lab.question), (0, 0, 0, 4)))
            yield Trimmed(Padding(Text(", ".join(lab.targets), style="dim"), (0, 0, 0, 4)))


def lab_table(labs: Sequence[Lab]) -> LabList:
    """One row a lab."""
    return LabList(labs)


def _table(labs: Sequence[Lab]) -> Table:
    """The question takes the room that is left, and names fold where there is little."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("lab", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("question", ratio=1, min_width=12, overflow="fold")
    table.add_column("targets", overflow="fold")
    for lab in labs:
        table.add_row(f"{lab.number:02d}", lab.name, Text(lab.question), ", ".join(lab.targets))
    return table
