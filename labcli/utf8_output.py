"""UTF-8 output: a whole text on stdout as bytes, whatever encoding the terminal has; for JSON and CSV."""

from __future__ import annotations

import errno
import sys


def write_utf8(text: str) -> None:
    """Write the text to stdout. Raises OSError when stdout is closed.

    Half a surrogate pair, which JSON may hold and UTF-8 may not, becomes \\udXXX: in a JSON text that is its escape.
    """
    if sys.stdout is None:  # what Python makes of a stdout that was closed before it started
        raise OSError(errno.EBADF, "it is closed", "stdout")
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", errors="backslashreplace"))
    sys.stdout.buffer.flush()
