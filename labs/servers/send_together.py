"""Several requests at once: threads that take one job after the other, and end together when one fails."""

from __future__ import annotations

import queue
import threading
from typing import Callable, Sequence, TypeVar

from labs.targets.base import TargetError

Job = TypeVar("Job")
Result = TypeVar("Result")


def send_together(jobs: Sequence[Job], send: Callable[[Job, threading.Event], Result], concurrency: int) -> list[Result]:
    """send(job, stop) of each job, at most `concurrency` at a time; results in the order of the jobs.

    The first exception ends the rest and is raised: `stop` is set, no job is begun any more, and nobody waits for
    those under way. So does Ctrl-C.
    """
    stop, lock, done = threading.Event(), threading.Lock(), queue.SimpleQueue()
    todo = iter(enumerate(jobs))

    def work() -> None:
        while not stop.is_set():
            with lock:
                index, job = next(todo, (None, None))
            if index is None:
                return
            try:
                done.put((index, send(job, stop), None))
            except BaseException as error:  # whatever it is, it belongs to who asked
                done.put((index, None, error))
                stop.set()
                return

    for _ in range(min(concurrency, len(jobs))):
        threading.Thread(target=work, name="labcli request", daemon=True).start()
    results: dict[int, Result] = {}
    try:
        while len(results) < len(jobs):
            index, result, error = done.get()
            if error is not None:
                raise error if isinstance(error, TargetError) else TargetError(f"a request failed ({type(error).__name__})")
            results[index] = result
    finally:
        stop.set()
    return [results[index] for index in range(len(jobs))]
