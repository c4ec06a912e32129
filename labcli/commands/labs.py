"""`labcli labs`: every lab with its question."""

from __future__ import annotations


def list_labs() -> None:
    """List the labs with their questions."""
    from rich.console import Console

    from labcli.render.lab_list import lab_table
    from labs.catalog import find_labs

    Console(highlight=False).print(lab_table([entry.load() for entry in find_labs()]))
