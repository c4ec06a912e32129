"""The probe against real HTTP: healthy servers of both flavors, and servers and gateways with one fault each."""

import itertools
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace

import httpx
import pytest
from starlette.responses import JSONResponse

from labs.probe import asker, repeat_series, side_series
from labs.probe.budget import ProbeLimits
from labs.probe.judgement import judge
from labs.probe.probe_run import ProbeSettings, probe
from labs.probe.sent import CHAT, LATE, SHARED, TIMING
from labs.servers.server_address import ServerAddress
from labs.servers.server_client import SendLimits, ServerClient
from labs.targets.base import TargetError
from tests.engine.server.served import served
from tests.servers.gateways import fronts, reports, salts, traffic
from tests.servers.gateways.gateway import COMPLETIONS, Gateway, fronted

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def probed(servers):
    """A probe of a server, behind a gateway if one is given: what was seen, and verdicts by name."""
    with ExitStack() as stack:

        def run(gateway=None, num_servers=1, settings=None, **fields):
            urls = [servers(number, fields) for number in range(num_servers)]
            url = urls[0] if gateway is None else stack.enter_context(fronted(*urls, gateway=gateway))
            limits = SendLimits(timeout_s=min(5.0, (settings or {}).get("limits", ProbeLimits()).max_seconds))
            seen = probe(lambda: ServerClient(ServerAddress.of(url), limits=limits), ProbeSettings(**(settings or {})))
            return seen, {one.name: one for one in judge(seen)}

        yield run


def state(verdicts, name):
    return (verdicts[name].state, verdicts[name].confidence) if name in verdicts else None


def faults(verdicts):
    return {name for name, one in verdicts.items() if one.is_fault}


class BareServer(traffic.RefuseStreams):
    hidden = ("/tokenize",)


ABREAST = {"pace": 10.0}  # slow enough for requests that begin together to be under way together

