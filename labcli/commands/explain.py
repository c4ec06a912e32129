"""`labcli explain LAB`: what a lab asks, predicts and shows, without running it.

    labcli explain 04
    labcli explain hit-rate
"""

from __future__ import annotations

from typing import Annotated

import typer


def explain(
    lab: Annotated[str, typer.Argument(metavar="LAB", help='Number, name or part of a name: 04, "hit-rate".')],
) -> None:
    """Explain a lab without running it: its laws, how to read it."""
    from labcli.render.lab_explanation import print_lab_explanation
    from labs.catalog import lookup

    print_lab_explanation(lookup(lab))
