"""Ctrl-C held back while something runs that must not be cut in two."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import Iterator


@contextmanager
def held_interrupts() -> Iterator[None]:
    """While inside, Ctrl-C waits; it is raised at the end.

    For importing torch and transformers: interrupted half-way, they break in ways that no handler can tell from a
    fault, or abort the process. Does nothing where there is nothing to hold: outside of the main thread, which alone
    gets interrupts, and in a process that ignores them.
    """
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    pending = False

    def note(_number: int, _frame: object) -> None:
        nonlocal pending
        pending = True

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if pending:
        raise KeyboardInterrupt
