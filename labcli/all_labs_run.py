"""Every lab, one after the other, on one target whose model is loaded once.

A lab that fails ends itself, not the others. Ctrl-C ends all of them; records of finished labs are saved by then.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Sequence

from labcli.fault import Interrupted, fault_of
from labcli.lab_run import FinishedRun, LabRun
from labcli.progress_bar import ProgressBar
from labcli.record import ResultRecord
from labs.catalog import CatalogEntry


@dataclass(frozen=True)
class LabOutcome:
    """How one lab ended."""

    entry: CatalogEntry
    finished: FinishedRun | None  # None: it failed before it measured anything
    seconds: float
    failure: str = ""  # one line; empty when the lab ran to its end and could judge what it counted

    @property
    def record(self) -> ResultRecord | None:
        return None if self.finished is None else self.finished.record

    @property
    def path(self) -> Path | None:
        return None if self.finished is None else self.finished.path

    @property
    def is_good(self) -> bool:
        """Whether the lab ran to its end and met every prediction."""
        return not self.failure and self.record is not None and not self.record.missed


def run_labs(runs: Sequence[LabRun]) -> Iterator[LabOutcome]:
    """Run each and give its outcome as soon as it is known. All runs have the same target and engine settings.

    Raises Interrupted after Ctrl-C, with an outcome for what the interrupted lab measured given before; and whatever opening
    the target or writing into the results folder raises: then nothing was run.
    """
    bar = ProgressBar()
    open_target = runs[0].open_target(bar)
    if runs[0].store is not None:
        runs[0].store.check_writable(runs[0].entry.label)
    for run in runs:
        begin = time.perf_counter()
        try:
            finished: FinishedRun | None = run.execute(open_target, bar)
            failure = finished.record.error or ""
        except Interrupted as error:
            partial = getattr(error, "finished_run", None)
            yield LabOutcome(run.entry, partial, time.perf_counter() - begin, "interrupted")
            raise Interrupted(f"lab {run.entry.number:02d}: {error}") from error
        except Exception as error:
            finished = getattr(error, "finished_run", None)
            failure = fault_of(error).line.removeprefix("labcli: ")
        yield LabOutcome(run.entry, finished, time.perf_counter() - begin, failure)
