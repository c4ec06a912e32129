"""Several requests at once end together, and never more than asked for run."""

from __future__ import annotations

import threading
import time

import pytest

from labs.servers.send_together import send_together
from labs.targets.base import TargetError


def test_jobs_run_at_most_so_many_at_once_and_come_back_in_order():
    running, most, lock = [0], [0], threading.Lock()

    def work(job, stop):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.002)
        with lock:
            running[0] -= 1
        return job * 10

    assert send_together(range(20), work, 4) == [job * 10 for job in range(20)]
    assert 1 < most[0] <= 4 and send_together([], work, 4) == []


def test_the_first_failure_ends_the_rest():
    begun = []

    def work(job, stop):
        begun.append(job)
        if job == 2:
            raise TargetError("request 2 failed")
        stop.wait(5)
        raise TargetError("stopped")

    with pytest.raises(TargetError, match="request 2 failed"):
        send_together(range(50), work, 3)
    assert len(begun) <= 4  # and nobody waited for those under way
    with pytest.raises(TargetError, match=r"a request failed \(ZeroDivisionError\)"):
        send_together([1], lambda job, stop: 1 / 0, 1)
