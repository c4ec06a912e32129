"""Two records are compared in what is alike; what is not is named and left alone."""

import json
import random
import re
from dataclasses import replace

import pytest

from labcli.record_comparison import UnlikeRecords, compare_records
from labcli.results_store import ResultsStore
from labcli.target_facts import TargetFacts
from labs.protocol import Measurement, Prediction


def times(median, *, count=20, name="ttft"):
    """Samples around a median, a few per cent apart, another each time."""
    rng = random.Random(f"{median} {count} {name}")
    return Measurement(name, "s", tuple(median * rng.uniform(0.97, 1.03) for _ in range(count)), "hash", "warm")


def hits(value):
    return Measurement("hits", "tokens", (value,), "hash", "shared", Prediction(2000, "⌊2,000/16⌋·16"))


@pytest.fixture
def run(record):
    """A record of lab 04 on the engine; a call gives another run of it, with changes."""
    first = replace(
        record,
        target={"kind": "engine", "engine_config": {"block_size": 16}},
        details={"workloads": {"long": "ab"}},
        environment={**record.environment, "python": "3.11.7", "packages": {"torch": "2.13.0"}},
        measurements=(hits(2000), times(0.010)),
    )
    return lambda run_id="a", **changes: replace(first, run_id=run_id * 32, **changes)


def verdicts(comparison):
    return {(one.kind, one.name): one.verdict for one in comparison.measured}


def test_equal_counts_are_equal_and_times_within_their_spread_are_not_significant(run):
    again = run("b", measurements=(hits(2000), replace(times(0.010), samples=times(0.010, name="again").samples)))
    compared = compare_records(run(), again)
    assert verdicts(compared) == {("count", "hits"): "equal", ("time", "ttft"): "not significant"}
    assert compared.workload == "same" and not compared.configuration and not compared.code and not compared.environment


def test_a_changed_count_and_a_changed_time_are_told_with_their_ratio(run):
    compared = compare_records(run(), run("b", measurements=(hits(1984), times(0.013))))
    assert verdicts(compared) == {("count", "hits"): "changed", ("time", "ttft"): "changed"}
    slower = compared.of("time")[0]
    assert 1.2 < slower.low <= slower.ratio <= slower.high < 1.4


def test_few_samples_say_nothing_about_a_time(run):
    compared = compare_records(run(measurements=(times(0.010, count=4),)), run("b", measurements=(times(0.030),)))
    assert verdicts(compared) == {("time", "ttft"): "cannot tell"}


def test_computed_times_are_exact_on_any_machine(run):
    virtual = Measurement("ttft", "s", (0.01, 0.01), "hash", "warm")
    first = run(target={"kind": "sim"}, measurements=(virtual,))
    second = replace(first, run_id="b" * 32, environment={"machine": "other"})
    assert verdicts(compare_records(first, second)) == {("time", "ttft"): "equal"}
    second = replace(second, measurements=(replace(virtual, samples=(0.02,)),))
    changed = compare_records(first, second).measured[0]
    assert (changed.verdict, changed.ratio, changed.low) == ("changed", 2.0, None)


@pytest.mark.parametrize(
    "change, counts, reason",
    [
        ({"target": {"kind": "sim"}}, "equal", "the targets are engine and sim"),
        ({"cache_state": "uncontrolled"}, "equal", "the caches were cold and uncontrolled"),
        ({"environment": {"machine": "22222222"}}, "equal", "the machines are 1f0c9a3e and 22222222"),
        ({"details": {"workloads": {"long": "cd"}}}, "not compared", "the workloads differ"),
    ],
)
def test_times_of_unlike_runs_are_not_compared_and_the_reason_is_given(run, change, counts, reason):
    compared = compare_records(run(), run("b", **change))
    assert verdicts(compared) == {("count", "hits"): counts, ("time", "ttft"): "not compared"}
    assert compared.not_compared["times"].startswith(reason)
    assert ("counts" in compared.not_compared) == (counts == "not compared")


def served_by(kind, address="http://10.0.0.1:8000", **settings):
    config = {"address": address, "version": "0.32.0", "is_labcli": False, **settings}
    opened = [{"model": "smollm2", "dtype": "unknown", "device": "a server", "config": config}]
    return {"target": {"kind": kind, "engine_config": None, "opened": opened}}


def test_a_server_is_known_by_kind_version_and_model(run):
    assert TargetFacts.of(run(**served_by("vllm"))).words == "vllm 0.32.0 smollm2"
    assert TargetFacts.of(run(**served_by("openai", version=None))).words == "openai smollm2"
    assert TargetFacts.of(run(**served_by("sglang", is_labcli=True))).words == "labcli serve (sglang) smollm2"


