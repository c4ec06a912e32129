"""Lab 14 measures the published numbers of Llama-3-8B on an H100, and notices a count that is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine import cost_model
from engine.config import EngineConfig
from engine.cost_model import model_shape
from engine.errors import ConfigError
from engine.kvcache import kv_cache_manager
from engine.kvcache.prefix_cache import NO_MATCH
from engine.llm_engine import LLMEngine
from engine.model.simulated_runner import STEP_OVERHEAD_S, SimulatedRunner
from engine.scheduler import Scheduler
from labs import theory
from labs.lab_14_cost_model import LAB, Config
from labs.line_fit import LineFit
from labs.measure import percentiles
from labs.protocol import LabReport, Measurement
from labs.scenarios.arrival_series import arrival_times, predicted_ttft, serve_arrivals
from labs.scenarios.prefill_series import PromptSource
from labs.target_shape import shape_of
from labs.targets.base import TargetError
from labs.targets.in_process import InProcessTarget
from labs.targets.open_target import SIM_MODEL, open_target_factory
from tests.labs.fake_session import FakeSession

HASH, PAGE_1 = "hash cache, block 16", "radix cache, page 1"
SMALL = Config(
    shared_tokens=240, user_tokens=24, cached_tokens=(0, 128), suffix_tokens=(32, 192), num_arrivals=10, arrival_rates=(200.0,)
)


def run_lab(config: Config, model: str = SIM_MODEL, gpu: str | None = None, **engine_fields) -> LabReport:
    return LAB.run(FakeSession(open_target_factory("sim", EngineConfig(model=model, **engine_fields), gpu=gpu)), config)


@pytest.fixture(scope="module")
def report() -> LabReport:
    return run_lab(Config())


def measured(report: LabReport, row: str, name: str, group: str | None = None):
    return next(one for one in report.measurements if (one.row, one.name) == (row, name) and group in (None, one.group))


def test_llama_3_8b_on_an_h100_gives_the_published_numbers(report):
    assert round(measured(report, "cold", "ttft").value * 1e3, 1) == 82.3  # 82.2 of arithmetic, 0.1 of overhead
    assert round(measured(report, "cold / warm", "saved").value * 1e3, 1) == 74.5
    assert "= 10.66" in measured(report, "cold / warm", "ratio").predicted.law
    assert round(measured(report, "cold / warm", "ratio").value, 2) == 10.54  # with the overhead of a step
    assert any("10.66 by FLOPs (2,000 of 2,200 tokens cached, llama-3-8b); 74.5 ms saved" in line for line in report.findings)


def test_prefills_without_a_cache_fill_the_gpu_below_20_requests_a_second(report):
    assert 12.0 < measured(report, "no cache, all at once", "served/s").value < 12.2 < 20
    assert measured(report, "no cache, 20/s", "served/s").value < 12.2
    assert 129 < measured(report, "cached, all at once", "served/s").value < 130


def test_above_saturation_the_queue_grows_and_with_the_cache_it_does_not(report):
    p90 = {rate: measured(report, f"no cache, {rate}/s", "p90").value for rate in (10, 20, 40)}
    assert p90[10] < 0.5 < 2 < p90[20] < p90[40]
    assert all(measured(report, f"cached, {rate}/s", "p90").value < 0.011 for rate in (10, 20, 40))
    longer = run_lab(Config(num_arrivals=200, arrival_rates=(20.0,), page_sizes=(16,), cached_tokens=(0,)))
    assert measured(longer, "no cache, 20/s", "p90").value > 1.5 * p90[20]
    assert measured(longer, "cached, 20/s", "p90").value < 0.011


@pytest.mark.parametrize("cache", [HASH, PAGE_1])
def test_hits_are_counted_in_every_arm(report, cache):
    rows = {"0 cached, 256 new": 0, "1,024 cached, 64 new": 1024, "cold": 0, "warm": 2000, "unrelated": 0}
    assert {row: measured(report, row, "hits", cache).value for row in rows} == rows
    assert measured(report, "repeat", "hits", cache).value == (2192 if cache == HASH else 2199)
    assert measured(report, "cached, 20/s", "hits").value == 100 * 2000
    assert measured(report, "no cache, 20/s", "hits").value == 0


def test_every_prediction_is_met_and_the_cache_was_proven_cold(report):
    assert report.agrees and report.cache_state == "cold"
    assert all(one.predicted is not None for one in report.measurements if one.name in ("hits", "ttft", "p50", "p90"))
    assert [chart.kind for chart in report.charts] == ["lines", "lines", "times"]


def test_two_runs_say_the_same():
    first, second = run_lab(SMALL), run_lab(SMALL)
    assert first.measurements == second.measurements and first.findings == second.findings and first.charts == second.charts


@pytest.mark.parametrize(("fields", "settings"), [
    ({"block_size": 7, "page_sizes": (3, 16)}, {}), ({"user_tokens": 1}, {"gpu": "L4"}), ({"seed": 3}, {"model": "smollm2-135m"}),
    ({"shared_tokens": 1000, "suffix_tokens": (5,)}, {"max_num_batched_tokens": 100}), ({"block_size": 784}, {}),
    ({"cached_tokens": (240,), "suffix_tokens": (1,), "num_arrivals": 2}, {"model": "llama-3-70b"}),
])  # fmt: skip
def test_other_sizes_models_and_gpus_are_predicted_as_well(fields, settings):
    report = run_lab(replace(SMALL, **fields), **settings)
    assert [one for one in report.measurements if one.agrees is False] == []
    assert report.cache_state == "cold"


def compute_hits_again(monkeypatch):
    original = Scheduler._scheduled

    def scheduled(self, request, num_tokens):
        item = original(self, request, num_tokens)
        return replace(item, start=0, num_tokens=item.end)

    monkeypatch.setattr(Scheduler, "_scheduled", scheduled)


def drop_the_cap(monkeypatch):
    def lookup(self, request):
        return self.prefix_cache.match(request, request.num_tokens)

    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "get_computed_blocks", lookup)


def find_nothing(monkeypatch):
    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "get_computed_blocks", lambda self, request: NO_MATCH)


def take_the_same_time_for_every_step(monkeypatch):
    monkeypatch.setattr("engine.model.simulated_runner.step_seconds", lambda *_: 0.001)


BROKEN = [drop_the_cap, find_nothing, compute_hits_again, take_the_same_time_for_every_step]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda rule: rule.__name__)
def test_a_broken_engine_does_not_pass(monkeypatch, broken):
    broken(monkeypatch)
    report = run_lab(SMALL)
    assert not report.agrees and report.conclusion.startswith("NOT as predicted")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"trials": 0}, "trials is 0"), ({"cached_tokens": (0, 3000)}, "cached_tokens is"),
        ({"suffix_tokens": ()}, "suffix_tokens"), ({"arrival_rates": (0.0,)}, "arrival_rates is"),
        ({"num_arrivals": 1}, "num_arrivals is 1"), ({"block_size": 0}, "block_size is 0"),
        ({"arrival_rates": (float("nan"),)}, "arrival_rates is"), ({"arrival_rates": (float("inf"),)}, "arrival_rates is"),
    ],
)  # fmt: skip
def test_an_impossible_configuration_is_named(fields, named):
    with pytest.raises(ValueError, match=f"{named}.*accepted"):
        Config(**fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"shared_tokens": 9000}, "shared_tokens is 9000; accepted: at most 7679"),
        ({"user_tokens": 1_000_003}, "user_tokens is 1000003; accepted: at most 6191"),
        ({"suffix_tokens": (64, 1_000_003)}, r"suffix_tokens is \(64, 1000003\); accepted: at most 6191"),
    ],
)
def test_a_prompt_that_cannot_fit_is_named_by_the_lab_s_field(fields, named):
    with pytest.raises(ConfigError, match=named):
        run_lab(Config(**fields))


def test_arrivals_wait_for_their_time_and_for_each_other():
    engine = LLMEngine(EngineConfig(model=SIM_MODEL, enable_prefix_caching=False), SimulatedRunner())
    first, late, later = serve_arrivals(engine, [[1] * 500, [2] * 500, [3] * 500], [0.0, 1.0, 1.001])
    alone = theory.simulated_ttft(engine.runner.shape, engine.runner.gpu, 0.45, 100e-6, 0, 500, 4096)
    assert first.ttft_s == pytest.approx(alone) and late.ttft_s == pytest.approx(alone)
    # It comes while the second is computed, and is computed after it.
    assert later.ttft_s == pytest.approx(2 * alone - 0.001)
    assert (late.arrived_s, late.num_cached_tokens) == (1.0, 0)


def test_a_real_clock_cannot_serve_arrivals():
    engine = LLMEngine(EngineConfig(model=SIM_MODEL), SimulatedRunner())
    engine.runner.is_simulated = False
    with pytest.raises(TargetError, match="accepted: target sim"):
        serve_arrivals(engine, [[1]], [0.0])


def test_arrival_times_have_their_rate_and_their_seed():
    times = arrival_times(20.0, 2_000, seed=1)
    assert times == sorted(times) == arrival_times(20.0, 2_000, seed=1) != arrival_times(20.0, 2_000, seed=2)
    assert times[-1] / 1999 == pytest.approx(1 / 20, rel=0.1)
    assert arrival_times(None, 3, seed=1) == [0.0] * 3


def test_percentiles_of_a_queue_follow_from_its_arrivals_and_steps():
    arrivals = arrival_times(20.0, 50, seed=0)
    target = FakeSession().open_target()
    runner = target.engine.runner
    cost = theory.StepCost(runner.shape, runner.gpu, runner.mfu, STEP_OVERHEAD_S, 4096, 128)
    law = predicted_ttft(50, arrivals, 0, 2200, cost)
    assert law.value == percentiles(theory.batched_ttfts(arrivals, 0, 2200, cost), (50,))[50]
    assert law.low < law.value < law.high < law.value + 1e-6 and "p50 of 50 requests" in law.law


def test_a_line_through_points_on_a_line_is_that_line():
    line = LineFit.of([1, 2, 4], [5, 7, 11])
    assert (line.intercept, line.slope, line.r_squared) == pytest.approx((3, 2, 1))
    assert line.at(10) == pytest.approx(23)
    assert LineFit.of([1, 2, 3], [1, 5, 1]).r_squared == pytest.approx(0)
    with pytest.raises(ValueError, match="at least 2"):
        LineFit.of([1, 1], [1, 2])


@pytest.fixture(scope="module")
def open_tiny():
    return open_target_factory("engine", EngineConfig(model="synthetic:tiny", dtype="float32", device="cpu", compile=False))


def test_the_shape_of_a_loaded_model_is_that_of_its_weights(open_tiny):
    target = open_tiny(num_gpu_blocks=2)
    shape, loaded = shape_of(target), target.engine.runner.loaded
    assert shape.num_parameters == sum(weight.numel() for weight in loaded.model.parameters())
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.vocab_size) == (2, 4, 2, 16, 512)


def test_a_model_of_another_family_has_its_weights_counted(open_tiny, monkeypatch):
    target = open_tiny(num_gpu_blocks=2)
    known = shape_of(target)

    def refuse(config, name, source):
        raise ConfigError("model_type", "another", "llama")

    monkeypatch.setattr("labs.target_shape.shape_from_config", refuse)
    assert shape_of(target) == replace(known, source="weights counted after loading")


class OpenRealClock:
    """Simulated targets that pass for real ones: the clock is nobody's model."""

    kind = "engine"
    served = None

    def __init__(self, **engine_fields) -> None:
        self._open = open_target_factory("sim", EngineConfig(model=SIM_MODEL, **engine_fields))

    def __call__(self, **engine_fields):
        target = self._open(**engine_fields)
        target.info = replace(target.info, kind="engine", device="cpu")
        return target


