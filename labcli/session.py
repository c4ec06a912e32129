"""RunSession: what a running lab talks to; it keeps every finished measurement, come what may."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from labcli.progress_bar import ProgressBar
from labcli.record import json_ready
from labs.protocol import Measurement
from labs.targets.base import OpenTarget, Target


class RunSession:
    """The LabSession of one run.

    measurements   what the lab recorded, in its order
    cache_state    the last state the lab reported
    opened         what each engine the lab opened says of itself, without repetitions
    typed          fields of the lab's configuration that a person set
    lab_config     as the lab fitted it to a server; None: it runs as it was given
    """

    def __init__(self, open_target: OpenTarget, progress_bar: ProgressBar, typed: frozenset[str] = frozenset()) -> None:
        self.open_target: OpenTarget = _NotingOpenTarget(open_target, self)
        self.typed = typed
        self.measurements: list[Measurement] = []
        self.cache_state = "uncontrolled"
        self.opened: list[dict[str, Any]] = []
        self.lab_config: Any = None
        self._progress_bar = progress_bar

    def record(self, *measurements: Measurement) -> None:
        """Keep finished measurements. Raises RecordError for one that no record could hold."""
        for measurement in measurements:
            json_ready(measurement)  # found here, beside its cause, and not when a long run's record is written
        self.measurements.extend(measurements)

    def cold(self, state: str) -> None:
        self.cache_state = state

    def fitted(self, config: Any) -> None:
        self.lab_config = config

    def expect(self, num_requests: int) -> None:
        self._progress_bar.expect(num_requests)

    def progress(self, label: str, num_requests: int = 1) -> None:
        self._progress_bar.advance(label, num_requests)


class _NotingOpenTarget:
    """Opens targets as the one inside does, and notes what was opened for the record."""

    def __init__(self, inside: OpenTarget, session: RunSession) -> None:
        self._inside = inside
        self._session = session
        self.kind = inside.kind
        self.served = inside.served

    @property
    def isolation(self) -> str | None:
        return self._inside.isolation

    def notes(self) -> tuple[str, ...]:
        return self._inside.notes()

    def __call__(self, **engine_fields: Any) -> Target:
        target = self._inside(**engine_fields)
        info = asdict(target.info)
        if info not in self._session.opened:
            self._session.opened.append(info)
        return target
