"""What tells one run from another, and which code it ran: id, times, hashes of source files."""

from __future__ import annotations

import hashlib
import os
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Mapping


def new_run_id() -> str:
    """32 hexadecimal digits, never the same twice."""
    return uuid.uuid4().hex


def utc_now() -> str:
    """ISO 8601 with milliseconds: 2026-03-01T14:25:01.042Z."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def source_hashes(files: Mapping[str, str | os.PathLike[str]]) -> dict[str, str]:
    """SHA-256 of each file's bytes, by the file's name in a record: a measurement knows its code's version."""
    return {name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for name, path in files.items()}
