import pytest
import torch

from engine.config import EngineConfig
from engine.model.model_runner import ModelRunner
from engine.request import Request, SamplingParams
from engine.scheduler import ScheduledRequest, SchedulerOutput

PROMPT = list(range(40, 60))


@pytest.fixture
def runner(tiny):
    runner = ModelRunner(tiny, EngineConfig())
    runner.allocate_kv(num_blocks=40, unit_size=4)
    return runner


def request(name, **params):
    return Request(name, PROMPT, SamplingParams(**{"temperature": 0.0, **params}))


def whole(item, blocks):
    return ScheduledRequest(item, 0, item.num_tokens, blocks)


def test_the_runner_tells_the_models_limits(runner):
    assert runner.bytes_per_token() == 2 * 2 * 2 * 16 * 4  # K and V, layers, K/V heads, head_dim, float32
    assert (runner.vocab_size, runner.max_model_len, runner.eos_token_ids) == (512, 8192, {256})
    assert runner.now() <= runner.now()


def test_only_requests_whose_tokens_are_all_computed_sample(runner):
    done, partial = request("done"), request("partial")
    output = runner.execute(
        SchedulerOutput([ScheduledRequest(partial, 0, 7, [1, 2, 3, 4, 5]), whole(done, [6, 7, 8, 9, 10])])
    )
    assert output.sampled_token_ids[0] is None and isinstance(output.sampled_token_ids[1], int)
    assert output.logprobs == [None, None] and output.prompt_logprobs == {}
    assert done.num_tokens == len(PROMPT), "appending is the scheduler's"


def test_an_empty_step_computes_nothing(runner):
    output = runner.execute(SchedulerOutput())
    assert output.sampled_token_ids == [] and output.logprobs == []


def test_logprobs_go_to_the_requests_that_asked_in_their_own_number(runner):
    items = [request("none"), request("two", logprobs=2), request("zero", logprobs=0)]
    output = runner.execute(SchedulerOutput([whole(item, list(range(5 * i + 1, 5 * i + 6))) for i, item in enumerate(items)]))
    assert output.logprobs[0] is None
    assert [len(report.top) for report in output.logprobs[1:]] == [2, 0]
    assert output.logprobs[1].top[0].token_id == output.logprobs[1].token_id == output.sampled_token_ids[1]
    assert output.logprobs[2].logprob == pytest.approx(output.logprobs[1].logprob, abs=1e-5)


def test_prompt_logprobs_of_the_prompt_alone_start_at_its_second_token(runner):
    scored, other = request("scored", prompt_logprobs=1), request("other")
    output = runner.execute(SchedulerOutput([whole(other, [1, 2, 3, 4, 5]), whole(scored, [6, 7, 8, 9, 10])]))
    assert set(output.prompt_logprobs) == {"scored"}
    reports = output.prompt_logprobs["scored"]
    assert list(reports) == list(range(1, len(PROMPT)))
    assert [report.token_id for report in reports.values()] == PROMPT[1:]


def test_only_rows_that_sample_reach_the_vocabulary(runner, tiny, monkeypatch):
    rows, project = [], tiny.head.projection
    monkeypatch.setattr(tiny.head, "projection", lambda hidden: rows.append(hidden.shape[0]) or project(hidden))
    partial = request("partial")
    runner.execute(SchedulerOutput([ScheduledRequest(partial, 0, 7, [1, 2, 3, 4, 5]), whole(request("a"), [6, 7, 8, 9, 10])]))
    runner.execute(SchedulerOutput([ScheduledRequest(partial, 7, 3, [1, 2, 3, 4, 5])]))
    assert rows == [1]


def test_a_seeded_request_repeats_itself_when_its_kv_is_computed_again(runner):
    def outputs(blocks, num_neighbours):
        item = request("seeded", temperature=1.0, seed=11)
        neighbours = [request(str(index), temperature=1.0) for index in range(num_neighbours)]
        computed = 0
        for step in range(8):
            # Computed anew in the middle, as after a preemption.
            computed = 0 if step == 4 else computed
            shares = [ScheduledRequest(item, computed, item.num_tokens - computed, blocks)]
            shares += [whole(neighbour, list(range(20 + 6 * i, 26 + 6 * i))) for i, neighbour in enumerate(neighbours)]
            computed = item.num_tokens
            item.append_output_token_ids([runner.execute(SchedulerOutput(shares)).sampled_token_ids[0]])
        return item.output_token_ids

    first = outputs(list(range(1, 9)), 0)
    assert first == outputs(list(range(9, 17)), 2) and len(set(first)) > 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cuda_chooses_from_the_same_distribution_as_the_cpu(checkpoint, dtype):
    from engine.model.loader import load_model

    reports = []
    for device, device_dtype in (("cpu", "float32"), ("cuda", dtype)):
        config = EngineConfig(model=str(checkpoint), device=device, dtype=device_dtype)
        runner = ModelRunner(load_model(config), config)
        runner.allocate_kv(40, 4)
        scored, blocks = request("scored", prompt_logprobs=0), [9, 2, 30, 4, 17]
        found = {}
        for start, num_tokens in ((0, 8), (8, 11), (19, 1)):
            share = ScheduledRequest(scored, start, num_tokens, blocks)
            neighbour = ScheduledRequest(request("other"), 0, 20, [20, 21, 22, 23, 24])
            found |= runner.execute(SchedulerOutput([share, neighbour])).prompt_logprobs.get("scored", {})
        reports.append([report.logprob for report in found.values()])
    assert reports[1] == pytest.approx(reports[0], abs=1e-3 if dtype == "float32" else 1.0)
