"""Labs on a server: every prediction is met on a right one of any kind and manner, and a wrong one does not pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import ConfigError
from engine.kvcache import block_hash, kv_cache_manager
from engine.kvcache.prefix_cache import NO_MATCH
from engine.request import Request
from labs import lab_02_repeat_prompt_throughput as throughput
from labs.catalog import find_labs, lookup
from labs.lab_03_aligned_prompt import Config as AlignedConfig
from labs.lab_04_prefix_cache_hit_rate import Config as HitRateConfig
from labs.outcome import counts_hits
from labs.protocol import LabReport
from labs.servers.server_address import ServerAddress
from labs.servers.server_run import ServerRun
from labs.targets.base import FieldRefused, TargetError, TargetUnavailable
from labs.targets.open_server import OpenServer
from tests.broken_rules import name_blocks_without_their_parents
from tests.engine.server.served import served
from tests.labs.fake_server_target import FakeServer, _FakeTarget
from tests.labs.fake_session import FakeSession

ON_SERVERS = [entry for entry in find_labs() if "server" in entry.load().targets]

SERVERS = {
    "vllm, block 16": {},
    "vllm, block 32": {"unit": 32},
    "vllm beside a drafter": {"unit": 32, "has_drafter": True},
    "sglang, page 1": {"kind": "sglang", "unit": 1},
    "sglang, page 16": {"kind": "sglang", "unit": 16},
    "a large unit": {"unit": 784},
    "short prompts only": {"max_model_len": 200},
    "a BOS in front": {"num_front": 1},
    "a template in front": {"num_front": 20},
    "no usage": {"tells_usage": False},
    "no counters": {"tells_counters": False},
    "others' traffic": {"num_foreign": 50},
}
# What a lab cannot do on some servers, and says.
IMPOSSIBLE = {(10, "a template in front")}


def run(number: int, server, config=None, typed=()) -> tuple[LabReport, FakeSession]:
    lab = lookup(str(number)).load()
    session = FakeSession(server, typed)
    report = lab.run(session, config or lab.quick)
    assert tuple(session.measurements) == report.measurements, "an interrupted run keeps what the session was told"
    assert session.done == session.expected
    return report, session


def names(report: LabReport, row: str) -> dict[str, tuple]:
    return {one.name: one.samples for one in report.measurements if one.row == row}


def test_these_labs_run_on_servers():
    assert [entry.number for entry in ON_SERVERS] == [2, 3, 4, 5, 6, 10, 13]
    for entry in ON_SERVERS:
        lab = entry.load()
        assert set(lab.in_process_fields) < set(lab.config_type.__dataclass_fields__)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("entry", ON_SERVERS, ids=lambda entry: entry.label)
def test_a_right_server_meets_every_prediction(entry, server):
    if (entry.number, server) in IMPOSSIBLE:
        with pytest.raises(TargetUnavailable, match="in front of every prompt.*; accepted: a server that takes token ids"):
            run(entry.number, FakeServer(**SERVERS[server]))
        return
    report, _ = run(entry.number, FakeServer(**SERVERS[server]))
    assert [one for one in report.measurements if one.agrees is False] == []
    assert report.cache_state == "cold" and report.conclusion
    assert sum(one.predicted is not None for one in report.measurements) >= 4
    assert any(one.predicted is not None and one.predicted.value > 0 and one.unit == "tokens" for one in report.measurements)


@pytest.mark.parametrize("entry", ON_SERVERS, ids=lambda entry: entry.label)
def test_counters_that_stand_still_fail_as_one_witness_and_are_told(entry):
    report, _ = run(entry.number, FakeServer(is_counting=False))
    missed = [one for one in report.measurements if one.agrees is False]
    assert missed and {one.name for one in missed} <= {"counted", "queries"}
    assert any("replies report" in line and "one of the two is wrong" in line for line in report.findings)


@pytest.mark.parametrize("number", [4, 10, 13])
def test_a_server_that_ignores_salts_does_not_pass(number):
    report, _ = run(number, FakeServer(keeps_salts=False))
    assert not report.agrees


@pytest.mark.parametrize(("error", "is_asked"), [(FieldRefused("not taken"), False), (TargetError("nothing answers"), True)])
def test_lab_13_takes_no_other_failure_for_a_refusal_of_log_probabilities(monkeypatch, error, is_asked):
    def failing(self, prompt, *, prompt_logprobs=False, **fields):
        if prompt_logprobs:
            raise error
        return complete(self, prompt, **fields)

    complete = _FakeTarget.complete
    monkeypatch.setattr(_FakeTarget, "complete", failing)
    if is_asked:
        with pytest.raises(TargetError, match="nothing answers"):
            run(13, FakeServer())
        return
    report, _ = run(13, FakeServer())
    assert any("prompt_logprobs are not asked" in line for line in report.findings)


def test_lab_04_says_that_salts_are_ignored():
    report, _ = run(4, FakeServer(keeps_salts=False))
    assert any("NOT isolated" in line and "ignores cache_salt" in line for line in report.findings)
    assert any("the second cold run was not cold" in line for line in report.findings)


def test_lab_04_s_published_integers_on_blocks_of_32():
    report, _ = run(4, FakeServer(unit=32), HitRateConfig())
    assert names(report, "shared system prompt, 10 requests")["later"] == (1984,) * 9
    repeat = names(report, "repeat of 4,000 tokens")
    assert (repeat["first"], repeat["later"], repeat["total"], repeat["counted"]) == ((0,), (3968,), (3968,), (3968,))
    assert report.agrees and "aligned" in report.details["workloads"]


def test_lab_04_takes_the_most_whole_blocks_that_fit_and_says_so():
    report, _ = run(4, FakeServer(unit=32, max_model_len=2_400), HitRateConfig())
    assert names(report, "repeat of 2,368 tokens")["later"] == (2336,)
    assert any("74 of them" in line and "not 125" in line for line in report.findings)


def test_a_default_that_is_too_long_gives_way_and_a_typed_one_is_refused():
    report, _ = run(4, FakeServer(max_model_len=1_000), HitRateConfig())
    assert any("shared_tokens 2000 → " in line for line in report.findings)
    with pytest.raises(ConfigError, match="shared_tokens is 2000; accepted: at most"):
        run(4, FakeServer(max_model_len=1_000), HitRateConfig(), typed=("shared_tokens",))
    with pytest.raises(ConfigError, match="prompt_tokens is .*; accepted: at most"):
        run(3, FakeServer(max_model_len=1_000), AlignedConfig(), typed=("prompt_tokens",))


def test_a_short_server_gets_fewer_and_shorter_turns():
    report, _ = run(6, FakeServer(max_model_len=128), lookup("6").load().config_type())
    assert report.agrees and counts_hits(report.measurements)
    assert any("num_turns 4 → 3" in line for line in report.findings)
    for unit in (16, 784):
        assert run(6, FakeServer(max_model_len=64, unit=unit))[0].agrees
    with pytest.raises(TargetUnavailable, match="shortest chat takes .* tokens; accepted: a server whose longest prompt"):
        run(6, FakeServer(max_model_len=30))
    with pytest.raises(ConfigError, match="num_turns is 30; accepted: less"):
        run(6, FakeServer(max_model_len=128), replace(lookup("6").load().config_type(), num_turns=30), typed=("num_turns",))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("name", "size"), [("max_shift", 200), ("user_tokens", 200), ("short_user_tokens", 200), ("output_tokens", 100)])
def test_lab_04_fits_the_others_to_what_was_typed(name, size, full):
    report, _ = run(4, FakeServer(max_model_len=300), HitRateConfig(full=full, num_failing=2, **{name: size}), typed=(name,))
    assert report.agrees and not any(f"{name} {size} →" in line for line in report.findings)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ({"user_tokens": 299}, "user_tokens"),
        ({"max_shift": 290}, "max_shift"),
        ({"short_user_tokens": 299}, "short_user_tokens"),
        ({"output_tokens": 290}, "output_tokens"),
        ({"user_tokens": 260, "shared_tokens": 60}, "user_tokens"),
    ],
)
def test_lab_04_names_what_was_typed_before_anything_is_sent(typed, name):
    server = FakeServer(max_model_len=300)
    with pytest.raises(ConfigError, match=rf"^{name} is {typed[name]}; accepted: at most [1-9]"):
        run(4, server, HitRateConfig(**typed), typed=tuple(typed))
    assert server.asked == []


def test_lab_02_fits_the_number_of_prompts_to_the_vocabulary_and_names_what_was_typed():
    config = replace(lookup("2").load().config_type(), num_prompts=256)
    assert throughput._fitting_numbers(config, 601, None, ("num_prompts",)) == {"num_prompts": 256, "repeat_count": 2}
    with pytest.raises(ConfigError, match="num_prompts is 256; accepted: at most 200 on this server: each of 256 prompts"):
        throughput._check_numbers(replace(config, repeat_count=2), 601, None, ("num_prompts",))
    repeated = replace(config, num_prompts=1, repeat_count=700)
    with pytest.raises(ConfigError, match="repeat_count is 700; accepted: at most 599 on this server"):
        throughput._check_numbers(repeated, 601, None, ("repeat_count",))
    assert throughput._fitting_numbers(repeated, 601, None, ())["repeat_count"] == 599
    with pytest.raises(ConfigError, match="num_prompts is 9; accepted: at most 4 on this server, whose pool must hold them all"):
        throughput._check_numbers(replace(config, num_prompts=9), 60_000, 4, ("num_prompts",))


def test_a_server_s_requests_are_kept_with_both_witnesses_and_without_prompts():
    report, _ = run(4, FakeServer())
    (series,) = report.details["requests"].values()
    for entry in (entry for entries in series.values() for entry in entries):
        assert set(entry) == {"prompt_tokens", "predicted_hits", "hits", "ttft_s", "usage", "counted"}
        assert entry["usage"] == entry["counted"] == entry["predicted_hits"]
    report, _ = run(4, FakeServer(tells_counters=False))
    (series,) = report.details["requests"].values()
    assert {entry["counted"] for entries in series.values() for entry in entries} == {None}


def test_lab_04_hears_the_clock_as_a_third_witness():
    report, _ = run(4, FakeServer())
    assert any("timing cannot tell: 3 times beside 1 of the control" in line for line in report.findings)
    enough = replace(lookup("4").load().quick, num_requests=6, num_controls=5)
    report, _ = run(4, FakeServer(), enough)
    assert any("timing agrees with the counts" in line for line in report.findings)
    report, _ = run(4, FakeServer(is_counting=False, tells_usage=False), enough)
    assert not report.agrees
    assert any("timing contradicts the counts: 0 hits reported" in line for line in report.findings)


def test_an_output_that_is_not_told_is_not_compared():
    report, _ = run(4, FakeServer(tells_ids=False))
    assert any("does not tell the ids it generated" in line for line in report.findings)
    assert not any(one.row.startswith("greedy output") for one in report.measurements)
    with pytest.raises(TargetUnavailable, match="return_token_ids"):
        run(6, FakeServer(tells_ids=False))


def test_lab_03_shows_the_rule_at_125_of_the_server_s_own_blocks():
    report, _ = run(3, FakeServer(unit=32), AlignedConfig())
    assert names(report, "repeat of 4,000 tokens") == {"hits": (3968,), "blocks": (124,), "counted": (3968,)}
    assert names(report, "repeat of 4,001 tokens")["hits"] == (4000,)
    drafted, _ = run(3, FakeServer(unit=32, has_drafter=True), AlignedConfig())
    assert names(drafted, "repeat of 4,000 tokens")["hits"] == (3936,)
    assert any("a drafter's block more at every such length" in line for line in drafted.findings)


def test_lab_05_finds_the_unit_in_force_from_the_hits_alone():
    for unit in (16, 784):
        report, _ = run(5, FakeServer(unit=unit))
        assert {one.value for one in report.measurements if one.name == "fitted_unit"} == {unit}
        assert any("is shorter than one block" in line for line in report.findings)
    report, _ = run(5, FakeServer(unit=700, max_model_len=600))
    assert any("no prompt of at most 599 tokens can fill a block of 700" in line for line in report.findings)
    assert report.cache_state == "uncontrolled", "where nothing can hit, no miss proves anything"


def test_lab_13_asks_no_reset_where_there_is_none():
    report, _ = run(13, FakeServer(isolation="renamed"))
    assert report.agrees and not any(one.name == "accepted" for one in report.measurements)
    assert any("no reset that a client may use" in line for line in report.findings)


def test_lab_13_asks_no_more_of_a_reset_that_became_a_renaming():
    report, _ = run(13, FakeServer(last_reset="renamed"))
    assert report.agrees and not any("after that" in one.row or one.name == "accepted" for one in report.measurements)
    assert any("a reset was refused" in line and "not judged" in line for line in report.findings)
    report, _ = run(13, FakeServer(last_reset="refused"))
    assert names(report, "reset, nothing is running") == {"accepted": (0,)} and not report.agrees


def test_lab_13_leaves_out_prompt_logprobs_where_they_are_refused():
    report, _ = run(13, FakeServer(kind="sglang", unit=1))
    assert report.agrees and not any("prompt_logprobs" in one.row for one in report.measurements)
    assert any("prompt_logprobs are not asked" in line for line in report.findings)


def test_a_server_that_keeps_what_a_reset_should_drop_is_uncontrolled(monkeypatch):
    server = FakeServer()
    monkeypatch.setattr(server._inside.__class__, "reset", lambda self: True)
    report, session = run(3, server)
    assert report.cache_state == "uncontrolled" and "cold" not in session.states


SILENT = {"tells_usage": False, "tells_counters": False}


@pytest.mark.parametrize("number", [2, 3, 4, 5, 6, 13])
def test_a_server_that_tells_nothing_meets_nothing(number):
    report, _ = run(number, FakeServer(**SILENT))
    assert not counts_hits(report.measurements) and report.agrees and report.cache_state == "uncontrolled"
    assert "Nothing could be counted here" in report.conclusion
    said = " ".join((*report.findings, report.conclusion))
    for claim in ("NOTHING is reused", "equals its prediction", "found what", "prediction was met", "0 of the prompt", "was not cold"):
        assert claim not in said


def test_lab_10_needs_answers_and_says_so():
    with pytest.raises(TargetError, match="does not tell what a guess found"):
        run(10, FakeServer(**SILENT))


def test_a_sweep_judges_only_what_is_told(monkeypatch):
    server = FakeServer(tells_counters=False)
    told = iter([False, True] * 10_000)
    monkeypatch.setattr(server.__class__, "tells_usage", property(lambda self: next(told), lambda self, value: None), raising=False)
    report, _ = run(5, server)
    (sweep,) = [one for one in report.measurements if one.name == "requests"]
    assert sweep.agrees and 0 < sweep.predicted.value < 16 and "tell nothing of their hits" in sweep.note


def test_lookups_counted_twice_are_told_with_their_ratio_and_without_a_verdict():
    report, _ = run(4, FakeServer(num_counts=2))
    looked_up = [one for one in report.measurements if one.name == "queries"]
    assert looked_up and {one.predicted for one in looked_up} == {None}
    assert any("(×2.00)" in line and "counts lookups more than once" in line for line in report.findings)
    assert "took 768 of 1,152 tokens (66.67%)" in report.conclusion, "a rate is of what was sent"


def test_lookups_that_nobody_counts_make_no_rate_above_one():
    report, _ = run(4, FakeServer(is_counting=False))
    assert "took 768 of 1,152 tokens (66.67%)" in report.conclusion


def test_strangers_tokens_are_not_taken_for_a_lookup_that_should_not_be():
    report, _ = run(13, FakeServer(num_foreign=50))
    assert report.agrees and any("50 tokens where none are due" in line for line in report.findings)


def test_others_are_not_taken_for_salts_that_are_ignored():
    for number in (4, 13):
        report, _ = run(number, FakeServer(num_foreign=50, keeps_salts=False))
        assert not report.agrees and not any("NOT isolated" in line for line in report.findings)
        assert any("while others used" in line or "others use this server" in line for line in report.findings)


def test_a_request_that_should_not_be_looked_up_and_is_does_not_pass():
    report, _ = run(13, FakeServer(counts_skips=True))
    missed = [(one.row, one.name) for one in report.measurements if one.agrees is False]
    assert missed == [("prompt_logprobs, cold cache", "queries"), ("prompt_logprobs, warm cache", "queries")]


# Over HTTP: our own server


def over_http(url: str) -> OpenServer:
    return OpenServer(ServerRun(ServerAddress.of(url)))


SKIPPING = ("prompt_logprobs, cold cache", "prompt_logprobs, warm cache")  # rows of lab 13
HTTP_SERVERS = {
    "vllm": {"num_gpu_blocks": 4_000},
    "vllm, block 32, no reset, no usage": {"block_size": 32, "num_gpu_blocks": 2_000, "reset_endpoint": False, "cache_report": False},
    "vllm beside a drafter, no counters": {"use_eagle": True, "num_gpu_blocks": 4_000, "metrics_endpoint": False},
    "sglang": {"flavor": "sglang", "num_gpu_blocks": 60_000},
    "sglang, page 16, no usage": {"flavor": "sglang", "page_size": 16, "num_gpu_blocks": 4_000, "cache_report": False},
}


@pytest.mark.parametrize(
    ("number", "manners"),
    [(number, manners) for number in (2, 3, 6, 13) for manners in ("vllm", "sglang")] + [(4, manners) for manners in HTTP_SERVERS],
)
def test_our_own_server_meets_every_prediction_over_http(number, manners):
    with served(**HTTP_SERVERS[manners]) as url:
        report, _ = run(number, over_http(url))
    assert [one for one in report.measurements if one.agrees is False] == []
    assert report.cache_state == "cold"


def test_lab_04_asks_a_server_for_no_more_room_than_its_finds_need():
    with served(flavor="sglang", num_gpu_blocks=11_001) as url:
        server = over_http(url)
        report, _ = run(4, server, HitRateConfig())
    assert [one for one in report.measurements if one.agrees is False] == [] and server.notes() == ()
    with served(flavor="sglang", num_gpu_blocks=5_001) as url:
        server = over_http(url)
        report, _ = run(4, server, HitRateConfig())
    unjudged = [one for one in report.measurements if one.note.startswith("not judged: the pool keeps 5,000 tokens")]
    assert report.agrees and {one.row for one in unjudged} == {"unique token appended", "shared token appended"}
    assert {one.predicted for one in unjudged} == {None}
    assert any("holds 5,000 tokens and the lab wants 10," in note and "may lower hits" in note for note in server.notes())


def test_lab_10_asks_a_small_pool_for_what_it_keeps_and_refuses_what_was_typed_beyond_that():
    config = lookup("10").load().config_type()
    with served(num_gpu_blocks=40) as url:
        server = over_http(url)
        report, session = run(10, server, config)
        assert report.agrees and session.lab_config.system_tokens < config.system_tokens
        assert not any("lab wants" in note for note in server.notes())
        with pytest.raises(ConfigError, match="system_tokens is 600; accepted: at most 108 on this server: the pool of 624 tokens"):
            run(10, server, replace(config, system_tokens=600), typed=("system_tokens",))


def test_counts_stay_whole_numbers_in_the_table_and_in_words():
    report, _ = run(4, FakeServer(unit=1, kind="sglang"), replace(lookup("4").load().quick, num_requests=3))
    (later,) = [one for one in report.measurements if one.name == "later" and one.row.startswith("shared system prompt")]
    assert len(later.samples) == 2 and type(later.value) is int
    assert "each later one reuses 256." in report.conclusion


def break_cap(monkeypatch):
    def lookup_all(self, request):
        return self.prefix_cache.match(request, request.num_tokens)

    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "get_computed_blocks", lookup_all)


def break_parent(monkeypatch):
    monkeypatch.setattr(block_hash.BlockHasher, "extend", name_blocks_without_their_parents)


@pytest.mark.parametrize(("broken", "number"), [(break_cap, 3), (break_cap, 4), (break_parent, 4)])
def test_a_broken_engine_behind_http_does_not_pass(monkeypatch, broken, number):
    broken(monkeypatch)
    with served(num_gpu_blocks=4_000) as url:
        report, _ = run(number, over_http(url))
    assert not report.agrees


def test_lab_13_sees_over_http_that_prompt_logprobs_are_not_looked_up():
    with served(**HTTP_SERVERS["vllm"]) as url:
        report, _ = run(13, over_http(url))
    for row in SKIPPING:
        judged = {one.name: one.samples for one in report.measurements if one.row == row and one.predicted is not None}
        assert judged == {"hits": (0,), "counted": (0,), "queries": (0,)}
    assert report.agrees


def look_up_what_should_skip(monkeypatch):
    monkeypatch.setattr(Request, "skips_cache_read", property(lambda self: False))


def count_what_skips(monkeypatch):
    def look_up_no_more(self, request):
        return NO_MATCH if request.skips_cache_read else look_up(self, request)

    look_up = kv_cache_manager.KVCacheManager.get_computed_blocks
    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "get_computed_blocks", look_up_no_more)
    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "reads_cache", lambda self, request: self.caching_enabled)


COLD_QUERIES, WARM_QUERIES = ((row, "queries") for row in SKIPPING)
WARM_HITS, WARM_COUNTED = ((SKIPPING[1], name) for name in ("hits", "counted"))


@pytest.mark.parametrize(
    ("broken", "missed"),
    [
        (look_up_what_should_skip, {COLD_QUERIES, WARM_QUERIES, WARM_HITS, WARM_COUNTED}),
        (count_what_skips, {COLD_QUERIES, WARM_QUERIES}),
    ],
)
def test_a_server_that_looks_prompt_logprobs_up_or_counts_them_does_not_pass(monkeypatch, broken, missed):
    broken(monkeypatch)
    with served(**HTTP_SERVERS["vllm"]) as url:
        report, _ = run(13, over_http(url))
    assert {(one.row, one.name) for one in report.measurements if one.agrees is False} == missed
