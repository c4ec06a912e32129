"""RequestProgress: how many of a batch of requests are done, as a bar on stderr."""

from __future__ import annotations

from typing import Callable


class RequestProgress:
    """A context that gives a function to call once per finished request; a bar on stderr if `shown`, else silent."""

    def __init__(self, total: int, shown: bool) -> None:
        self._total, self._shown, self._bar = total, shown, None

    def __enter__(self) -> Callable[[], None]:
        if not self._shown:
            return lambda: None
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        self._bar = Progress("requests", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True))
        task = self._bar.add_task("requests", total=self._total)
        self._bar.start()
        return lambda: self._bar.advance(task)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
