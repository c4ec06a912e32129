"""The probe behind real HTTP: how many caches answer, whether an engine answers at all, and how often it is asked."""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import pytest
from starlette.responses import JSONResponse

from labs.probe import probe_run, repeat_series, side_series
from labs.probe.endpoints import Endpoints
from labs.probe.judgement import judge
from labs.probe.probe_run import ProbeSettings, probe
from labs.servers.server_address import ServerAddress
from labs.servers.server_client import ServerClient
from tests.servers.gateways import traffic
from tests.servers.gateways.gateway import COMPLETIONS, Gateway, fronted


@pytest.fixture(autouse=True)
def two_bursts(quick, monkeypatch):
    monkeypatch.setattr(repeat_series, "NUM_BURSTS", 2)


QUIET = {"cache_report": False}  # replies do not tell what was found: the counters do, or SGLang's own endpoint
NATIVE = {**QUIET, "flavor": "sglang", "metrics_endpoint": False}


@pytest.fixture
def probed(servers):
    """What was seen of servers behind a gateway, and verdicts by name; each server has its fields."""
    with ExitStack() as stack:

        def run(gateway, *each):
            urls = [servers(number, fields) for number, fields in enumerate(each or ({},))]
            url = stack.enter_context(fronted(*urls, gateway=gateway))
            seen = probe(lambda: ServerClient(ServerAddress.of(url)), ProbeSettings())
            return seen, {one.name: one for one in judge(seen)}

        yield run


def state(verdicts, name):
    return (verdicts[name].state, verdicts[name].confidence) if name in verdicts else None


def faults(verdicts):
    return {name for name, one in verdicts.items() if one.is_fault}


@pytest.mark.parametrize("fields", [QUIET, NATIVE])
def test_replicas_by_connection_are_counted_where_replies_do_not_tell(probed, fields):
    _, verdicts = probed(traffic.ByConnection(), fields, fields)
    assert state(verdicts, "replicas") == ("fault", "strong") and "About 2 caches" in verdicts["replicas"].finding
    assert faults(verdicts) <= {"replicas", "usage", "metrics"}


def test_one_cache_is_one_where_the_counters_alone_tell(probed):
    seen, verdicts = probed(Gateway(), {**QUIET, "pace": 10.0})  # so that requests that begin together are under way together
    assert state(verdicts, "replicas") == ("fine", "strong") and seen.missed_at_once == [0]
    assert faults(verdicts) == {"usage"} and not seen.is_jumping


def test_replicas_of_which_the_idlest_answers_are_found_by_requests_at_once(probed):
    slow = {"pace": 10.0}  # so that requests that begin together are under way together
    seen, verdicts = probed(traffic.Idlest(), slow, slow)
    assert seen.is_steady and state(verdicts, "replicas") == ("fault", "strong")
    assert "come at once" in verdicts["replicas"].finding and faults(verdicts) == {"replicas"}


def test_a_cache_of_whole_replies_is_named_and_nothing_else_is_blamed(probed):
    _, verdicts = probed(traffic.KeepReplies())
    assert state(verdicts, "kept") == ("expected", "certain") and faults(verdicts) == set()
    assert not {"identity", "replicas", "counters", "repeats"} & set(verdicts)


class OneAtATime(Gateway):
    """Of the requests that come at once, which ask for some tokens, all but the first are answered by nothing but a status."""

    def __init__(self, status: int) -> None:
        self._status, self._numbers = status, itertools.count()

    def refuse(self, path, body):
        is_abreast = path == COMPLETIONS and body["max_tokens"] > 1 and next(self._numbers) > 0
        return JSONResponse({"error": {"message": "one at a time"}}, self._status) if is_abreast else None


@pytest.mark.parametrize("status, expected", [(429, set()), (500, {"replies"})])
def test_a_server_that_takes_one_at_a_time_is_busy_at_most_and_one_that_breaks_is_told(probed, status, expected):
    seen, verdicts = probed(OneAtATime(status))
    assert faults(verdicts) == expected and [len(one.sent) for one in seen.at_once] == [1]
    assert state(verdicts, "replicas") == ("fine", "weak")


def test_requests_that_reach_the_engine_twice_are_told_and_their_hits_are_real(probed):
    _, verdicts = probed(traffic.SendTwice())
    assert state(verdicts, "copies") == ("fault", "strong") and "2 times" in verdicts["copies"].finding
    assert faults(verdicts) == {"copies"} and "counters" not in verdicts


def test_a_request_that_ctrl_c_cut_after_it_was_counted_is_nobody_elses(probed, monkeypatch):
    answer = Endpoints.answer

    def cut(self, client, body, size):
        found = answer(self, client, body, size)
        if size > 1_000:  # the first that is timed
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Endpoints, "answer", cut)
    seen, verdicts = probed(Gateway())
    assert seen.stopped == probe_run.INTERRUPTED and seen.num_cut_tokens == side_series.TIMED_LENGTH
    assert seen.is_shared is False and "Others" not in verdicts["counters"].finding
