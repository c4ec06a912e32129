"""`labcli probe` at servers that are ill: one line, or verdicts over what was answered; never a traceback, never a secret."""

from __future__ import annotations

import json
import re

import pytest

from labs.probe import counter_reader, patience, side_series
from tests.labs.servers.fake_server import FakeServer
from tests.servers.broken_server import broken
from tests.servers.illness import late, now_and_then
from tests.servers.illnesses import AT_THE_DOOR, HARMLESS, OF_COMPLETIONS, OF_ONE_WITNESS, OF_STREAMS
from tests.servers.labcli_run import Ended, labcli, only_line

KEY = 'sk-"very\\secret'
MIDDLE = 25  # completions after which the probe has seen repeats
AT_ONCE = [name for name in AT_THE_DOOR if not name.startswith(("never", "silent", "a byte", "processing"))]
SILENT = ("never answers", "a byte now and then", "a byte now and then, headers included", "comments only")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """None of these servers has a clock in front, or counts late."""
    monkeypatch.setattr(side_series, "MIN_PAUSE_S", 0.0)
    monkeypatch.setattr(counter_reader, "SETTLE_S", 0.02)
    monkeypatch.setattr(patience, "MAX_RETRY_S", 0.0)


def probed(url: str, *arguments: str, max_seconds: str = "20", key: str = "") -> Ended:
    ended = labcli("probe", url, "--max-seconds", max_seconds, *arguments, key=key)
    assert "Traceback" not in ended.stderr + ended.stdout
    assert key == "" or key not in ended.stderr + ended.stdout
    return ended


def verdicts_of(ended: Ended) -> dict[str, dict]:
    assert ended.stderr == ""
    return {verdict["name"]: verdict for verdict in json.loads(ended.stdout)["verdicts"]}


@pytest.mark.parametrize("name", AT_ONCE)
def test_an_ill_server_at_the_door_is_one_line(name):
    with broken(FakeServer(), AT_THE_DOOR[name]) as url:
        ended = probed(url)
    assert ended.exit_code == 1 and ended.stdout == ""
    assert "127.0.0.1" in only_line(ended.stderr)


@pytest.mark.parametrize("name", ["never answers", "a byte now and then, headers included"])
def test_a_server_that_takes_for_ever_is_left_when_the_time_is_over(name):
    with broken(FakeServer(), AT_THE_DOOR[name]) as url:
        ended = probed(url, max_seconds="1")
    assert ended.exit_code == 1 and "in time" in only_line(ended.stderr)


@pytest.mark.parametrize("name", [name for name in OF_COMPLETIONS if name not in SILENT])
def test_a_server_that_falls_ill_in_the_middle_is_a_fault_beside_what_was_seen_before(name):
    with broken(FakeServer(), late(OF_COMPLETIONS[name], MIDDLE)) as url:
        ended = probed(url, "--json", key=KEY)
    verdicts = verdicts_of(ended)
    assert ended.exit_code == 1 and "fault" in {verdict["state"] for verdict in verdicts.values()}
    assert json.loads(ended.stdout)["own_rate"]["num_cached"] > 0, "what was found before counts"


@pytest.mark.parametrize("name", SILENT)
def test_a_server_that_falls_silent_ends_the_probe_in_time_and_it_says_what_was_left_out(name):
    with broken(FakeServer(), late(OF_COMPLETIONS[name], MIDDLE)) as url:
        ended = probed(url, "--json", max_seconds="2")
    sent = json.loads(ended.stdout)["sent"]
    assert sent["stopped"] == "2 s passed" and "salts" in sent["left_out"] and sent["num_failed"] <= 1
    assert "fault" not in {verdict["state"] for name, verdict in verdicts_of(ended).items() if name != "replies"}


def test_each_fifth_reply_an_error_is_told_with_its_number():
    with broken(FakeServer(), now_and_then(OF_COMPLETIONS["500"], 5)) as url:
        verdict = verdicts_of(probed(url, "--json"))["replies"]
    assert verdict["state"] == "fault" and re.search(r"failed: \d+ of \d+", " ".join(verdict["evidence"]))


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("cached tokens are a text", "usage"),
        ("cached tokens are negative", "usage"),
        ("usage is a list", "usage"),
        ("metrics are NaN", "metrics"),
        ("metrics have other names", "metrics"),
        ("metrics in HTML", "metrics"),
        ("metrics truncated", "metrics"),
        ("counters begin again", "counters"),
    ],
)
def test_a_witness_that_talks_nonsense_is_named(name, verdict):
    with broken(FakeServer(), OF_ONE_WITNESS[name]) as url:
        verdicts = verdicts_of(probed(url, "--json"))
    assert verdicts[verdict]["state"] == "fault"
    assert not {"caching", "salt", "replicas"} & {found for found, one in verdicts.items() if one["state"] == "fault"}


@pytest.mark.parametrize("illness", [*HARMLESS.values(), OF_STREAMS["streams refused"]], ids=[*HARMLESS, "streams refused"])
def test_what_is_odd_but_harmless_is_no_fault(illness):
    with broken(FakeServer(), illness) as url:
        ended = probed(url, "--json", max_seconds="60")
    assert ended.exit_code == 0, ended.stdout
    assert "fault" not in {verdict["state"] for verdict in verdicts_of(ended).values()}


def test_a_key_that_no_header_can_hold_is_refused_without_showing_it():
    for key in ("ключ", "a\nb"):
        ended = labcli("probe", "http://127.0.0.1:9", key=key)
        assert ended.exit_code == 2 and "LABCLI_API_KEY" in only_line(ended.stderr) and key not in ended.stderr
