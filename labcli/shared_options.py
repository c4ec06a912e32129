"""Options that several commands have, worded once: `results_dir: ResultsDir = "results"`.

Each is a type for a command's parameter; what stands behind `=` there is its default. Names of options are spelled out,
so that a parameter may be called anything.
"""

from __future__ import annotations

from typing import Annotated, Optional

import typer

ResultsDir = Annotated[
    str, typer.Option("--results-dir", envvar="LABCLI_RESULTS_DIR", metavar="FOLDER", help="Where records are kept.")
]
CacheDir = Annotated[
    Optional[str],
    typer.Option(
        "--cache-dir", envvar="LABCLI_CACHE_DIR", metavar="FOLDER", help="Where prepared models are kept. [default: per user]"
    ),
]
RecordAsJson = Annotated[bool, typer.Option("--json", help="Print the record, and nothing else, on stdout.")]
NoSave = Annotated[bool, typer.Option("--no-save", help="Keep no record.")]
VllmPython = Annotated[
    Optional[str], typer.Option("--vllm-python", metavar="PATH", help="A Python that has vLLM. [default: this one]")
]
