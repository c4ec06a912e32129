"""A record as JSON on stdout: the very bytes that are saved."""

from __future__ import annotations

import sys

from labcli.record import ResultRecord


def write_json(record: ResultRecord) -> None:
    """Write the record's text in UTF-8, as JSON wants, whatever encoding the terminal has."""
    sys.stdout.flush()
    sys.stdout.buffer.write(record.to_json().encode("utf-8"))
    sys.stdout.buffer.flush()