def ratios(report: LabReport) -> dict[str, Measurement]:
    return {one.row: one for one in report.measurements if one.name == "ratio"}


REAL = Config(cached_tokens=(0, 512), suffix_tokens=(64, 256))


def test_on_a_real_clock_the_ratios_are_judged_in_a_range_of_the_configuration():
    session = FakeSession(OpenRealClock())
    report = LAB.run(session, REAL)
    assert report.agrees and session.done == session.expected
    shape = model_shape(SIM_MODEL)
    least = theory.least_cold_over_warm(shape, 2000, 2200, 0.05 + cost_model.weight_bytes(shape) / 50e9, 3e12)
    for row in ("cold / warm", "unrelated / warm"):
        law = ratios(report)[row].predicted
        assert (law.low, law.high) == (least, 3 * theory.cold_over_warm(shape, 2000, 2200)) and law.low > 1.2
    assert any("2 trials] by time" in line and "2 trials] times a warm one" in line for line in report.findings)
    assert {one.group for one in report.measurements} == {HASH, PAGE_1}  # page 16 by --full only


def keep_what_is_found_and_save_nothing(monkeypatch):
    compute_hits_again(monkeypatch)


def answer_unrelated_prompts_as_fast(monkeypatch):
    original, prompt = InProcessTarget.complete, PromptSource.prompt
    unrelated = []

    def choose(self, arm):
        ids = prompt(self, arm)
        if arm.is_unrelated:
            unrelated.append(ids)
        return ids

    def complete(self, prompt_token_ids, **fields):
        completion = original(self, prompt_token_ids, **fields)
        return replace(completion, ttft_s=completion.ttft_s / 10) if prompt_token_ids in unrelated else completion

    monkeypatch.setattr(PromptSource, "prompt", choose)
    monkeypatch.setattr(InProcessTarget, "complete", complete)


