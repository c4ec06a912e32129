"""The catalog of labs: every file `labs/lab_NN_topic.py`, found by its name.

A lab is known by its number ("04", "4"), by its name ("prefix-cache-hit-rate") or by a part of the name that no
other lab has ("hit-rate"). Looking one up imports that file alone, and listing imports no torch: labs import
it, if at all, when they run.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass
from pathlib import Path

import labs
from labs.protocol import Lab

_FILE_NAME = re.compile(r"lab_(\d\d)_([a-z0-9_]+)")


# Folders of labs/ whose files decide predictions and steps; the others hold benches, peers and what diagnoses requests.
_SHARED_ROOMS = ("", "laws/", "scenarios/", "targets/", "watch/")


class UnknownLab(ValueError):
    """No lab, or more than one, goes by the name asked for; the message lists the accepted ones."""


@dataclass(frozen=True)
class CatalogEntry:
    """A lab's file, not loaded yet."""

    number: int
    name: str  # "prefix-cache-hit-rate"
    module_name: str  # "labs.lab_04_prefix_cache_hit_rate"
    path: Path

    @property
    def label(self) -> str:
        """Number and name: what people and folders call it."""
        return f"{self.number:02d}-{self.name}"

    @property
    def source_files(self) -> dict[str, Path]:
        """The files that decide predictions and steps, by their name in a record: the lab's own, and all that labs share."""
        files = {f"labs/{self.path.name}": self.path}
        folder = Path(labs.__file__).parent
        for path in sorted(path for room in _SHARED_ROOMS for path in folder.glob(f"{room}*.py")):
            if not _FILE_NAME.fullmatch(path.stem):
                files[f"labs/{path.relative_to(folder).as_posix()}"] = path
        return files

    def load(self) -> Lab:
        """Import the file and give its LAB."""
        lab = importlib.import_module(self.module_name).LAB
        assert (lab.number, lab.name) == (self.number, self.name), (
            f"{self.path.name} holds lab {lab.number} {lab.name!r}: the file name must say the same"
        )
        return lab


def find_labs() -> list[CatalogEntry]:
    """All labs, by number; none of them is imported."""
    entries = []
    for module in pkgutil.iter_modules(labs.__path__):
        match = _FILE_NAME.fullmatch(module.name)
        if match and not module.ispkg:
            path = Path(module.module_finder.path) / f"{module.name}.py"
            name = match[2].replace("_", "-")
            entries.append(CatalogEntry(int(match[1]), name, f"labs.{module.name}", path))
    return sorted(entries, key=lambda entry: (entry.number, entry.name))


def lookup(text: str) -> CatalogEntry:
    """The one lab that `text` names. Raises UnknownLab."""
    entries = find_labs()
    wanted = text.strip().lower().replace("_", "-")
    wanted = re.sub(r"^lab-?(?=\d)", "", wanted)  # "lab04", "lab-04-prefix-cache-hit-rate"
    if wanted.isdecimal():
        found = [entry for entry in entries if entry.number == int(wanted)]
    else:
        found = [entry for entry in entries if wanted in (entry.name, entry.label)]
        found = found or [entry for entry in entries if wanted and wanted in entry.label]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownLab(f"{text!r} is part of several labs; accepted: one of {_names(found)}")
    raise UnknownLab(f"no lab {text!r}; accepted: {_names(entries)}")


def _names(entries: list[CatalogEntry]) -> str:
    return ", ".join(f"{entry.number:02d} {entry.name}" for entry in entries) or "none: no lab is installed"
