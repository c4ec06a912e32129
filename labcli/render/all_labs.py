"""AllLabsTable: a line for each lab as it ends, and a closing one.

    lab  name                    predictions  cache   time
    04   prefix-cache-hit-rate     121 of 121  cold   8.2 s
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from labcli.all_labs_run import LabOutcome
from labcli.render.quantity import format_value

_WIDTH = 31  # of the longest lab's name; a longer one moves its line's columns


class AllLabsTable:
    """Prints while labs run; call `add` after each and `close` at the end."""

    def __init__(self, shown: bool = True, console: Console | None = None) -> None:
        self._shown = shown
        self._console = console or Console(highlight=False)
        self._outcomes: list[LabOutcome] = []

    def add(self, outcome: LabOutcome) -> None:
        if self._shown and not self._outcomes:
            self._line(f"{'lab':<5}{'name':<{_WIDTH}}{'predictions':>12}  {'cache':<12}{'time':>8}", "dim")
        self._outcomes.append(outcome)
        if not self._shown:
            return
        record = outcome.record
        met = cache = ""
        if record is not None:
            met = f"{record.num_predictions - len(record.missed):,} of {record.num_predictions:,}"
            cache = record.cache_state or ""
        name = f"{outcome.entry.number:02d}   {outcome.entry.name:<{_WIDTH}}"
        self._line(f"{name}{met:>12}  {cache:<12}{outcome.seconds:>6.1f} s", "" if outcome.is_good else "bold red")
        if outcome.failure:
            self._line(f"     {outcome.failure}" if outcome.failure == "interrupted" else f"     failed: {outcome.failure}", "red")
        for one in record.missed if record is not None else ():
            assert one.predicted is not None and one.deviating_sample is not None
            where = ", ".join(part for part in (one.group, one.row, one.name) if part)
            predicted, measured = (format_value(value, one.unit) for value in (one.predicted.value, one.deviating_sample))
            self._line(f"     not met: {where}: predicted {predicted}, measured {measured}", "red")

    def close(self) -> None:
        """The sum of all labs, and how to see their records."""
        if not self._shown or not self._outcomes:
            return
        records = [outcome.record for outcome in self._outcomes if outcome.record is not None]
        predictions = sum(record.num_predictions for record in records)
        met = predictions - sum(len(record.missed) for record in records)
        good = all(outcome.is_good for outcome in self._outcomes)
        seconds = sum(outcome.seconds for outcome in self._outcomes)
        self._console.print()
        failed = sum(bool(outcome.failure) for outcome in self._outcomes)
        self._line(
            f"{met:,} of {predictions:,} predictions met in {len(self._outcomes)} labs, {seconds:.1f} s"
            + (f"; {failed} did not end well" if failed else ""),
            "bold green" if good else "bold red",
        )
        saved = [outcome.path for outcome in self._outcomes if outcome.path is not None]
        if saved:
            folder = saved[0].parent.parent
            where = "" if str(folder) == "results" else f" --results-dir {folder}"
            self._line(f"one lab's report:      labcli results show {self._outcomes[0].entry.number:02d}{where}", "dim")
            self._line(f"all, with charts:      labcli results report{where}", "dim")

    def _line(self, text: str, style: str) -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)  # a line stays a line, to be searched and copied
