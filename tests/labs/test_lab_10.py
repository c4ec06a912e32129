"""Lab 10: what the clock and the hits tell a neighbour, what salts cost, and engines that let salts leak."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kvcache import kv_cache_manager
from engine.kvcache.prefix_cache import NO_MATCH
from labs.caches import radix_cache
from labs.lab_10_isolation_and_timing import LAB, Config
from labs.protocol import LabReport
from labs.scenarios.prompt_guesses import Arm, PromptGuesses, guess_tokens
from labs.scenarios.salt_series import SCOPES, SaltSeries
from labs.targets.in_process import InProcessTarget
from labs.targets.open_target import SIM_MODEL, open_target_factory
from tests.labs.fake_session import FakeSession

HASH, PAGE_1, PAGE_16 = "hash cache, block 16", "radix cache, page 1", "radix cache, page 16"
SENT, NEXT, COST = "was this prompt sent?", "what comes next?", "what salts cost"
CACHES = (HASH, PAGE_1, PAGE_16)


def run_lab(config: Config = LAB.quick, **engine_fields) -> LabReport:
    return LAB.run(FakeSession(open_target_factory("sim", EngineConfig(model=SIM_MODEL, **engine_fields))), config)


@pytest.fixture(scope="module")
def report() -> LabReport:
    return run_lab(Config())


def samples(report: LabReport, cache: str, part: str, row: str, name: str) -> tuple:
    found = [one for one in report.measurements if (one.group, one.row, one.name) == (f"{cache}: {part}", row, name)]
    (one,) = found
    return one.samples


def values(report: LabReport, cache: str, part: str, rows: list[str], name: str) -> list:
    return [samples(report, cache, part, row, name)[0] for row in rows]


@pytest.mark.parametrize(("cache", "repeat"), [(HASH, 144), (PAGE_1, 159), (PAGE_16, 144)])
def test_a_right_guess_hits_without_salts_and_never_with_them(report, cache, repeat):
    assert samples(report, cache, SENT, "no salts: right guess", "hits") == (repeat,) * 12
    assert samples(report, cache, SENT, "a salt per user: right guess", "hits") == (0,) * 12
    for arm in ("no salts", "a salt per user"):
        assert samples(report, cache, SENT, f"{arm}: first token wrong", "hits") == (0,)
        assert samples(report, cache, SENT, f"{arm}: unrelated (control)", "hits") == (0,) * 12
        # The positive control: the victim's own repeat hits with and without a salt.
        assert samples(report, cache, SENT, f"{arm}: the victim, again", "hits") == (repeat,) * 12


@pytest.mark.parametrize("cache", CACHES)
def test_times_separate_without_salts_and_are_at_chance_with_them(report, cache):
    rows = ["no salts: right guess", "a salt per user: right guess"]
    assert values(report, cache, SENT, rows, "auc") == [1.0, 0.5]


@pytest.mark.parametrize(
    ("cache", "wrong", "right", "block"), [(HASH, 48, 48, 64), (PAGE_1, 48, 49, None), (PAGE_16, 48, 48, 64)]
)
def test_pages_of_one_token_answer_to_a_token_blocks_to_a_block(report, cache, wrong, right, block):
    assert values(report, cache, NEXT, ["next token wrong", "next token right"], "hits") == [wrong, right]
    if block is not None:
        assert values(report, cache, NEXT, ["next 16 tokens right"], "hits") == [block]


@pytest.mark.parametrize(
    ("cache", "found", "sent"), [(HASH, [0, 0], [4, 4]), (PAGE_1, [16, 0], [64, 4]), (PAGE_16, [0, 0], [4, 4])]
)
def test_a_secret_is_read_token_by_token_with_pages_of_one_token_only(report, cache, found, sent):
    rows = ["one by one: no salts", "one by one: a salt per user"]
    assert values(report, cache, NEXT, rows, "found") == found
    assert values(report, cache, NEXT, rows, "sent") == sent


def test_the_guesses_for_a_block_are_told(report):
    blocks, tokens = (
        next(line for line in report.findings if line.startswith(f"{cache}: {text}"))
        for cache, text in ((HASH, "only whole blocks answer"), (PAGE_1, "each right token"))
    )
    assert "4^16 = 4,294,967,296" in blocks and "0 of 16 secret tokens" in blocks
    assert "16 of 16 secret tokens" in tokens and "64 guesses" in tokens


def test_findings_and_conclusion_say_what_was_read_and_not_what_should_be(monkeypatch):
    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "get_computed_blocks", lambda self, request: NO_MATCH)
    report = run_lab(Config())
    told = " ".join(report.findings)
    assert "0 of 16 secret tokens of 4 candidates fell to 4 guesses" in told and "fell to 64 guesses" not in told
    assert "only whole blocks answer" not in told and "token by token" not in report.conclusion
    assert len(report.conclusion) < 1_500 and " more. What follows" in report.conclusion


def test_only_small_pages_are_said_to_be_read_token_by_token(report):
    assert f"token by token ({PAGE_1})" in report.conclusion
    assert "guess whole blocks" in run_lab(replace(LAB.quick, page_sizes=(16,))).conclusion


@pytest.mark.parametrize(
    ("cache", "blocks"), [(HASH, [20, 28, 44, 108]), (PAGE_1, [320, 448, 704, 1728]), (PAGE_16, [20, 28, 44, 108])]
)
def test_each_salt_pays_for_the_shared_prompt_and_stores_it(report, cache, blocks):
    rows = ["no salts", "a salt per tenant", "a salt per user", "a salt per request"]
    assert values(report, cache, COST, rows, "hits") == [11 * 128, 10 * 128, 8 * 128, 0]
    assert values(report, cache, COST, rows, "blocks") == blocks


def test_every_prediction_is_met_the_cache_was_cold_and_the_clock_is_said_to_be_simulated(report):
    assert report.agrees and report.cache_state == "cold"
    assert any("checks the accounting, not physics" in one.note for one in report.measurements if one.name == "auc")
    assert [chart.kind for chart in report.charts] == ["times", "bars", "bars"]


def test_no_salt_and_no_prompt_is_in_the_report(report):
    guesses = PromptGuesses.from_seed(
        0, 128_256, num_trials=12, prompt_tokens=160, num_candidates=4, num_known=48, num_secret=16
    )
    shown = repr(report)
    from labs.salts import salts

    series = salts(0)
    assert not any(next(series) in shown for _ in range(12))
    assert str(list(guesses.victims[0][:8]))[1:-1] not in shown and "salt=" not in repr(Arm("no salts", "secret", "other"))


def test_short_prompts_hide_from_the_simulated_clock_but_not_from_the_counts():
    report = run_lab(replace(LAB.quick, prompt_tokens=48))
    assert report.agrees
    assert samples(report, HASH, SENT, "no salts: right guess", "hits") == (32,) * 7
    assert samples(report, HASH, SENT, "no salts: right guess", "auc") == (0.5,)
    assert any("no time saved" in line for line in report.findings)


@pytest.mark.parametrize("engine_fields", [{"leave_out_of_key": "salt"}, {"enable_prefix_caching": False}])
def test_an_engine_without_isolation_or_without_a_cache_is_noticed(engine_fields):
    assert not run_lab(**engine_fields).agrees


def test_a_lost_cap_is_noticed(monkeypatch):
    def lookup(self, request):
        return self.prefix_cache.match(request, request.num_tokens)

    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "get_computed_blocks", lookup)
    assert not run_lab(Config()).agrees


def test_a_clock_that_leaks_beside_the_counts_is_noticed(monkeypatch):
    original, salted = InProcessTarget.complete, []

    def complete(self, prompt_token_ids, **fields):
        completion = original(self, prompt_token_ids, **fields)
        known = tuple(prompt_token_ids) in salted
        if fields.get("cache_salt"):
            salted.append(tuple(prompt_token_ids))
        return replace(completion, ttft_s=completion.ttft_s / 2) if known else completion

    monkeypatch.setattr(InProcessTarget, "complete", complete)
    report = run_lab()
    missed = {(one.row, one.name) for one in report.measurements if one.agrees is False}
    assert missed == {("a salt per user: right guess", "auc")}


def test_a_cache_that_is_not_cold_is_reported(monkeypatch):
    monkeypatch.setattr(InProcessTarget, "reset", lambda self: True)  # says yes and does nothing
    assert run_lab().cache_state == "uncontrolled"


class OpenRealClock:
    """Simulated targets that pass for real ones: the clock is nobody's model."""

    kind = "engine"
    served = None

    def __init__(self) -> None:
        self._open = FakeSession().open_target

    def __call__(self, **engine_fields):
        target = self._open(**engine_fields)
        target.info = replace(target.info, kind="engine")
        return target


