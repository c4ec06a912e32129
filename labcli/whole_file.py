"""Whole file: a text that appears under its name whole or not at all, whatever ends the process that writes it.

.partial-xxxx   written and flushed to the disk   ──▶   name, by one system call

new_file        links the finished file to a name that is free: of many processes, one gets it
replace_file    puts it in the place of the file that had the name
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

PARTIAL_PREFIX = ".partial-"
_DAY_S = 24 * 3600


def new_file(path: Path, text: str) -> None:
    """Write a file that does not exist yet. Raises FileExistsError where the name is taken, OSError for the rest."""
    with _named_in_errors(path), partial_file(path.parent, text, path.suffix) as partial:
        link_new(partial, path)


def replace_file(path: Path, text: str) -> None:
    """Write a file, over the one that has its name if any. Raises OSError."""
    with _named_in_errors(path), partial_file(path.parent, text, path.suffix) as partial:
        os.replace(partial, path)
        _sync_folder(path.parent)


@contextmanager
def _named_in_errors(path: Path) -> Iterator[None]:
    """Errors name the file that was asked for, not the unfinished one beside it."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error


@contextmanager
def partial_file(folder: Path, text: str, suffix: str) -> Iterator[str]:
    """The path of a finished file without its name; gone at the end of the block, if it was not given one."""
    descriptor, partial = tempfile.mkstemp(dir=folder, prefix=PARTIAL_PREFIX, suffix=suffix)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", errors="backslashreplace"))  # half a surrogate pair: \udXXX, as JSON has it
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, 0o644)  # mkstemp's files are for their owner alone
        yield partial
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def link_new(partial: str, path: Path) -> None:
    """Give a finished file a name that is free. Raises FileExistsError where it is taken."""
    try:
        os.link(partial, path)  # fails where the name is taken; a rename would replace that file
    except FileExistsError:
        raise
    except OSError:
        _rename_new(partial, path)
    _sync_folder(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Unlink unfinished files of processes that were killed; a day old, so that none of them is still being written."""
    for path in folder.glob(f"{PARTIAL_PREFIX}*"):
        try:
            if time.time() - path.stat().st_mtime > _DAY_S:
                path.unlink()
        except OSError:
            continue  # another process was faster, or it is not ours to remove


def _rename_new(partial: str, path: Path) -> None:
    """The same on a file system without hard links: the name is reserved while it is looked at and given."""
    reserved = path.parent / f"{PARTIAL_PREFIX}{path.name}.reserved"
    os.close(os.open(reserved, os.O_CREAT | os.O_EXCL))
    try:
        if path.exists():
            raise FileExistsError(errno.EEXIST, "File exists", str(path))
        os.replace(partial, path)
    finally:
        reserved.unlink()


def _sync_folder(folder: Path) -> None:
    """The folder's entry on the disk too, where a folder can be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
