"""Labs and probes on a real SGLang, one server after the other: pages of 1 and 16, with and without its reports."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Callable, Iterator

import httpx

from labs.theory import reuse
from tests.servers.labcli_process import probe, run_lab_04, told_of_lab, told_of_probe
from tests.servers.real_server import MODEL_NAME, needs_sglang, real_sglang

pytestmark = needs_sglang

PYTHON = os.environ.get("LABCLI_SGLANG_PYTHON", "")
NUM_BALANCERS = 8


def test_an_sglang_of_single_tokens_meets_every_prediction(capsys):
    with real_sglang(PYTHON) as url:
        lab, asked = run_lab_04(url, "--set", "max_shift=8"), probe(url)
    with capsys.disabled():
        print(f"\n{told_of_lab(lab)}\n{told_of_probe(asked)}")
    assert (lab.exit_code, lab.missed, lab.output["cache_state"]) == (0, [], "cold"), lab.errors
    assert lab.measured("total", "shared system prompt") == lab.measured("counted", "shared system prompt") == [9 * 2_000]
    assert lab.measured("total", "repeat of 2,000 tokens") == [reuse(2_000, 2_000, 1)] == [1_999]
    assert not any("others use this server" in line or "may lower hits" in line for line in lab.output["findings"])
    assert (asked.exit_code, asked.faults) == (0, []), asked.output
    assert (asked.output["server"]["kind"], asked.output["server"]["unit_size"]) == ("sglang", 1)
    for name in ("caching", "usage", "metrics", "unit", "witnesses", "salts", "stream", "replicas"):
        assert asked.verdict(name)["state"] == "fine", asked.verdict(name)
    assert asked.output["own_rate"]["num_cached"] == asked.output["own_rate"]["expected"] > 0


def test_an_sglang_of_pages_that_reports_nothing_is_read_all_the_same(capsys):
    with real_sglang(PYTHON, page_size=16, cache_report=False, metrics=False) as url:
        lab, asked = run_lab_04(url, "--quick"), probe(url)
    with capsys.disabled():
        print(f"\nwithout --enable-cache-report and --enable-metrics: {told_of_lab(lab)}\n{told_of_probe(asked)}")
    assert (lab.exit_code, lab.missed, lab.output["cache_state"]) == (0, [], "cold"), lab.errors
    assert lab.measured("total", "shared system prompt") == [3 * 256]
    told = " ".join(lab.output["findings"])
    assert "--enable-cache-report" in told and "--enable-metrics" in told
    assert (asked.exit_code, set(asked.faults)) == (1, {"usage", "metrics"}), asked.output
    assert "--enable-cache-report" in asked.verdict("usage")["next_step"]
    assert "--enable-metrics" in asked.verdict("metrics")["next_step"]
    assert asked.verdict("caching")["state"] == asked.verdict("unit")["state"] == "fine"


def test_what_else_happens_on_a_server_is_told_from_the_lab_s_own(capsys):
    """First a balancer's health checks, which SGLang counts as computed tokens; then a request of somebody else."""
    with real_sglang(PYTHON, page_size=16) as url:
        with in_background(lambda over: check_health(url, over)):
            checked = run_lab_04(url, "--quick")
        with in_background(lambda over: generate_without_end(url, over)):
            refused = flushes_until_refused(url)
            shared = run_lab_04(url, "--quick")
    with capsys.disabled():
        print(f"\nbeside health checks: {told_of_lab(checked)}\nbeside another request: {told_of_lab(shared)}")
    for lab in (checked, shared):
        assert (lab.exit_code, lab.missed) == (0, []), lab.errors
        assert lab.measured("total", "shared system prompt") == [3 * 256]
    assert checked.measured("counted", "shared system prompt") == [3 * 256]
    told = " ".join(checked.output["findings"])
    assert "counts its own health checks" in told and "others use this server" not in told
    # A refused flush is not taken for a cold cache: the lab sends other ids, and proves that they are cold.
    assert refused.status_code == 400
    assert any("the cache could not be emptied" in line for line in shared.output["findings"])
    assert (shared.output["cache_state"], shared.measured("first", "shared system prompt")) == ("cold", [0])


@contextmanager
def in_background(act: Callable[[threading.Event], None]) -> Iterator[None]:
    """`act` in a thread of its own, told when it is over."""
    over = threading.Event()
    thread = threading.Thread(target=act, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(120)


def check_health(url: str, over: threading.Event) -> None:
    """As several balancers do, again and again.

    A check takes a second, and is computed only where it meets an idle server: one balancer alone may meet none in a whole run.
    """

    def balance() -> None:
        while not over.wait(0.05):
            httpx.get(url + "/health", timeout=60)

    with ThreadPoolExecutor(NUM_BALANCERS) as balancers:
        for one in [balancers.submit(balance) for _ in range(NUM_BALANCERS)]:
            one.result()


def generate_without_end(url: str, over: threading.Event) -> None:
    """Somebody else's request, sent again whenever it has ended; hangs up when it is over."""
    body = {"model": MODEL_NAME, "prompt": [1_000, 2_000, 3_000], "max_tokens": 7_000, "ignore_eos": True, "stream": True}
    while not over.is_set():
        with httpx.stream("POST", url + "/v1/completions", json=body, timeout=None) as reply:
            for _ in reply.iter_lines():
                if over.is_set():
                    return


def flushes_until_refused(url: str) -> httpx.Response:
    """The first refusal: the other request runs by then."""
    for _ in range(60):
        reply = httpx.post(url + "/flush_cache", timeout=30)
        if reply.status_code != 200:
            break
    return reply
