"""The results store: a folder of records, one JSON file a run.

    <results>/<lab>/<utc>_<machine>_<commit>.json
    results/04-prefix-cache-hit-rate/20260301T142501Z_1f0c9a3e_4b825dc6.json

A record appears under its name whole or not at all, and never takes the place of another. A file that holds no
record stops nobody: whoever reads many records is told its name and goes on.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Callable, Iterable, Iterator

from labcli.fault import UsageFault
from labcli.record import RecordError, ResultRecord
from labcli.whole_file import link_new, partial_file, remove_leftovers

_HEAD_BYTES = 512  # of a file: a record's run id and start stand at its beginning


@dataclass(frozen=True)
class StoredRecord:
    """A record and the file it was read from."""

    path: Path
    record: ResultRecord


class ResultsStore:
    """Saves, loads and finds records below one folder. Raises OSError naming the path it could not use."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Raises UsageFault for a folder without a name."""
        if not str(folder).strip():
            raise UsageFault(f"--results-dir is {str(folder)!r}", "a folder")
        self.folder = Path(folder)

    def check_writable(self, label: str) -> None:
        """Make the folder if need be, and write a file there once, and in the lab's; before a run, not after it."""
        lab_folder = self.folder / label
        for folder in (self.folder, lab_folder):
            try:
                if folder != lab_folder:
                    folder.mkdir(parents=True, exist_ok=True)
                elif not folder.exists():
                    continue  # made when there is something to put into it
                with tempfile.TemporaryFile(dir=folder):
                    pass
            except OSError as error:
                raise type(error)(error.errno, _reason(error), str(folder)) from None

    def save(self, record: ResultRecord) -> Path:
        """Write the record and give its path."""
        text = record.to_json()
        folder = self.folder / record.label
        try:
            return self._save(text, folder, _file_stem(record))
        except OSError as error:
            raise type(error)(error.errno, _reason(error), str(folder)) from error

    def _save(self, text: str, folder: Path, stem: str) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        with partial_file(folder, text, ".json") as partial:
            counter = 1
            while True:  # a counter when two runs start in the same second
                path = folder / (f"{stem}.json" if counter == 1 else f"{stem}_{counter}.json")
                try:
                    link_new(partial, path)
                    return path
                except FileExistsError:
                    counter += 1

    def load(self, path: str | os.PathLike[str]) -> ResultRecord:
        """Read one record. Raises RecordError when the file holds none, OSError when it cannot be read."""
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a pipe would wait for who writes into it
            raise RecordError("not a regular file")
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise RecordError("not a text in UTF-8") from None
        return ResultRecord.from_json(text)

    def read(self, paths: Iterable[Path], on_damaged: Callable[[Path, str], None]) -> Iterator[StoredRecord]:
        """The records of the paths, one at a time; `on_damaged` hears of each file that holds none, and why."""
        for path in paths:
            try:
                record = self.load(path)
            except RecordError as error:
                on_damaged(path, str(error))
            except OSError as error:
                on_damaged(path, error.strerror or type(error).__name__)
            else:
                yield StoredRecord(path, record)

    def find(self, label: str = "*") -> list[Path]:
        """Paths of all records of a lab ("04-prefix-cache-hit-rate"; all labs by default), newest first."""
        if self.folder.exists() and not self.folder.is_dir():
            raise UsageFault(f"--results-dir is {self.folder}, which is no folder", "a folder of records")
        paths = sorted(self.folder.glob(f"{label}/[!.]*.json"), key=_age_key)
        in_order: list[Path] = []
        for _, one_second in groupby(paths, key=_second):
            same = list(one_second)
            # A file's name has seconds; only where two share one is the file asked for the rest (sorting keeps the order).
            in_order += same if len(same) == 1 else sorted(same, key=lambda path: head_of(path)[1])
        return in_order[::-1]

    def labels(self) -> list[str]:
        """Folders that hold records, by name."""
        return sorted({path.parent.name for path in self.find()})


def head_of(path: Path) -> tuple[str, str]:
    """A record's run id and start, from the first lines of its file alone; empty texts where they are not there."""
    try:
        if not path.is_file():
            return "", ""
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return "", ""
    run_id = re.search(r'"run_id":\s*"([0-9a-f]+)"', head)
    started_at = re.search(r'"started_at":\s*"([^"\\]+)"', head)
    return run_id[1] if run_id else "", started_at[1] if started_at else ""


def _second(path: Path) -> str:
    return path.stem.partition("_")[0]


def _age_key(path: Path) -> tuple[str, int, str, str]:
    """Start of the run by the file's name, then the counter of runs whose names would be equal; then any fixed order."""
    counter = path.stem.split("_")[3:]
    return _second(path), int(counter[0]) if counter and counter[0].isdecimal() else 1, path.name, path.parent.name


def _file_stem(record: ResultRecord) -> str:
    utc = record.started_at.partition(".")[0].partition("+")[0].rstrip("Z").replace("-", "").replace(":", "") + "Z"
    commit = (record.environment.get("commit") or "nocommit")[:8]
    return f"{utc}_{record.environment.get('machine') or 'unknown'}_{commit}"


def _reason(error: OSError) -> str:
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return "not a folder; accepted: --results-dir with a folder that can be written, or --no-save"
    return f"{error.strerror}; accepted: --results-dir with a folder that can be written, or --no-save"
