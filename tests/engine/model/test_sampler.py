from collections import Counter

import pytest
import torch

from engine.model.sampler import Sampler, SamplingRow, token_logprobs
from engine.request import SamplingParams

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0, 2.5]).log_softmax(-1)


def draw(params, num_draws=2000, seed=0):
    """Token counts of many draws from LOGITS."""
    sampler = Sampler(seed)
    return Counter(sampler.sample(LOGITS.repeat(num_draws, 1), [SamplingRow(params, 0)] * num_draws))


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(temperature=1e-9), SamplingParams(top_k=1)])
def test_greedy_takes_the_best_token(params):
    assert set(draw(params, 20)) == {1}


def test_samples_follow_the_probabilities():
    counts = draw(SamplingParams(), 5000)
    for token_id, probability in enumerate(LOGITS.exp().tolist()):
        assert counts[token_id] / 5000 == pytest.approx(probability, abs=0.03)


def test_temperature_flattens_and_sharpens():
    sharp, flat = (draw(SamplingParams(temperature=temperature))[1] for temperature in (0.2, 5.0))
    assert sharp > 0.85 * 2000 and flat < 0.4 * 2000


def test_top_k_keeps_the_k_best():
    assert set(draw(SamplingParams(top_k=3))) == {1, 2, 4}
    assert set(draw(SamplingParams(top_k=-1))) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_fewest_tokens_that_reach_p():
    best = LOGITS.exp().max().item()
    assert set(draw(SamplingParams(top_p=best - 0.01))) == {1}
    assert set(draw(SamplingParams(top_p=best + 0.01))) == {1, 4}
    assert set(draw(SamplingParams(top_p=1e-6))) == {1}


def test_a_seeded_request_draws_the_same_beside_any_neighbours_and_anew_at_each_position():
    params, logits = SamplingParams(seed=7), torch.zeros(1000)
    alone = [Sampler(0).sample(logits[None], [SamplingRow(params, position)])[0] for position in range(20)]
    neighbour = SamplingRow(SamplingParams(), 3)
    crowded = Sampler(5)
    beside = [
        crowded.sample(logits.repeat(3, 1), [neighbour, SamplingRow(params, position), neighbour])[1] for position in range(20)
    ]
    assert alone == beside and len(set(alone)) > 15
    assert alone != [Sampler(0).sample(logits[None], [SamplingRow(SamplingParams(seed=8), p)])[0] for p in range(20)]


def test_unseeded_requests_follow_the_engines_seed():
    rows, logits = [SamplingRow(SamplingParams(), 0)] * 20, torch.zeros(20, 1000)
    assert Sampler(1).sample(logits, rows) == Sampler(1).sample(logits, rows) != Sampler(2).sample(logits, rows)


def test_logprobs_are_those_of_the_raw_logits_best_first():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0)) * 4
    expected = logits.log_softmax(-1)
    reports = token_logprobs(logits, [5, 6, 7], [0, 2, 20])
    for row, (report, count) in enumerate(zip(reports, (0, 2, 20))):
        assert report.token_id == 5 + row
        assert report.logprob == pytest.approx(expected[row, 5 + row].item(), abs=1e-5)
        best = expected[row].topk(count)
        assert [candidate.token_id for candidate in report.top] == best.indices.tolist()
        assert [candidate.logprob for candidate in report.top] == pytest.approx(best.values.tolist(), abs=1e-5)
