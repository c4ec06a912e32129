"""The list of labs as a table."""

from __future__ import annotations

from typing import Sequence

from rich.table import Table
from rich.text import Text

from labs.protocol import Lab


def lab_table(labs: Sequence[Lab]) -> Table:
    """One row a lab; the question takes the room that is left, and names fold where there is little."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("lab", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("question", ratio=1, min_width=12, overflow="fold")
    table.add_column("targets", overflow="fold")
    for lab in labs:
        table.add_row(f"{lab.number:02d}", lab.name, Text(lab.question), ", ".join(lab.targets))
    return table