HEALTHY = {
    "vllm": (None, {}),
    "sglang": (None, {"flavor": "sglang"}),
    "no tokenizer, no stream": (BareServer(), {}),
    "a system message in front of texts": (fronts.SystemMessage(), {}),
    "a salt, a text and a chat that miss once": (salts.MissOnce(), {}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_server_has_no_fault(probed, name):
    gateway, fields = HEALTHY[name]
    seen, verdicts = probed(gateway, **ABREAST, **fields)
    assert faults(verdicts) == set()
    assert (state(verdicts, "caching")[0], state(verdicts, "replicas")) == ("fine", ("fine", "strong"))
    assert seen.explanation is not None and seen.explanation.unit == fields.get(
        "block_size", fields.get("page_size", 1 if "flavor" in fields else 16)
    )
    assert not seen.failures and not seen.stopped
    assert "drafter" not in verdicts
    if name == "vllm":
        assert state(verdicts, "aligned") == ("expected", "strong")


PLANTED = {
    "caching off": (None, {"enable_prefix_caching": False}, "caching", "certain"),
    "caching off, unannounced": (reports.HideConfig(), {"enable_prefix_caching": False}, "caching", "strong"),
    "a salt for each request": (salts.SaltEachRequest(), {}, "identity", "strong"),
    "the salt is dropped": (salts.DropSalt(), {}, "salts", "strong"),
    "the salt is dropped from chat": (salts.DropSaltInChat(), {}, "salts", "strong"),
    "the salt is the prompt's hash": (salts.SaltByContent(), {}, "shared", "strong"),
    "a counter in front": (fronts.PrependCounter(), {}, "front", "certain"),
    "a clock in the chat template": (fronts.ClockInChat(), {}, "chat", "certain"),
    "the opening token twice": (fronts.DoubleOpening(), {}, "bos", "certain"),
    "no usage": (reports.StripUsage(), {}, "usage", "strong"),
    "not reported": (None, {"cache_report": False}, "usage", "certain"),
    "not reported in chat": (reports.HideDetailsInChat(), {}, "usage", "strong"),
    "usage is always 0": (reports.ReportCached(share=0), {}, "witnesses", "strong"),
    "more found than sent": (reports.ReportCached(less=-1), {}, "impossible", "certain"),
    "the stream's usage is dropped": (reports.StripStreamedUsage(), {}, "stream", "strong"),
    "some requests fail": (traffic.FailSometimes(every=7), {}, "replies", "strong"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(probed, name):
    gateway, fields, rule, sure = PLANTED[name]
    _, verdicts = probed(gateway, **fields)
    assert state(verdicts, rule) == ("fault", sure)
    also = {"shared": {"salts"}, "impossible": {"witnesses"}, "strangers": {"witnesses"}, "front": {"chat"}}
    assert faults(verdicts) - {rule} <= also.get(rule, set()), "nothing else is blamed"


def test_replicas_without_affinity_are_counted(probed):
    _, verdicts = probed(traffic.RoundRobin(), 3)
    assert state(verdicts, "replicas") == ("fault", "strong") and "About 3 caches" in verdicts["replicas"].finding
    assert faults(verdicts) == {"replicas"}


def test_replicas_with_affinity_are_expected_to_show_jumping_counters(probed):
    _, verdicts = probed(traffic.ByPrompt(), 2, **ABREAST)
    assert state(verdicts, "replicas") == ("expected", "strong") and faults(verdicts) == set()


def test_a_router_by_whole_prompts_loses_shared_fronts(probed, monkeypatch):
    monkeypatch.setattr(repeat_series, "NUM_FRONTS", 6)
    _, verdicts = probed(traffic.ByPrompt(num_ids=None), 4)
    assert state(verdicts, "shared") == ("fault", "strong") and faults(verdicts) == {"shared"}


def test_a_salt_for_each_connection_is_told_from_prompts_that_are_found_late(probed):
    seen, verdicts = probed(salts.SaltEachConnection())
    assert state(verdicts, "identity") == ("fault", "strong") and faults(verdicts) == {"identity"}
    assert [one.cached for one in seen.of(LATE)] == [0, 0], "asked after a pause too"


def test_a_front_whose_own_request_failed_is_not_shared(probed, monkeypatch):
    ask, fails = asker.Asker.ask, iter([True])

    def failing(self, purpose, prompt, **fields):
        is_failing = purpose == SHARED and "matched" not in fields and next(fails, False)
        return None if is_failing else ask(self, purpose, prompt, **fields)

    monkeypatch.setattr(asker.Asker, "ask", failing)
    seen, _ = probed()
    assert len(seen.shares) == 1 and all(found == possible for found, possible in seen.shares)


@pytest.mark.parametrize(
    "gateway, rule, sure, words",
    [
        (salts.SaltLongPrompts(300), "long", "strong", "900 tokens find nothing"),
        (fronts.CountInTheMiddle(100), "long", "strong", "between tokens 96 and 112"),
        (fronts.CutFronts(512), "cut", "certain", "of 900 tokens sent the model sees 512"),
    ],
)
def test_what_is_done_to_long_prompts_alone_is_found_where_the_own_ones_are_as_long(probed, gateway, rule, sure, words):
    _, verdicts = probed(gateway, settings={"prompt_tokens": 900})
    assert state(verdicts, rule) == ("fault", sure) and faults(verdicts) == {rule}
    assert words in verdicts[rule].finding and "900" not in verdicts["unit"].finding


class RestartAt(Gateway):
    """From the first prompt of so many ids on another server answers, whose cache and counters are empty."""

    def __init__(self, num_ids):
        self._num_ids, self._server = num_ids, 0

    def change_request(self, path, body):
        if isinstance(body.get("prompt"), list) and len(body["prompt"]) == self._num_ids:
            self._server = 1

    def server_for(self, path):
        return self.servers[self._server]


def test_a_restart_is_told_though_the_counters_grow_past_what_they_were(probed, monkeypatch):
    monkeypatch.setattr(repeat_series, "NUM_FRONTS", 6)
    _, verdicts = probed(RestartAt(2 * repeat_series.MIN_LENGTH), 2, num_gpu_blocks=2_047)  # servers that nobody else asks
    assert state(verdicts, "counters") == ("fault", "strong") and "fell while" in verdicts["counters"].finding


def test_a_clock_in_front_of_ids_is_told_from_replicas(probed, monkeypatch):
    monkeypatch.setattr(side_series, "MIN_PAUSE_S", 0.25)
    _, verdicts = probed(fronts.PrependClock(tick_s=0.2))
    assert state(verdicts, "front") == ("fault", "strong") and "clock" in verdicts["front"].finding
    assert faults(verdicts) == {"front"}


def test_a_large_unit_is_measured_and_own_prompts_are_judged_by_it(probed):
    seen, verdicts = probed(prefix_match_unit=1_056, settings={"prompt_tokens": 900})
    assert seen.explanation.unit == 1_056
    assert state(verdicts, "unit")[0] == "fault" and faults(verdicts) == {"unit"}
    assert "900-token prompts share less than one unit of 1,056" in verdicts["unit"].finding


def test_a_unit_is_measured_without_an_announcement(probed, monkeypatch):
    monkeypatch.setattr(repeat_series, "LADDER_LENGTHS", (65, 1_025))
    seen, _ = probed(reports.HideConfig(), prefix_match_unit=528)
    assert (seen.facts.unit_size, seen.explanation.unit) == (None, 528)


def test_a_drafters_price_is_told_from_the_last_tokens(probed):
    seen, verdicts = probed(use_eagle=True)
    assert seen.explanation.has_drafter and state(verdicts, "drafter")[0] == "expected" and faults(verdicts) == set()


def test_sglangs_own_interface_tells_where_nothing_else_does(probed):
    seen, verdicts = probed(flavor="sglang", cache_report=False, metrics_endpoint=False)
    assert state(verdicts, "caching")[0] == "fine" and faults(verdicts) == {"usage", "metrics"}
    assert "/generate found" in " ".join(verdicts["usage"].evidence) and seen.explanation.unit == 1


class WithoutGenerate(reports.Hide):
    """Completions report nothing, and SGLang's own interface is closed."""

    def refuse(self, path, body):
        return JSONResponse({"error": "forbidden"}, 403) if path == "/generate" else super().refuse(path, body)


@pytest.mark.parametrize("gateway", [reports.Hide("/metrics", "/generate"), WithoutGenerate("/metrics")])
def test_an_interface_of_sglangs_that_a_gateway_hides_is_no_failure(probed, gateway):
    few = {"limits": ProbeLimits(max_requests=20)}
    seen, verdicts = probed(gateway, flavor="sglang", cache_report=False, settings=few)
    assert faults(verdicts) == {"usage", "metrics"} and not seen.failures and seen.of(CHAT)


def test_a_request_at_once_asks_for_no_more_output_than_there_is_room(probed):
    few = {"limits": ProbeLimits(max_requests=36)}
    seen, verdicts = probed(flavor="sglang", page_size=256, max_model_len=270, settings=few)
    assert seen.at_once and all(one.sent for one in seen.at_once) and not seen.failures and faults(verdicts) == set()


class OneToken(Gateway):
    """No request is let through that asks for more."""

    def refuse(self, path, body):
        return JSONResponse({"error": "max_tokens"}, 400) if body.get("max_tokens", 1) > 1 else None


def test_requests_at_once_that_nobody_takes_are_no_failure(probed):
    seen, verdicts = probed(OneToken(), settings={"limits": ProbeLimits(max_requests=40)})
    assert seen.at_once and not seen.failures and faults(verdicts) == set()


def test_what_stands_in_front_is_left_room_for(probed, monkeypatch):
    monkeypatch.setattr(side_series, "NUM_TIMED", 1)
    seen, verdicts = probed(fronts.SameFront(40), max_model_len=512)
    assert not seen.failures and not seen.stopped and faults(verdicts) == set()


def test_a_small_pool_is_found_with_stress_alone(probed):
    seen, verdicts = probed(num_gpu_blocks=65, max_model_len=1_024, settings={"stress": True})
    assert state(verdicts, "pool") == ("fault", "strong") and faults(verdicts) == {"pool"}
    assert [rung.cached for rung in seen.rungs] == [0]
    seen, verdicts = probed(num_gpu_blocks=257, max_model_len=1_024, settings={"stress": True})
    assert state(verdicts, "pool") == ("expected", "strong")
    assert seen.rungs[-1].tokens_between + 2 * 257 >= 4_096 >= seen.rungs[-2].tokens_between


def test_a_pool_smaller_than_a_request_is_found_without_stress(probed):
    _, verdicts = probed(num_gpu_blocks=20)
    assert state(verdicts, "pool") == ("fault", "certain") and faults(verdicts) == {"pool"}


def test_prompts_longer_than_a_request_may_be_are_told_and_nothing_else(probed):
    seen, verdicts = probed(settings={"prompt_tokens": 20_000})
    assert state(verdicts, "length") == ("fault", "certain") and faults(verdicts) == {"length"}
    assert max(one.length for one in seen.sent) <= 8_192


def test_a_clock_of_minutes_is_found_by_what_the_server_shows(probed):
    seen, verdicts = probed(fronts.SlowClockInChat())
    assert state(verdicts, "chat") == ("fault", "strong") and faults(verdicts) == {"chat"}
    assert seen.clocks["chat"].kind == "today's date and the time of day" and not seen.clocks["text"].kind


def test_a_pause_is_long_where_time_allows_and_no_ids_are_shown(probed, monkeypatch):
    for gateway, is_long in ((fronts.ClockInChat(shows_ids=False), True), (Gateway(), False)):
        pauses = []
        monkeypatch.setattr(side_series, "time", SimpleNamespace(sleep=pauses.append, perf_counter=time.perf_counter))
        probed(gateway, settings={"limits": ProbeLimits(max_seconds=91)})
        assert (max(pauses) > 30) == is_long


@pytest.mark.parametrize(
    "seconds, expected",
    [(0.25, {("expected", "strong"), ("fine", "strong")}), (60.0, {("cannot tell", "weak"), ("expected", "weak")})],
)
def test_metrics_that_are_kept_for_a_while_blame_no_replica(probed, seconds, expected):
    _, verdicts = probed(reports.KeepMetrics(seconds))
    assert state(verdicts, "counters") in expected and faults(verdicts) == set()
    assert (
        "another replica answered the rest" not in verdicts["counters"].finding
        or "is kept for a while" in verdicts["counters"].finding
    )


def test_requests_that_a_busy_server_turned_away_are_sent_again(probed):
    seen, verdicts = probed(traffic.BusyAtTimes(every=5))
    assert seen.num_turned_away > 5 and not seen.failures and seen.explanation.unit == 16
    assert state(verdicts, "replies") == ("expected", "weak") and faults(verdicts) == set()


def test_a_server_that_turns_everybody_away_is_one_line(probed, monkeypatch):
    with pytest.raises(TargetError, match="503: busy"):
        probed(traffic.BusyAtTimes(every=1))


@pytest.mark.parametrize("gateway", [reports.Hide(COMPLETIONS), reports.Anonymous()])
def test_texts_that_the_server_alone_counts_come_out_as_long_as_meant(probed, gateway):
    seen, verdicts = probed(gateway, max_model_len=1_500, **ABREAST)
    assert (seen.explanation.unit, seen.failures, faults(verdicts)) == (16, [], set())
    assert (state(verdicts, "caching")[0], state(verdicts, "replicas")) == ("fine", ("fine", "strong"))
    assert max(one.length for one in seen.sent if one.purpose != TIMING) < 300, "not four times what was meant"
    assert all(700 < one.length < 1_400 for one in seen.of(TIMING)), f"about {side_series.TIMED_LENGTH}"
    assert not seen.longest_refused and not seen.refuses_chat


class BurstsOfTraffic(Gateway):
    """Between two of the probe's requests others fill a small pool, two times of three."""

    def __init__(self):
        self._numbers, self._client = itertools.count(1), httpx.Client(verify=False)

    def change_request(self, path, body):
        number = next(self._numbers)
        for more in (0, 1) if path == COMPLETIONS and number % 3 else ():
            others = {"prompt": [2 * number + more + 300, *[number % 7] * 579], "max_tokens": 1}
            self._client.post(self.servers[0] + path, json=others)


def test_prompts_that_others_push_out_of_a_small_pool_are_no_replicas(probed):
    _, verdicts = probed(BurstsOfTraffic(), num_gpu_blocks=40, max_model_len=600)
    assert state(verdicts, "replicas") == ("cannot tell", "weak") and faults(verdicts) <= {"pool"}
    assert "others push them out" in verdicts["replicas"].finding


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


class SlowAndSilent(traffic.Slow):
    hidden = ("/metrics",)  # which would tell that caching is off


def test_what_takes_too_long_at_a_servers_pace_is_left_out_and_the_rest_is_asked(probed):
    seen, verdicts = probed(SlowAndSilent(0.005), enable_prefix_caching=False, settings={"limits": ProbeLimits(max_seconds=2)})
    assert "repeats of ever longer prompts" in seen.left_out and max(one.num_ids or 0 for one in seen.sent) <= 257
    assert "too few for all questions at this server's pace" in seen.stopped or "2 s passed" in seen.stopped
    assert not seen.failures and "replies" not in verdicts


def test_a_request_that_the_probes_own_end_cuts_is_no_fault_of_the_server(probed):
    stalled = traffic.Slow(num_quick=15, stall_s=2.1)
    seen, verdicts = probed(stalled, settings={"limits": ProbeLimits(max_seconds=2)})
    assert seen.stopped == "2 s passed" and seen.left_out and not seen.failures
    assert verdicts["caching"].state == "fine" and faults(verdicts) == set()


def test_a_request_that_hangs_is_one_though_the_probes_end_comes_first(probed, monkeypatch):
    monkeypatch.setattr(asker, "PATIENCE_S", 0.5)
    seen, verdicts = probed(traffic.Slow(num_quick=15, stall_s=3.0), settings={"limits": ProbeLimits(max_seconds=2)})
    assert seen.failures and state(verdicts, "replies") == ("fault", "strong")


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
        probed(traffic.FailSometimes(every=1))


@pytest.mark.parametrize("field, value", [("max_seconds", 0), ("max_requests", 0), ("max_tokens", 0)])
def test_limits_are_checked(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}; accepted: "):
        ProbeLimits(**{field: value})


def test_settings_are_checked():
    with pytest.raises(ValueError, match="prompt_tokens is 0; accepted: "):
        ProbeSettings(prompt_tokens=0)
