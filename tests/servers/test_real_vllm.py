"""Labs and probes on a real vLLM, one server after the other: every count as predicted, and what a server hides is told."""

from __future__ import annotations

import os

from labs.theory import reuse
from tests.servers.labcli_process import probe, run_lab_04
from tests.servers.real_server import needs_vllm, real_vllm

pytestmark = needs_vllm

PYTHON = os.environ.get("LABCLI_VLLM_PYTHON", "")
SHORTER = ("num_failing=2", "num_controls=1", "max_shift=4")
SMALL = ("shared_tokens=320", "user_tokens=40", "num_requests=3", *SHORTER)
BLOCK_SIZE = 32


def test_a_vllm_that_tells_everything_meets_every_prediction():
    with real_vllm(PYTHON, block_size=BLOCK_SIZE) as url:
        lab, asked = run_lab_04(url, *SHORTER), probe(url)
    assert (lab.exit_code, lab.missed) == (0, []), lab.errors
    assert lab.output["cache_state"] == "cold"
    assert set(lab.measured("later", "shared system prompt")) == {reuse(2_000, 2_200, BLOCK_SIZE)} == {1_984}
    assert lab.measured("total", "repeat of 4,000 tokens") == lab.measured("counted", "repeat of 4,000 tokens") == [3_968]
    assert asked.exit_code == 0, asked.output
    assert (asked.output["server"]["kind"], asked.output["server"]["unit_size"]) == ("vllm", BLOCK_SIZE)
    assert asked.verdict("caching")["state"] == asked.verdict("usage")["state"] == "fine"
    assert asked.output["own_rate"]["num_cached"] == asked.output["own_rate"]["expected"] > 0


def test_a_vllm_that_tells_no_details_and_cannot_be_reset_is_read_by_its_counters():
    with real_vllm(PYTHON, block_size=BLOCK_SIZE, details=False, dev_mode=False) as url:
        lab, asked = run_lab_04(url, *SMALL), probe(url)
    assert (lab.exit_code, lab.missed) == (0, []), lab.errors
    told = " ".join(lab.output["findings"])
    assert "--enable-prompt-tokens-details" in told
    assert "VLLM_SERVER_DEV_MODE=1" in told
    assert asked.verdict("usage")["state"] == "fault"
    assert "--enable-prompt-tokens-details" in asked.verdict("usage")["next_step"]
    assert asked.exit_code == 1


def test_a_vllm_without_prefix_caching_is_named():
    with real_vllm(PYTHON, block_size=BLOCK_SIZE, prefix_caching=False) as url:
        lab, asked = run_lab_04(url, *SMALL), probe(url)
    assert lab.exit_code != 0
    assert "--no-enable-prefix-caching" in lab.errors
    assert len(lab.errors.strip().splitlines()) == 1
    verdict = asked.verdict("caching")
    assert (asked.exit_code, verdict["state"], verdict["confidence"]) == (1, "fault", "certain")
    assert "--no-enable-prefix-caching" in verdict["next_step"]
