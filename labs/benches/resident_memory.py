"""ResidentMemory: how much of this process is in memory, and how much more it was while something ran."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

SAMPLE_INTERVAL_S = 0.002


@dataclass(frozen=True)
class MemoryGrowth:
    """Bytes above what was resident before a run: at its highest, and after it."""

    peak_bytes: int
    kept_bytes: int


def resident_bytes() -> int | None:
    """Bytes of this process that are in memory now; None where the system does not say (outside Linux)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def memory_growth(run: Callable[[], object]) -> MemoryGrowth | None:
    """Runs it, looking at the memory every few milliseconds; None where the system does not say."""
    before = resident_bytes()
    if before is None:
        run()
        return None
    highest, ended = before, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not ended.wait(SAMPLE_INTERVAL_S):
            highest = max(highest, resident_bytes() or 0)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        run()
    finally:
        ended.set()
        watcher.join()
    after = resident_bytes() or 0
    return MemoryGrowth(max(highest, after) - before, after - before)
