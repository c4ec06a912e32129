"""labcli in a process of its own, as a person runs it, with its JSON read back."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900  # a real model on a busy CPU


@dataclass(frozen=True)
class Ended:
    """What a command printed and how it ended."""

    exit_code: int
    output: dict[str, Any]
    errors: str

    def verdict(self, name: str) -> dict[str, Any]:
        """A probe's verdict of this name."""
        return next(one for one in self.output["verdicts"] if one["name"] == name)

    def measured(self, name: str, row: str) -> list[float]:
        """The samples of a record's measurement, whose row begins so."""
        found = [one for one in self.output["measurements"] if one["name"] == name and one["row"].startswith(row)]
        assert len(found) == 1, [(one["name"], one["row"]) for one in self.output["measurements"]]
        return found[0]["samples"]

    @property
    def missed(self) -> list[str]:
        """The measurements of a record that differ from what was predicted."""
        return [
            f"{one['group']}, {one['row']}, {one['name']}: {one['samples']}, predicted {one['predicted']}"
            for one in self.output["measurements"]
            if one["predicted"] and one["predicted"]["low"] is None and set(one["samples"]) != {one["predicted"]["value"]}
        ]


def labcli(*arguments: str) -> Ended:
    """Run labcli with `--json`; its records are not kept."""
    command = [sys.executable, "-m", "labcli", *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    try:
        output = json.loads(done.stdout)
    except ValueError:
        output = {}
    return Ended(done.returncode, output, done.stderr)


def probe(url: str, *arguments: str) -> Ended:
    """`labcli probe`, with time enough for a CPU."""
    return labcli("probe", url, "--max-seconds", "240", *arguments)


def run_lab_04(url: str, *settings: str) -> Ended:
    """Lab 04 on a server; `settings` are NAME=VALUE."""
    return labcli("run-lab", "04", "--target", url, "--no-save", *(part for one in settings for part in ("--set", one)))
