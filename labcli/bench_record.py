"""BenchRecorder: keeps the record of a bench, whatever way the bench ends."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Iterator, Sequence

from labcli.environment import read_environment, without_home
from labcli.fault import Interrupted
from labcli.record import ResultRecord
from labcli.results_store import ResultsStore
from labcli.run_identity import new_run_id, source_hashes, utc_now
from labs.protocol import Measurement

# What decides how fast the engine is; kernels.cpp among them.
ENGINE_SOURCES = tuple(
    Path(__file__).resolve().parent.parent / "engine" / "model" / name
    for name in (
        "attention.py", "attention_pieces.py", "decoder.py", "kv_tensors.py", "linear.py", "model_runner.py",
        "native_decoder.py", "native_kernels.py", "native/kernels.cpp",
    )
)  # fmt: skip


@dataclass
class BenchRecorder:
    """One run's record.

    name          of the bench, and of the folder its record lies in
    measurements  gives what is measured so far
    conditions    gives the record's lab_config, target, details, cache_state
    """

    name: str
    question: str
    store: ResultsStore | None  # None: keep nothing
    sources: Sequence[ModuleType | Path]  # modules, and files of this repository
    measurements: Callable[[], list[Measurement]]
    conditions: Callable[[], dict[str, Any]]
    started_at: str = field(default_factory=utc_now)

    @contextmanager
    def keeping_what_was_measured(self, finished: Any) -> Iterator[None]:
        """Sets `record` and `path` of `finished` at the end of the block.

        An error inside is raised again with a note on where the measurements are; Ctrl-C becomes Interrupted.
        """
        try:
            yield
        except KeyboardInterrupt:
            self._keep(finished, "interrupted")
            where = f"saved in {finished.path}" if finished.path else "not saved"
            raise Interrupted(f"interrupted; what was measured is {where}") from None
        except Exception as error:
            if self.measurements():
                self._keep(finished, "failed", type(error).__name__)
                error.add_note(f"what was measured before that is {f'saved in {finished.path}' if finished.path else 'not saved'}")
            raise
        self._keep(finished, "ok")

    def _keep(self, finished: Any, status: str, error: str | None = None) -> None:
        measurements = self.measurements()
        if status == "ok" and any(one.agrees is False for one in measurements):
            status = "disagrees"
        conditions = self.conditions()
        finished.record = ResultRecord(
            run_id=new_run_id(),
            started_at=self.started_at,
            finished_at=utc_now(),
            environment=read_environment(),
            lab={"number": None, "name": self.name, "question": self.question},
            sources=source_hashes(dict(map(_named_file, self.sources))),
            status=status,
            error=error,
            measurements=tuple(measurements),
            findings=tuple(finished.notes),
            **without_home(conditions),
        )
        if self.store is not None:
            finished.path = self.store.save(finished.record)


def _named_file(source: ModuleType | Path) -> tuple[str, str]:
    """The name that a record calls a source file by, and where it is."""
    if isinstance(source, Path):
        return str(source.relative_to(Path(__file__).resolve().parent.parent)), str(source)
    return f"{source.__name__.replace('.', '/')}.py", source.__file__ or ""