@pytest.mark.parametrize(
    ("broken", "missed"),
    [
        (keep_what_is_found_and_save_nothing, {"cold / warm", "unrelated / warm"}),
        (answer_unrelated_prompts_as_fast, {"unrelated / warm"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_cache_that_saves_no_time_or_is_not_the_reason_is_noticed_on_a_real_clock(monkeypatch, broken, missed):
    broken(monkeypatch)
    report = LAB.run(FakeSession(OpenRealClock()), REAL)
    assert {one.row for one in report.measurements if one.agrees is False} == missed


def test_without_hits_the_percentiles_the_flops_and_the_findings_are_those_measured(monkeypatch):
    find_nothing(monkeypatch)
    report = run_lab(replace(SMALL, arrival_rates=(20.0, 200.0)))
    for row in ("cached, 20/s", "cached, 200/s", "cached, all at once"):
        assert not any(measured(report, row, name).agrees for name in ("hits", "p50", "p90"))
    warm = measured(report, "warm", "ttft", HASH)
    assert warm.params["flops"] == [theory.prefill_flops(model_shape(SIM_MODEL), 0, 264)]
    assert any("1.00 by FLOPs (0 of 264 tokens cached" in line for line in report.findings)


@pytest.mark.parametrize(("r_squared", "told"), [(0.95, "Time followed the FLOPs"), (0.5, "Time did NOT follow the FLOPs")])
def test_the_conclusion_says_whether_times_followed_the_flops(monkeypatch, r_squared, told):
    monkeypatch.setattr(LineFit, "of", classmethod(lambda cls, xs, ys: cls(0.1, 1e-12, r_squared)))
    report = LAB.run(FakeSession(OpenRealClock()), LAB.quick)
    assert told in report.conclusion and f"{r_squared:.2f}" in report.conclusion


def test_a_ratio_that_no_clock_could_show_is_not_judged(open_tiny):
    report = LAB.run(FakeSession(open_tiny), Config(shared_tokens=48, user_tokens=8, cached_tokens=(0,), suffix_tokens=(8, 16)))
    found = ratios(report)
    assert {one.predicted for one in found.values()} == {None} and all("not judged" in one.note for one in found.values())


def test_on_a_real_model_hits_are_exact_and_times_are_not_judged(open_tiny):
    session = FakeSession(open_tiny)
    report = LAB.run(session, Config(shared_tokens=96, user_tokens=8, cached_tokens=(0, 48), suffix_tokens=(8, 64)))
    assert not [one for one in report.measurements if one.unit == "tokens" and not one.agrees]
    assert {one.predicted for one in report.measurements if one.name == "ttft"} == {None}
    assert report.cache_state == "cold"
    assert session.done == session.expected and not any(one.group.startswith("arrivals") for one in report.measurements)
