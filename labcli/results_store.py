"""The results store: a folder of records, one JSON file a run.

    <results>/<lab>/<utc>_<machine>_<commit>.json
    results/04-prefix-cache-hit-rate/20260301T142501Z_1f0c9a3e_4b825dc6.json

A record appears under its name whole or not at all, and never takes the place of another.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from labcli.record import ResultRecord


class ResultsStore:
    """Saves, loads and finds records below one folder. Raises OSError naming the path it could not use."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
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
        descriptor, partial = tempfile.mkstemp(dir=folder, prefix=".partial-", suffix=".json")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(partial, 0o644)  # mkstemp's files are for their owner alone
            return _publish(partial, folder, stem)
        finally:
            if os.path.exists(partial):
                os.unlink(partial)

    def load(self, path: str | os.PathLike[str]) -> ResultRecord:
        """Read one record. Raises RecordError when the file holds none."""
        return ResultRecord.from_json(Path(path).read_text(encoding="utf-8"))

    def find(self, label: str = "*") -> list[Path]:
        """Paths of all records of a lab ("04-prefix-cache-hit-rate"; all labs by default), newest first."""
        return sorted(self.folder.glob(f"{label}/[!.]*.json"), key=lambda path: path.name, reverse=True)


def _publish(partial: str, folder: Path, stem: str) -> Path:
    """Give the finished file its name, with a counter when two runs end in the same second."""
    counter = 1
    while True:
        path = folder / (f"{stem}.json" if counter == 1 else f"{stem}_{counter}.json")
        try:
            os.link(partial, path)  # fails where the name is taken; a rename would replace that record
            return path
        except FileExistsError:
            counter += 1
        except OSError:
            if path.exists():
                counter += 1
                continue
            os.replace(partial, path)  # a file system without hard links
            return path


def _file_stem(record: ResultRecord) -> str:
    utc = record.started_at.partition(".")[0].partition("+")[0].rstrip("Z").replace("-", "").replace(":", "") + "Z"
    commit = (record.environment.get("commit") or "nocommit")[:8]
    return f"{utc}_{record.environment.get('machine') or 'unknown'}_{commit}"


def _reason(error: OSError) -> str:
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return "not a folder; accepted: --results-dir with a folder that can be written, or --no-save"
    return f"{error.strerror}; accepted: --results-dir with a folder that can be written, or --no-save"