@pytest.mark.parametrize(
    ("other", "counts", "reason"),
    [
        (served_by("vllm"), "equal", None),
        (served_by("vllm", "http://10.0.0.2:8000"), "equal", "the servers are at http://10.0.0.1:8000 and http://10.0.0.2:8000"),
        (served_by("vllm", version="0.33.0"), "equal", None),
        (served_by("sglang"), "not compared", "the targets are vllm and sglang"),
        (served_by("vllm", is_labcli=True), "not compared", "the targets are vllm and labcli serve (vllm)"),
        ({}, "not compared", "the targets are vllm and engine"),
    ],
)
def test_a_server_s_record_is_compared_with_its_like(run, other, counts, reason):
    comparison = compare_records(run(**served_by("vllm")), run("b", **other))
    assert verdicts(comparison)["count", "hits"] == counts
    assert comparison.not_compared.get("times", "").startswith(reason or "") and ("times" in comparison.not_compared) is bool(reason)


def test_times_of_two_machines_are_compared_when_asked_for(run):
    other = run("b", environment={"machine": "22222222"}, measurements=(hits(2000), times(0.013)))
    assert verdicts(compare_records(run(), other, across_machines=True))["time", "ttft"] == "changed"


def test_everything_that_changed_around_the_run_is_named(run):
    first = run(lab_config={"num_requests": 10}, sources={"labs/theory.py": "ab", "labs/measure.py": "cd"})
    environment = {**first.environment, "commit": "f" * 40, "dirty": True, "packages": {"torch": "2.14.0", "numpy": "2.4"}}
    second = run(
        "b", lab_config={"num_requests": 20}, sources={"labs/theory.py": "ef", "labs/measure.py": "cd"}, environment=environment,
        target={"kind": "engine", "engine_config": {"block_size": 32}}, cache_state="primed",
    )  # fmt: skip
    compared = compare_records(first, second)
    assert [one.what for one in compared.configuration] == ["lab_config.num_requests", "engine.block_size", "cache at the start"]
    assert [one.what for one in compared.code] == ["commit", "dirty", "labs/theory.py"]
    assert [(one.what, one.first, one.second) for one in compared.environment] == [
        ("package torch", "2.13.0", "2.14.0"), ("package numpy", None, "2.4"),
    ]  # fmt: skip


def test_an_interrupted_run_is_compared_in_what_both_have(run):
    compared = compare_records(run(), run("b", status="interrupted", measurements=(hits(2000),)))
    assert verdicts(compared) == {("count", "hits"): "equal"}
    assert [one.name for one in compared.only_first] == ["ttft"] and not compared.only_second


def test_rates_without_a_spread_are_judged_as_counts_and_rates_per_second_as_times(run):
    rate = Measurement("hit_rate", "ratio", (0.8182,), "hash", "shared")
    speed = Measurement("speed", "tokens/s", (1000.0,), "hash", "shared")
    faster = replace(speed, samples=(1100.0,))
    compared = compare_records(run(measurements=(rate, speed)), run("b", measurements=(rate, faster)))
    assert verdicts(compared) == {("rate", "hit_rate"): "equal", ("rate", "speed"): "cannot tell"}


def test_runs_of_two_labs_and_one_run_twice_are_refused(run):
    with pytest.raises(UnlikeRecords, match="04-prefix-cache-hit-rate and 02-other; accepted: two records of one lab"):
        compare_records(run(), run("b", lab={"number": 2, "name": "other", "question": "?"}))
    with pytest.raises(UnlikeRecords, match="both records are run aaaaaaaa; accepted: two different runs"):
        compare_records(run(), run())


def test_without_digests_the_configuration_decides_whether_the_workload_is_the_same(run):
    assert compare_records(run(details={}), run("b", details={})).workload == "same"
    assert compare_records(run(details={}), run("b", details={}, lab_config={"seed": 1})).workload == "cannot tell"


@pytest.fixture
def kept(labcli_command, run):
    store = ResultsStore("results")
    store.save(run(lab_config={"num_requests": 10}))
    changed = (hits(1984), times(0.013), Measurement("extra", "tokens", (1,), "hash"))
    store.save(run("b", lab_config={"num_requests": 20}, started_at="2026-03-02T14:25:01.042Z", measurements=changed))
    store.save(run("c", started_at="2026-03-03T14:25:01.042Z", lab={"number": 2, "name": "other", "question": "?"}))
    return labcli_command


def test_the_command_tells_changes_counts_and_times(kept, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = kept("results", "compare", "04~1", "04")
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    text = " ".join(done.stdout.split())
    for words in (
        "lab_config.num_requests 10 → 20",
        "code nothing",
        "workload the same",
        "1 changed",
        "2,000 1,984 -16",
        "only in B 1 measurement: hash",
    ):
        assert words in text, words
    assert re.search(r"10\.\d ms 1[23]\.\d ms 1\.\d+ \[1\.\d+–1\.\d+\]", text)


def test_the_command_as_json_holds_every_verdict(kept):
    told = json.loads(kept("results", "compare", "04~1", "04", "--json").stdout)
    assert [one["verdict"] for one in told["measured"]] == ["changed", "changed"]
    assert told["configuration"] == [{"what": "lab_config.num_requests", "first": 10, "second": 20}]
    assert [one["name"] for one in told["only_second"]] == ["extra"]


def test_the_command_refuses_two_labs_as_bad_usage(kept):
    done = kept("results", "compare", "04", "other")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == ("labcli: the records are of 04-prefix-cache-hit-rate and 02-other; accepted: two records of one lab\n")
