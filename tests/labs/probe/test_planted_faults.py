"""The probe against real HTTP: healthy servers of both flavors, and servers and gateways with one fault each."""

import threading
from contextlib import ExitStack

import httpx
import pytest

from labs.probe import repeat_series, side_series
from labs.probe.budget import ProbeLimits
from labs.probe.judgement import judge
from labs.probe.probe_run import ProbeSettings, probe
from labs.targets.base import TargetError
from labs.targets.server_address import ServerAddress
from labs.targets.server_client import SendLimits, ServerClient
from tests.engine.server.served import served
from tests.servers import gateways

pytest.importorskip("uvicorn")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No times, which say nothing on a simulated server; short pauses, and no prompts of thousands of tokens."""
    monkeypatch.setattr(side_series, "NUM_TIMED", 0)
    monkeypatch.setattr(repeat_series, "LADDER_LENGTHS", (65, 257, 1_025))
    monkeypatch.setattr(side_series, "MIN_PAUSE_S", 0.0)
    monkeypatch.setattr(repeat_series, "LATE_PAUSE_S", 0.0)


@pytest.fixture
def probed():
    """A probe of a server, behind a gateway if one is given: what was seen, and verdicts by name."""
    with ExitStack() as stack:

        def run(gateway=None, num_servers=1, settings=None, **fields):
            urls = [stack.enter_context(served(**fields)) for _ in range(num_servers)]
            url = urls[0] if gateway is None else stack.enter_context(gateways.fronted(*urls, gateway=gateway))
            limits = SendLimits(timeout_s=5)
            seen = probe(
                lambda: ServerClient(ServerAddress.of(url), limits=limits), ProbeSettings(**(settings or {}))
            )
            return seen, {one.name: one for one in judge(seen)}

        yield run


def state(verdicts, name):
    return (verdicts[name].state, verdicts[name].confidence) if name in verdicts else None


def faults(verdicts):
    return {name for name, one in verdicts.items() if one.is_fault}


HEALTHY = {
    "vllm": (None, {}),
    "sglang": (None, {"flavor": "sglang"}),
    "no tokenizer shown": (gateways.Hide("/tokenize"), {}),
    "no stream": (gateways.RefuseStreams(), {}),
    "text only": (gateways.Anonymous(takes_ids=False), {}),
    "chat only": (gateways.Hide(gateways.COMPLETIONS), {}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_server_has_no_fault(probed, name):
    gateway, fields = HEALTHY[name]
    seen, verdicts = probed(gateway, **fields)
    assert faults(verdicts) == set()
    assert (state(verdicts, "caching")[0], state(verdicts, "replicas")) == ("fine", ("fine", "strong"))
    assert seen.explanation is not None and seen.explanation.unit == fields.get(
        "block_size", fields.get("page_size", 1 if "flavor" in fields else 16)
    )
    assert not seen.failures and not seen.stopped


PLANTED = {
    "caching off": (None, {"enable_prefix_caching": False}, "caching", "certain"),
    "caching off, unannounced": (gateways.HideConfig(), {"enable_prefix_caching": False}, "caching", "strong"),
    "caching off, anonymous": (gateways.Anonymous(), {"enable_prefix_caching": False}, "caching", "weak"),
    "a salt for each request": (gateways.SaltEachRequest(), {}, "identity", "strong"),
    "a salt where none is sent": (gateways.SaltWhatHasNone(), {}, "identity", "strong"),
    "the salt is dropped": (gateways.DropSalt(), {}, "salts", "strong"),
    "the engine's keys leave the salt out": (None, {"leave_out_of_key": "salt"}, "salts", "strong"),
    "the salt is the prompt's hash": (gateways.SaltByContent(), {}, "shared", "strong"),
    "a counter in front": (gateways.PrependCounter(), {}, "front", "certain"),
    "a counter in front, ids hidden": (gateways.PrependCounter(shows_ids=False), {}, "front", "strong"),
    "a clock in the chat template": (gateways.ClockInChat(), {}, "chat", "certain"),
    "the opening token twice": (gateways.DoubleOpening(), {}, "bos", "certain"),
    "no usage": (gateways.StripUsage(), {}, "usage", "strong"),
    "not reported": (None, {"cache_report": False}, "usage", "certain"),
    "usage is always 0": (gateways.ReportCached(share=0), {}, "witnesses", "strong"),
    "more found than sent": (gateways.ReportCached(less=-1), {}, "impossible", "certain"),
    "the stream's usage is dropped": (gateways.StripStreamedUsage(), {}, "stream", "strong"),
    "some requests fail": (gateways.FailSometimes(every=7), {}, "replies", "strong"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(probed, name):
    gateway, fields, rule, sure = PLANTED[name]
    _, verdicts = probed(gateway, **fields)
    assert state(verdicts, rule) == ("fault", sure)
    also = {"shared": {"salts"}, "impossible": {"witnesses"}, "strangers": {"witnesses"}, "front": {"chat"}}
    assert faults(verdicts) - {rule} <= also.get(rule, set()), "nothing else is blamed"


@pytest.mark.parametrize("number", [2, 3])
def test_replicas_without_affinity_are_counted(probed, number):
    _, verdicts = probed(gateways.RoundRobin(), number)
    assert state(verdicts, "replicas") == ("fault", "strong") and f"About {number} caches" in verdicts["replicas"].finding
    assert faults(verdicts) == {"replicas"}


def test_replicas_with_affinity_are_expected_to_show_jumping_counters(probed):
    _, verdicts = probed(gateways.ByPrompt(), 2)
    assert state(verdicts, "replicas") == ("expected", "strong") and faults(verdicts) == set()


def test_a_clock_in_front_of_ids_is_told_from_replicas(probed, monkeypatch):
    monkeypatch.setattr(side_series, "MIN_PAUSE_S", 1.1)
    _, verdicts = probed(gateways.PrependClock(shows_ids=False))
    assert state(verdicts, "front") == ("fault", "strong") and "clock" in verdicts["front"].finding
    assert faults(verdicts) == {"front"}


def test_a_large_unit_is_measured_and_own_prompts_are_judged_by_it(probed):
    seen, verdicts = probed(prefix_match_unit=1_056, settings={"prompt_tokens": 900})
    assert seen.explanation.unit == 1_056
    assert state(verdicts, "unit")[0] == "fault" and faults(verdicts) == {"unit"}
    assert "900-token prompts share less than one unit of 1,056" in verdicts["unit"].finding
    _, verdicts = probed(prefix_match_unit=1_056)
    assert state(verdicts, "unit") == ("expected", "strong") and faults(verdicts) == set()


def test_a_unit_is_measured_without_an_announcement(probed):
    seen, _ = probed(gateways.HideConfig(), prefix_match_unit=528)
    assert (seen.facts.unit_size, seen.explanation.unit) == (None, 528)


def test_a_drafters_price_is_told_from_the_last_tokens(probed):
    seen, verdicts = probed(use_eagle=True)
    assert seen.explanation.has_drafter and state(verdicts, "drafter")[0] == "expected" and faults(verdicts) == set()
    _, verdicts = probed()
    assert "drafter" not in verdicts and state(verdicts, "aligned") == ("expected", "strong")


def test_sglangs_own_interface_tells_where_nothing_else_does(probed):
    seen, verdicts = probed(flavor="sglang", cache_report=False, metrics_endpoint=False)
    assert state(verdicts, "caching")[0] == "fine" and faults(verdicts) == {"usage", "metrics"}
    assert "/generate found" in " ".join(verdicts["usage"].evidence) and seen.explanation.unit == 1


def test_a_small_pool_is_found_with_stress_alone(probed):
    _, verdicts = probed(num_gpu_blocks=65)
    assert "pool" not in verdicts
    _, verdicts = probed(num_gpu_blocks=65, settings={"stress": True})
    assert state(verdicts, "pool") == ("fault", "strong") and faults(verdicts) == {"pool"}
    seen, verdicts = probed(num_gpu_blocks=513, settings={"stress": True})
    assert state(verdicts, "pool") == ("expected", "strong")
    assert seen.rungs[-1].tokens_between + 2 * 257 >= 8_192 > seen.rungs[-2].tokens_between


def test_other_traffic_is_told_and_disturbs_no_verdict(probed):
    with served() as url:
        done = threading.Event()

        def send():
            number = 0
            with httpx.Client(verify=False) as client:
                while not done.is_set():
                    number += 1
                    client.post(url + "/v1/completions", json={"prompt": [number % 900 + 10] * 64, "max_tokens": 1})

        other = threading.Thread(target=send)
        other.start()
        try:
            seen = probe(lambda: ServerClient(ServerAddress.of(url)), ProbeSettings())
        finally:
            done.set()
            other.join()
    verdicts = {one.name: one for one in judge(seen)}
    assert state(verdicts, "counters") == ("expected", "strong") and "Others send" in verdicts["counters"].finding
    assert faults(verdicts) == set()


# Limits, and servers that cannot be probed


def test_a_probe_that_is_cut_short_is_judged(probed):
    seen, verdicts = probed(settings={"limits": ProbeLimits(max_requests=12)})
    assert seen.num_requests <= 12 and seen.stopped == "12 requests were sent" and verdicts["caching"].state == "fine"
    assert faults(verdicts) == set()


def test_tokens_are_limited_too(probed):
    seen, _ = probed(enable_prefix_caching=False, settings={"limits": ProbeLimits(max_tokens=2_000)})
    assert sum(one.length for one in seen.sent) <= 2_000 and seen.stopped.startswith("prompts of ")


def test_no_prompt_is_sent_longer_than_the_server_takes(probed):
    seen, verdicts = probed(max_model_len=128, enable_prefix_caching=False)
    assert (
        max(one.length for one in seen.sent) <= 128 and not seen.failures and state(verdicts, "caching") == ("fault", "certain")
    )


def test_a_server_that_only_fails_is_one_line(probed):
    with pytest.raises(TargetError, match="500: upstream is gone"):
        probed(gateways.FailSometimes(every=1))


@pytest.mark.parametrize("field, value", [("max_seconds", 0), ("max_requests", 0), ("max_tokens", 0)])
def test_limits_are_checked(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}; accepted: "):
        ProbeLimits(**{field: value})


def test_settings_are_checked():
    with pytest.raises(ValueError, match="prompt_tokens is 0; accepted: "):
        ProbeSettings(prompt_tokens=0)
