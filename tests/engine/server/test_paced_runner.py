"""PacedRunner: the cost model's seconds, on a clock that tests move."""

from __future__ import annotations

import math

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.llm_engine import LLMEngine
from engine.model.simulated_runner import SimulatedRunner
from engine.request import SamplingParams
from engine.server.paced_runner import MAX_CATCH_UP_S, PacedRunner


class Clock:
    """Time that passes in `sleep` only, and each time a little more than asked for."""

    def __init__(self, late_s=0.0):
        self.now_s = 100.0
        self.late_s = late_s
        self.slept_s = []

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        assert seconds > 0
        self.slept_s.append(seconds)
        self.now_s += seconds + self.late_s


def paced(clock, pace=1.0):
    runner = PacedRunner(SimulatedRunner(), pace, clock=clock, sleep=clock.sleep)
    return LLMEngine(EngineConfig(model="llama-3-8b"), runner)


def metrics_of(engine, prompt, max_tokens=10):
    return engine.generate([prompt], SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))[0].metrics


def simulated_metrics(prompt, **settings):
    return metrics_of(LLMEngine(EngineConfig(model="llama-3-8b"), SimulatedRunner()), prompt, **settings)


@pytest.mark.parametrize("pace", [0.5, 1.0, 20.0])
def test_a_client_waits_as_long_as_the_cost_model_says_times_the_pace(pace):
    real, simulated = metrics_of(paced(Clock(), pace), range(500)), simulated_metrics(range(500))
    assert math.isclose(real.ttft_s, pace * simulated.ttft_s)
    assert math.isclose(real.e2e_s, pace * simulated.e2e_s)


def test_waking_up_late_does_not_add_up_over_the_steps_of_a_request():
    late_s = 0.001
    real = metrics_of(paced(Clock(late_s)), range(500), max_tokens=100)
    simulated = simulated_metrics(range(500), max_tokens=100)
    assert math.isclose(real.e2e_s, simulated.e2e_s + late_s)


def test_a_request_after_a_pause_gets_nothing_for_the_time_nobody_waited():
    clock = Clock()
    engine = paced(clock)
    first = metrics_of(engine, range(500))
    clock.now_s += 0.005
    second = metrics_of(engine, range(1_000, 1_500))
    assert math.isclose(first.ttft_s, second.ttft_s)


def test_after_a_long_stop_only_a_little_is_made_good():
    clock = Clock()
    engine = paced(clock)
    engine.add_request(range(500), SamplingParams(max_tokens=3, ignore_eos=True))
    engine.step()
    clock.now_s += 60.0
    before_s = clock.now_s
    engine.add_request(range(1_000, 5_000), SamplingParams(max_tokens=1, ignore_eos=True))
    engine.step()  # a decode and a long prompt, longer than what is made good
    simulated = LLMEngine(EngineConfig(model="llama-3-8b"), SimulatedRunner())
    for prompt in (range(500), range(1_000, 5_000)):
        simulated.add_request(prompt, SamplingParams(max_tokens=3, ignore_eos=True))
        started_s = simulated.runner.now()
        simulated.step()
    step_s = simulated.runner.now() - started_s
    assert math.isclose(clock.now_s - before_s, step_s - MAX_CATCH_UP_S)


def test_at_pace_0_nobody_waits():
    clock = Clock()
    metrics_of(paced(clock, 0), range(500))
    assert clock.slept_s == []


def test_tokens_are_those_of_the_simulated_runner_and_the_end_of_text_is_the_texts():
    plain = LLMEngine(EngineConfig(model="llama-3-8b"), SimulatedRunner())
    params = SamplingParams(temperature=0, max_tokens=8)
    (expected,) = plain.generate([range(50)], params)
    (output,) = paced(Clock()).generate([range(50)], params)
    assert output.output_token_ids == expected.output_token_ids
    clock = Clock()
    runner = PacedRunner(SimulatedRunner(), 0, frozenset(expected.output_token_ids[3:4]), clock=clock, sleep=clock.sleep)
    (ended,) = LLMEngine(EngineConfig(model="llama-3-8b"), runner).generate([range(50)], params)
    assert ended.output_token_ids == expected.output_token_ids[:4]


@pytest.mark.parametrize("pace", [-1, math.nan, math.inf, 1_001, True, "1"])
def test_a_pace_that_is_none_is_refused(pace):
    with pytest.raises(ConfigError, match="pace is .*; accepted: a number from 0"):
        PacedRunner(SimulatedRunner(), pace)
