"""ProgressBar: what is running now, on the terminal's last line; silent where stderr is no terminal."""

from __future__ import annotations

import sys
from typing import Any


class ProgressBar:
    """One line on stderr that vanishes at the end. Use as a context manager; each time it starts anew.

    Two jobs share it: loading a model (`loading`), and the requests of a lab (`expect`, `advance`).
    """

    def __init__(self, shown: bool | None = None) -> None:
        """shown: None means exactly when stderr is a terminal."""
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._display: Any = None
        self._start_over()

    def __enter__(self) -> ProgressBar:
        self._start_over()
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._display = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None

    def _start_over(self) -> None:
        self._loading_task: Any = None
        self._request_task: Any = None
        self._num_expected = 0
        self._num_done = 0

    def loading(self, label: str, num_done: int, num_total: int) -> None:
        """Show how far the loading of a model is; it leaves the line when it is complete."""
        if self._display is None:
            return
        if self._loading_task is None:
            self._loading_task = self._display.add_task(label, total=num_total)
        self._display.update(
            self._loading_task, description=label, completed=num_done, total=num_total, visible=num_done < num_total
        )

    def expect(self, num_requests: int) -> None:
        """Announce more requests."""
        self._num_expected += num_requests

    def advance(self, label: str, num_requests: int) -> None:
        """Say what is running and count finished requests."""
        self._num_done += num_requests
        if self._display is None:
            return
        if self._request_task is None:
            self._request_task = self._display.add_task(label, total=self._num_expected)
        # A lab that announced too few still shows a sensible bar.
        total = max(self._num_expected, self._num_done)
        self._display.update(self._request_task, description=label, completed=self._num_done, total=total)
