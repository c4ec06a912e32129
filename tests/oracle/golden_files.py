"""Reads the recorded scenarios in tests/golden (schema: tests/golden/README.md)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

GOLDEN_DIR = Path(__file__).parents[1] / "golden"


def scenarios(kind: str) -> list[dict[str, Any]]:
    """All scenarios of "manager", "scheduler" or "radix"."""
    with gzip.open(GOLDEN_DIR / f"{kind}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def expand(tokens: list[Any]) -> list[int]:
    """Token ids from the files' notation: a pair [a, b] stands for a, a+1, ..., b-1."""
    ids: list[int] = []
    for item in tokens:
        if isinstance(item, list):
            ids.extend(range(item[0], item[1]))
        else:
            ids.append(item)
    return ids
