"""Record lookup: the file that a person means by a few letters.

latest, latest~1       the newest record, and the one before it
04, 4, hit-rate, 04~1  the newest record of a lab or bench, and the one before it
results/04-…/….json    a path
20260301T1425          the beginning of a file's name, with or without its folder, if only one begins so
3f2a9c01               the beginning of a run id, if only one begins so
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable

from labcli.fault import UsageFault
from labcli.results_store import ResultsStore, StoredRecord, head_of

ACCEPTED = "a path, the beginning of a file name or run id, latest, a lab (04, hit-rate), or one before its latest (04~1)"
_BEFORE = re.compile(r"(.+?)~(\d+)")


def lookup_record(store: ResultsStore, text: str, on_damaged: Callable[[Path, str], None]) -> StoredRecord:
    """The record that `text` names. Raises UsageFault for none, for several, and for a file that holds none."""
    wanted = text.strip()
    match = _BEFORE.fullmatch(wanted)
    name, before = (match[1], int(match[2])) if match else (wanted, 0)
    paths = store.find() if name == "latest" else _of_lab(store, name)
    if paths is not None:
        return _nth(store, paths, before, text, on_damaged)
    path = Path(wanted)
    if not path.is_file():
        path = _the_one(store, wanted, text)
    return _readable(store, path)


def lab_label(store: ResultsStore, lab: str) -> str | None:
    """The folder of a lab's records: by number, name or a part of the name that no other has; None for none.

    Raises UsageFault for several.
    """
    wanted = re.sub(r"^lab-?(?=\d)", "", lab.strip().lower().replace("_", "-"))
    labels = store.labels()
    if wanted.isdecimal():
        found = [label for label in labels if re.fullmatch(rf"0*{int(wanted)}-.+", label)] if len(wanted) <= 2 else []
    else:
        found = [label for label in labels if wanted in (label, re.sub(r"^\d+-", "", label))]
        found = found or [label for label in labels if wanted and wanted in label]
    if len(found) > 1:
        raise UsageFault(f"{lab!r} is part of several labs", ", ".join(found))
    return found[0] if found else None


def known_label(store: ResultsStore, lab: str) -> str | None:
    """As `lab_label`, but None only for a lab that exists and has no record. Raises UsageFault for no such lab."""
    label = lab_label(store, lab)
    if label is None and not _in_catalog(lab):
        raise UsageFault(f"no records of {lab!r} in {store.folder}", ", ".join(store.labels()) or "none: there are no records")
    return label


def _in_catalog(lab: str) -> bool:
    from labs.catalog import UnknownLab, lookup

    try:
        lookup(lab)
    except UnknownLab:
        return False
    return True


def _of_lab(store: ResultsStore, name: str) -> list[Path] | None:
    """A lab's records, newest first; None when the text names no lab."""
    label = lab_label(store, name)
    if label is not None:
        return store.find(label)
    return [] if _in_catalog(name) else None


def _nth(store: ResultsStore, paths: list[Path], before: int, text: str, on_damaged: Callable[[Path, str], None]) -> StoredRecord:
    readable = 0
    for stored in store.read(paths, on_damaged):
        if readable == before:
            return stored
        readable += 1
    if not readable:
        raise UsageFault(
            f"no record of {text!r} in {store.folder} yet",
            "one that labcli run-lab or a bench has kept; labcli results lists them",
        )
    there_are, accepted = ("the one there is", "~0") if readable == 1 else (f"the {readable} there are", f"~0 to ~{readable - 1}")
    raise UsageFault(f"{text!r} goes further back than {there_are} in {store.folder}", accepted)


def _the_one(store: ResultsStore, wanted: str, text: str) -> Path:
    paths = store.find()
    exact = [path for path in paths if wanted.removesuffix(".json") in (path.stem, _in_folder(path))]
    found = exact or [
        path
        for path in paths
        if wanted and (path.name.startswith(wanted) or _in_folder(path).startswith(wanted) or head_of(path)[0].startswith(wanted))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(map(_in_folder, found[:4])) + (", …" if len(found) > 4 else "")
        raise UsageFault(f"{text!r} {'names' if exact else 'begins'} {len(found)} records", f"more letters: {some}")
    raise UsageFault(f"no record {text!r} in {store.folder}", ACCEPTED)


def _in_folder(path: Path) -> str:
    """Two labs may have records of one name, a folder may not."""
    return f"{path.parent.name}/{path.stem}"


def _readable(store: ResultsStore, path: Path) -> StoredRecord:
    reasons: list[str] = []
    for stored in store.read([path], lambda _, reason: reasons.append(reason)):
        return stored
    reason, _, accepted = reasons[0].partition("; accepted: ")
    raise UsageFault(f"{path} holds no record: {reason}", accepted or "a record that labcli saved")
