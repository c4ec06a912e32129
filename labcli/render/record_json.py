"""Records as JSON on stdout: of one, the very bytes that are saved; of several, a list of them."""

from __future__ import annotations

import sys
from typing import Sequence

from labcli.record import ResultRecord


def write_json(record: ResultRecord) -> None:
    """Write the record's text in UTF-8, as JSON wants, whatever encoding the terminal has."""
    _write(record.to_json())


def write_json_list(records: Sequence[ResultRecord]) -> None:
    """Write a JSON list of records."""
    _write("[\n" + ",\n".join(record.to_json().rstrip("\n") for record in records) + "\n]\n")


def _write(text: str) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8"))
    sys.stdout.buffer.flush()
