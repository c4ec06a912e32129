"""Ctrl-C waits while something runs that must not be cut in two."""

import os
import signal
import threading

import pytest

from labcli.held_interrupts import held_interrupts


def test_an_interrupt_inside_is_raised_at_the_end():
    finished = []
    with pytest.raises(KeyboardInterrupt):
        with held_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            finished.append(True)
    assert finished
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_an_interrupt_nothing_is_raised_and_other_threads_may_use_it():
    with held_interrupts():
        pass
    thread = threading.Thread(target=lambda: held_interrupts().__enter__())
    thread.start()
    thread.join()
