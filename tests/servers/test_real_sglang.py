"""Labs and probes on a real SGLang, one server after the other: pages of 1 and 16, with and without its reports."""

from __future__ import annotations

import os
import threading
import time

import httpx

from labs.theory import reuse
from tests.servers.labcli_process import probe, run_lab_04
from tests.servers.real_server import MODEL_NAME, needs_sglang, real_sglang

pytestmark = needs_sglang

PYTHON = os.environ.get("LABCLI_SGLANG_PYTHON", "")
SMALL = ("num_requests=3", "num_failing=2", "num_controls=1", "max_shift=4")
SMALLER = ("shared_tokens=320", "user_tokens=40", *SMALL)


def test_an_sglang_of_single_tokens_meets_every_prediction():
    with real_sglang(PYTHON) as url:
        lab, asked = run_lab_04(url, *SMALL), probe(url)
    assert (lab.exit_code, lab.missed) == (0, []), lab.errors
    assert lab.output["cache_state"] == "cold"
    assert set(lab.measured("later", "shared system prompt")) == {2_000}
    assert lab.measured("total", "repeat of 2,000 tokens") == [reuse(2_000, 2_000, 1)] == [1_999]
    assert asked.exit_code == 0, asked.output
    assert (asked.output["server"]["kind"], asked.output["server"]["unit_size"]) == ("sglang", 1)
    assert asked.output["own_rate"]["num_cached"] == asked.output["own_rate"]["expected"] > 0


def test_an_sglang_of_pages_that_reports_nothing_is_read_all_the_same():
    with real_sglang(PYTHON, page_size=16, cache_report=False, metrics=False) as url:
        lab, asked = run_lab_04(url, *SMALLER), probe(url)
    assert (lab.exit_code, lab.missed) == (0, []), lab.errors
    assert set(lab.measured("later", "shared system prompt")) == {320}
    told = " ".join(lab.output["findings"])
    assert "--enable-cache-report" in told
    assert "--enable-metrics" in told
    assert asked.exit_code == 1
    assert asked.verdict("usage")["state"] == "fault"
    assert "--enable-cache-report" in asked.verdict("usage")["next_step"]


def test_a_flush_that_is_refused_while_a_request_runs_is_not_taken_for_a_cold_cache():
    """Somebody else's request runs all the time: SGLang drops nothing, and the lab has to start cold by other means."""
    with real_sglang(PYTHON, page_size=16) as url:
        with _endless_request(url):
            assert httpx.post(url + "/flush_cache", timeout=30).status_code == 400
            lab = run_lab_04(url, *SMALLER)
    assert lab.exit_code == 0, lab.errors
    assert set(lab.measured("later", "shared system prompt")) == {320}
    assert lab.measured("first", "shared system prompt") == [0]


class _endless_request:
    """Somebody else's request, sent again and again until the end."""

    def __init__(self, url: str) -> None:
        self._url, self._over = url, threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> None:
        self._thread.start()
        time.sleep(2)  # until it runs

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(120)

    def _send(self) -> None:
        while not self._over.is_set():
            body = {"model": MODEL_NAME, "prompt": [1_000, 2_000, 3_000], "max_tokens": 7_000, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", self._url + "/v1/completions", json=body, timeout=None) as reply:
                for _ in reply.iter_lines():
                    if self._over.is_set():
                        return  # hangs up: the server ends the request
