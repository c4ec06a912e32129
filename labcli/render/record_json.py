"""Records as JSON on stdout: of one, the very bytes that are saved; of several, a list of them."""

from __future__ import annotations

from typing import Sequence

from labcli.record import ResultRecord
from labcli.utf8_output import write_utf8


def write_json(record: ResultRecord) -> None:
    """Write the record's text in UTF-8, as JSON wants, whatever encoding the terminal has."""
    write_utf8(record.to_json())


def write_json_list(records: Sequence[ResultRecord]) -> None:
    """Write a JSON list of records."""
    write_utf8("[\n" + ",\n".join(record.to_json().rstrip("\n") for record in records) + "\n]\n")