def test_on_a_real_clock_one_cache_is_judged_by_a_range_and_the_others_by_one_trial_of_counts():
    session = FakeSession(OpenRealClock())
    report = LAB.run(session, LAB.quick)
    assert report.agrees and report.cache_state == "cold" and session.done == session.expected
    shared, salted = [one for one in report.measurements if one.name == "auc"]
    spread = 3 * (15 / 588) ** 0.5
    assert (shared.predicted.low, shared.predicted.high) == (pytest.approx(0.5 + spread), 1.0)
    assert (salted.predicted.low, salted.predicted.high) == (pytest.approx(0.5 - spread), pytest.approx(0.5 + spread))
    assert shared.group == salted.group == f"{HASH}: {SENT}"
    assert samples(report, PAGE_1, SENT, "no salts: right guess", "hits") == (143,)


def test_the_salt_series_give_each_user_and_tenant_one_salt():
    by_scope = {scope: SaltSeries(scope, 12, 4, 2).salts(0) for scope in SCOPES}
    assert [len(set(salts)) for salts in by_scope.values()] == [1, 2, 4, 12]
    # Two requests of one user have one tenant.
    assert len(set(zip(by_scope["user"], by_scope["tenant"]))) == 4


def test_a_neighbour_finds_nothing_with_a_salt_of_his_own():
    target = FakeSession().open_target(prefix_cache="radix", page_size=1)
    guesses = PromptGuesses.from_seed(
        3, 1000, num_trials=7, prompt_tokens=20, num_candidates=3, num_known=10, num_secret=5
    )
    with_salt, without = Arm("salts", "a", "b"), Arm("no salts", None, None)
    session = FakeSession()
    assert guess_tokens(session, target, radix_cache(1), with_salt, guesses).num_found == 0
    assert guess_tokens(session, target, radix_cache(1), without, guesses).num_found == 5


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_trials": 6}, "num_trials is 6; accepted: a whole number from 7"), ({"page_sizes": ()}, "page_sizes"),
        ({"num_users": 13}, "num_users is 13; accepted: a whole number from 1 to num_requests"),
        ({"num_tenants": 5}, "num_tenants is 5; accepted: a whole number from 1 to num_users"),
        ({"num_candidates": 1}, "num_candidates is 1"), ({"block_size": 0}, "block_size is 0"),
        ({"num_trials": 60_000}, "num_trials is 60000; accepted: a whole number from 7 to 1000"),
        ({"num_candidates": 200_000}, "num_candidates is 200000; accepted: a whole number from 2 to 128"),
        ({"secret_tokens": 1_000_003}, "secret_tokens is 1000003; accepted: a whole number from 1 to 1024"),
        ({"num_requests": 60_000}, "num_requests is 60000; accepted: a whole number from 2 to 1000"),
    ],
)  # fmt: skip
def test_an_impossible_configuration_is_named(fields, named):
    with pytest.raises(ValueError, match=named):
        Config(**fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt_tokens": 9000}, "prompt_tokens is 9000; accepted: at most 8191"),
        ({"system_tokens": 9000}, "system_tokens is 9000; accepted: at most"),
        ({"user_tokens": 1_000_003}, "user_tokens is 1000003; accepted: at most 8063"),
        ({"known_tokens": 1_000_003}, "known_tokens is 1000003; accepted: at most 8174"),
    ],
)
def test_sizes_the_model_cannot_take_are_named(fields, named):
    with pytest.raises(ConfigError, match=named):
        run_lab(Config(**fields))


@pytest.mark.parametrize("block_size", [7, 64, 784])
def test_blocks_of_any_size_meet_the_laws(block_size):
    report = run_lab(Config(block_size=block_size, page_sizes=(3,)))
    assert report.agrees and report.cache_state == "cold"
