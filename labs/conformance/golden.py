"""Golden: recorded scenarios of the real engines, read from a folder.

Schema and notation: labs/recorded/README.md. Each kind is one file, `<kind>.jsonl.gz` or `<kind>.jsonl`, a scenario a line.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any, Iterable

import labs.recorded

KINDS = ("manager", "scheduler", "radix")
RECORDED_DIR = Path(labs.recorded.__path__[0])

_KEYS = {
    "manager": {"name", "config", "ops", "expect", "final"},
    "scheduler": {"name", "config", "arrivals", "actions", "steps", "final"},
    "radix": {"name", "config", "ops", "expect", "final"},
}


class GoldenError(ValueError):
    """A folder or a file holds no scenarios; the message says which, and what is accepted."""


def read_scenarios(kind: str, folder: str | Path = RECORDED_DIR) -> list[dict[str, Any]]:
    """All scenarios of one kind. Raises GoldenError."""
    path = _path(kind, Path(folder))
    scenarios = []
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    scenarios.append(_scenario(line, kind, f"{path}, line {number}"))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise GoldenError(f"{path} cannot be read ({reason}); accepted: {kind}.jsonl.gz or {kind}.jsonl") from None
    if not scenarios:
        raise GoldenError(f"{path} is empty; accepted: one scenario a line, as in labs/recorded/README.md")
    return scenarios


def kinds_in(folder: str | Path) -> list[str]:
    """The kinds of which the folder has a file. Raises GoldenError when there is none."""
    folder = Path(folder)
    found = [kind for kind in KINDS if any((folder / f"{kind}{ending}").is_file() for ending in (".jsonl.gz", ".jsonl"))]
    if not found:
        raise GoldenError(f"{folder} holds no recorded scenarios; accepted: a folder with " + ", ".join(f"{kind}.jsonl.gz" for kind in KINDS))
    return found


def expand(tokens: Iterable[Any]) -> list[int]:
    """Token ids from the files' notation: a pair [a, b] stands for a, a + 1, ..., b - 1."""
    ids: list[int] = []
    for item in tokens:
        ids.extend(range(item[0], item[1])) if isinstance(item, list) else ids.append(item)
    return ids


def _path(kind: str, folder: Path) -> Path:
    for ending in (".jsonl.gz", ".jsonl"):
        if (folder / f"{kind}{ending}").is_file():
            return folder / f"{kind}{ending}"
    return folder / f"{kind}.jsonl.gz"


def _scenario(line: str, kind: str, where: str) -> dict[str, Any]:
    try:
        scenario = json.loads(line)
    except ValueError:
        raise GoldenError(f"{where}: not JSON; accepted: one scenario, as in labs/recorded/README.md") from None
    missing = _KEYS[kind] - scenario.keys() if isinstance(scenario, dict) else _KEYS[kind]
    if missing:
        raise GoldenError(f"{where}: a scenario lacks {', '.join(sorted(missing))}; accepted: as in labs/recorded/README.md")
    if "ops" in scenario and len(scenario["ops"]) != len(scenario["expect"]):
        counts = f"{len(scenario['ops'])} operations and {len(scenario['expect'])} expectations"
        raise GoldenError(f"{where}: {counts}; accepted: one expectation for each operation")
    return scenario
