"""On a GPU: the tokens are transformers' own. Times are printed beside what theory predicts, and never asserted.

The functions that measure are gpu_check.py's; on a CPU they run once, small, so that they work when a GPU is there.
"""

from __future__ import annotations

import pytest
import torch

from engine.errors import ModelNotFound
from tests.gpu import gpu_check

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@NEEDS_GPU
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["synthetic:tiny", "smollm2"])
def test_tokens_are_those_of_transformers_but_for_near_ties(model, dtype):
    try:
        result = gpu_check.check_tokens(model, dtype)
    except ModelNotFound as error:
        pytest.skip(str(error))
    gpu_check.write_result(f"tokens_{model.replace(':', '_')}_{dtype}", result)
    assert result["cached_tokens_when_warm"] > 0
    assert all(one["explained"] for one in result["parted"]), result["parted"]


@NEEDS_GPU
def test_speed_is_measured(capsys):
    with capsys.disabled():
        gpu_check.write_result("attention", gpu_check.attention_in_use())
        result = gpu_check.measure_speed()
        gpu_check.write_result("speed", result)
    # What is counted is asserted, what is timed is not.
    assert result["ttft"]["cached_tokens"] == [gpu_check.SHARED_TOKENS]
    assert result["ttft"]["predicted_ratio"] == 10.66


# The same functions on a CPU


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(gpu_check, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_check, "SHARED_TOKENS", 64)
    monkeypatch.setattr(gpu_check, "OWN_TOKENS", 8)


def test_the_token_check_finds_equal_tokens_equal(small):
    result = gpu_check.check_tokens("synthetic:tiny", "float32", num_prompts=2, num_outputs=4)
    assert result["compared"] == 4 and result["parted"] == [] and result["cached_tokens_when_warm"] > 0


def test_the_token_check_finds_other_tokens_and_no_tie(small, monkeypatch):
    monkeypatch.setattr(gpu_check, "greedy", lambda reference, prompt, num_outputs: [5] * num_outputs)
    result = gpu_check.check_tokens("synthetic:tiny", "float32", num_prompts=1, num_outputs=2)
    assert [(one["at"], one["explained"]) for one in result["parted"]] == [(0, False)] * 2


def test_times_are_measured_beside_the_prediction(small, monkeypatch):
    monkeypatch.setattr(gpu_check, "gpu_busy_seconds", lambda step, num_steps: 0.0)
    engine = gpu_check.make_engine("synthetic:tiny", "float32", max_model_len=512)
    ttft = gpu_check.measure_ttft(engine, repeats=1)
    assert ttft["cached_tokens"] == [64] and ttft["ratio"] > 0 and ttft["predicted_ratio"] == 8.99
    decode = gpu_check.measure_decode(engine, batch=3, num_steps=2, prompt_tokens=8)
    assert decode["tokens_per_s"] == pytest.approx(3 / decode["step_s"])
    assert not engine.has_unfinished_requests


def test_overlapping_kernels_count_once():
    assert gpu_check.covered([(5, 7), (0, 2), (1, 3), (6, 6.5)]) == 5
