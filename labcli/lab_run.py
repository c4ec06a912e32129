"""LabRun: one run of a lab on a target, from its settings to its record, whatever way it ends.

    settings ──▶ store checked ──▶ target opened ──▶ lab.run(session, config) ──▶ record saved
                                                          │ Ctrl-C, error
                                                          └──▶ what was measured: record saved, marked so
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.config import EngineConfig
from engine.errors import EngineError
from labcli.environment import read_environment, without_home
from labcli.fault import Interrupted
from labcli.held_interrupts import held_interrupts
from labcli.progress_bar import ProgressBar
from labcli.record import ResultRecord, json_ready
from labcli.results_store import ResultsStore
from labcli.run_identity import new_run_id, source_hashes, utc_now
from labcli.session import RunSession
from labs.catalog import CatalogEntry
from labs.outcome import UNCOUNTED, counts_hits
from labs.protocol import Lab, LabReport
from labs.targets.base import OpenTarget, TargetError
from labs.targets.open_target import import_model_packages, open_target_factory

if TYPE_CHECKING:
    from labs.servers.server_run import ServerRun


@dataclass(frozen=True)
class FinishedRun:
    """A record and where it lies; no path when nothing is kept."""

    record: ResultRecord
    path: Path | None


@dataclass(frozen=True)
class LabRun:
    """All settings of one run, checked."""

    entry: CatalogEntry
    lab: Lab
    lab_config: Any
    target: str  # "engine", "sim" or a URL
    engine_config: EngineConfig
    gpu: str | None
    cache_dir: str | None
    store: ResultsStore | None  # None: keep nothing
    server: ServerRun | None = None  # how a server is used; None: no server
    typed: frozenset[str] = frozenset()  # fields of lab_config that a person set

    def open_target(self, bar: ProgressBar) -> OpenTarget:
        """What opens the run's target; several runs may share it, and with it the loaded model."""
        return open_target_factory(
            self.target, self.engine_config, gpu=self.gpu, cache_dir=self.cache_dir, progress=bar.loading, server=self.server
        )

    def execute(self, open_target: OpenTarget | None = None, bar: ProgressBar | None = None) -> FinishedRun:
        """Run the lab and save its record.

        open_target  of an earlier run with the same target and engine settings; None: a new one
        bar          shows the progress, also of loading what `open_target` opens; None: a new one

        Raises what the run raised; a note on the exception tells where the measurements made before it lie.
        Raises Interrupted after Ctrl-C. In both cases `finished_run` on the exception, if any, is the record.
        """
        started_at = utc_now()
        sources = source_hashes(self.entry.source_files)
        with bar or ProgressBar() as bar:
            # Before the store: a target that is refused leaves no folder behind.
            if open_target is None:
                open_target = self.open_target(bar)
            if self.store is not None:
                self.store.check_writable(self.entry.label)
            if self.target == "engine":
                with held_interrupts():
                    import_model_packages()
            session = RunSession(open_target, bar, self.typed)
            try:
                report = self.lab.run(session, self.lab_config)
                session.record(*report.measurements[len(session.measurements) :])
                outcome: BaseException | LabReport = report
            except (Exception, KeyboardInterrupt) as error:
                outcome = error
        record = self._record(session, outcome, started_at, sources)
        if isinstance(outcome, LabReport):
            return self._keep(record)
        if isinstance(outcome, KeyboardInterrupt):
            run = self._keep(record)
            error = Interrupted(f"interrupted after {_count(record)}{_where(run)}")
            error.finished_run = run  # type: ignore[attr-defined]
            raise error
        if record.measurements:
            run = self._keep(record)
            outcome.add_note(f"{_count(record)} before that{_where(run)}")
            outcome.finished_run = run  # type: ignore[attr-defined]
        raise outcome

    def _keep(self, record: ResultRecord) -> FinishedRun:
        try:
            return FinishedRun(record, None if self.store is None else self.store.save(record))
        except OSError as error:
            error.finished_run = FinishedRun(record, None)  # type: ignore[attr-defined]  # shown, if it cannot be kept
            raise

    def _record(
        self, session: RunSession, outcome: BaseException | LabReport, started_at: str, sources: dict[str, str]
    ) -> ResultRecord:
        if isinstance(outcome, LabReport):
            report = outcome
            status, error = _status(report, is_server=session.open_target.served is not None)
        else:
            report = LabReport(tuple(session.measurements), session.cache_state)
            error = _error_line(outcome)
            status = "interrupted" if isinstance(outcome, KeyboardInterrupt) else "failed"
        target = {
            "kind": session.open_target.kind,
            "gpu": self.gpu,
            "engine_config": None if self.server else self.engine_config,  # a server has its own
            "opened": session.opened,
        }
        if (isolation := session.open_target.isolation) is not None:
            target["isolation"] = isolation  # at the end: what was opened may have been refused a reset since
        return ResultRecord(
            run_id=new_run_id(),
            started_at=started_at,
            finished_at=utc_now(),
            environment=read_environment(),
            lab={"number": self.lab.number, "name": self.lab.name, "question": self.lab.question},
            sources=sources,
            lab_config=json_ready(session.lab_config or self.lab_config),
            target=without_home(json_ready(target)),
            status=status,
            error=error,
            cache_state=report.cache_state,
            measurements=tuple(report.measurements),
            findings=(*report.findings, *session.open_target.notes()),
            conclusion=report.conclusion,
            details=json_ready(report.details),
            charts=tuple(report.charts),
        )


def _status(report: LabReport, *, is_server: bool) -> tuple[str, str | None]:
    """How a lab that ran to its end ended, and what was wrong with it other than a prediction."""
    if not report.agrees:
        return "disagrees", None
    # Not a prediction was missed, and none was tested.
    return ("failed", UNCOUNTED) if is_server and not counts_hits(report.measurements) else ("ok", None)


def _error_line(error: BaseException) -> str | None:
    if isinstance(error, KeyboardInterrupt):
        return None
    # Our own messages hold no prompts; those of other libraries may quote what they were given.
    if isinstance(error, (EngineError, TargetError)):
        return without_home(f"{type(error).__name__}: {error}")
    return type(error).__name__


def _count(record: ResultRecord) -> str:
    number = len(record.measurements)
    return f"{number} measurement{'' if number == 1 else 's'}"


def _where(run: FinishedRun) -> str:
    return ", not saved" if run.path is None else f", saved in {run.path}"
