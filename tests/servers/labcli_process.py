"""labcli in a process of its own, as a person runs it, with its JSON read back, and lines to quote from it."""

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

    @property
    def faults(self) -> list[str]:
        """The names of a probe's verdicts that are faults."""
        return [one["name"] for one in self.output["verdicts"] if one["state"] == "fault"]

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


def probe(url: str, max_seconds: int = 90) -> Ended:
    """`labcli probe`; a busy CPU needs more than the minute it takes by default."""
    return labcli("probe", url, "--max-seconds", str(max_seconds))


def run_lab_04(url: str, *arguments: str) -> Ended:
    """Lab 04 on a server."""
    return labcli("run-lab", "04", "--target", url, "--no-save", *arguments)


def told_of_lab(ended: Ended) -> str:
    """What a person can quote of a lab: its server, the predictions met, what was found in all."""
    judged = [one for one in ended.output.get("measurements", ()) if one["predicted"] is not None]
    if not judged:
        return ended.errors
    found: dict[str, int] = {}
    for one in judged:
        if one["name"] in ("total", "counted"):
            found.setdefault(one["row"], one["samples"][0])
    sums = "; ".join(f"{row}: {tokens:,}" for row, tokens in found.items() if tokens)
    return (
        f"{judged[0]['group']}: lab 04 met {len(judged) - len(ended.missed)} of {len(judged)} predictions from a "
        f"{ended.output['cache_state']} cache. Tokens found: {sums}"
    )


def told_of_probe(ended: Ended) -> str:
    """The same of a probe: its faults, and what its repeats found."""
    if not ended.output:
        return ended.errors
    sent, rate = ended.output["sent"], ended.output["own_rate"]
    left_out = f", left out for time: {', '.join(sent['left_out'])}" if sent["left_out"] else ""
    return (
        f"probe: {', '.join(ended.faults) or 'no fault'}, {len(ended.output['verdicts'])} verdicts from {sent['num_requests']} requests "
        f"in {sent['seconds']:.0f} s{left_out}; its repeats found {rate['num_cached']:,} tokens, by the law {rate['expected'] or 0:,}"
    )
