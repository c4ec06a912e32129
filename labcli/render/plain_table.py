"""A table without lines: names to the left, numbers to the right."""

from __future__ import annotations

from typing import Container

from rich.table import Table


def plain_table(*titles: str, names: Container[str]) -> Table:
    """names: the titles of columns that hold names; all others hold numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        table.add_column(title, justify="left" if title in names else "right", no_wrap=True)
    return table
