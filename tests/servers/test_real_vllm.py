"""Labs and probes on a real vLLM, one server after the other: every count as predicted, and what a server hides is told."""

from __future__ import annotations

import os

from labs.theory import reuse
from tests.servers.labcli_process import probe, run_lab_04, told_of_lab, told_of_probe
from tests.servers.real_server import needs_vllm, real_vllm

pytestmark = needs_vllm

PYTHON = os.environ.get("LABCLI_VLLM_PYTHON", "")
BLOCK_SIZE = 32
FEWER = ("--set", "num_failing=2", "--set", "num_controls=1", "--set", "max_shift=4")


def test_a_vllm_that_tells_everything_meets_every_prediction(capsys):
    with real_vllm(PYTHON, block_size=BLOCK_SIZE) as url:
        lab, asked, hurried = run_lab_04(url, *FEWER), probe(url), probe(url, max_seconds=15)
    with capsys.disabled():
        print(f"\n{told_of_lab(lab)}\n{told_of_probe(asked)}\nin a hurry: {told_of_probe(hurried)}")
    assert (lab.exit_code, lab.missed, lab.output["cache_state"]) == (0, [], "cold"), lab.errors
    assert set(lab.measured("later", "shared system prompt")) == {reuse(2_000, 2_200, BLOCK_SIZE)} == {1_984}
    assert lab.measured("total", "repeat of 4,000 tokens") == lab.measured("counted", "repeat of 4,000 tokens") == [3_968]
    assert not any("others use this server" in line or "may lower hits" in line for line in lab.output["findings"])
    assert (asked.exit_code, asked.faults) == (0, []), asked.output
    assert (asked.output["server"]["kind"], asked.output["server"]["unit_size"]) == ("vllm", BLOCK_SIZE)
    for name in ("caching", "usage", "metrics", "unit", "witnesses", "salts", "stream", "replicas"):
        assert asked.verdict(name)["state"] == "fine", asked.verdict(name)
    assert asked.output["own_rate"]["num_cached"] == asked.output["own_rate"]["expected"] > 0
    # A server that is only slow has no fault, and what there was no time for, if anything, is named.
    assert (hurried.exit_code, hurried.faults) == (0, []), hurried.output
    assert hurried.output["sent"]["left_out"] or not hurried.output["sent"]["stopped"]


def test_a_vllm_that_tells_no_details_and_cannot_be_reset_is_read_by_its_counters(capsys):
    with real_vllm(PYTHON, block_size=BLOCK_SIZE, details=False, dev_mode=False) as url:
        lab, asked = run_lab_04(url, "--quick"), probe(url)
    with capsys.disabled():
        print(f"\nwithout --enable-prompt-tokens-details and dev mode: {told_of_lab(lab)}\n{told_of_probe(asked)}")
    assert (lab.exit_code, lab.missed, lab.output["cache_state"]) == (0, [], "cold"), lab.errors
    assert lab.measured("counted", "shared system prompt") == [3 * 256]
    told = " ".join(lab.output["findings"])
    assert "--enable-prompt-tokens-details" in told and "VLLM_SERVER_DEV_MODE=1" in told
    assert (asked.exit_code, asked.faults) == (1, ["usage"]), asked.output
    assert "--enable-prompt-tokens-details" in asked.verdict("usage")["next_step"]
    assert asked.verdict("caching")["state"] == "fine"


def test_a_vllm_without_prefix_caching_is_named(capsys):
    with real_vllm(PYTHON, block_size=BLOCK_SIZE, prefix_caching=False) as url:
        lab, asked = run_lab_04(url, "--quick"), probe(url)
    with capsys.disabled():
        print(f"\nwith --no-enable-prefix-caching: {lab.errors.strip()}\n{told_of_probe(asked)}")
    assert lab.exit_code == 1
    assert "--no-enable-prefix-caching" in lab.errors and len(lab.errors.strip().splitlines()) == 1
    verdict = asked.verdict("caching")
    assert (asked.exit_code, asked.faults, verdict["confidence"]) == (1, ["caching"], "certain"), asked.output
    assert "--no-enable-prefix-caching" in verdict["next_step"]
