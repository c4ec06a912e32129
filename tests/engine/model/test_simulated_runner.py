"""The simulated runner, driven with schedules written by hand."""

import hashlib
import math
import struct

import pytest

from engine.cost_model import gpu_by_name, model_shape, prefill_seconds, step_seconds
from engine.errors import ConfigError
from engine.kvcache.cache_identity import LoRA, MultimodalItem
from engine.model.simulated_runner import STEP_OVERHEAD_S, SimulatedRunner
from engine.request import Request, SamplingParams
from engine.scheduler import ScheduledRequest, SchedulerOutput

PROMPT = list(range(100, 140))


def request_of(token_ids=PROMPT, request_id="a", **sampling):
    return Request(request_id, token_ids, SamplingParams(**sampling))


def step(*items):
    """A step over (request, start, number of tokens), with block tables of 16-token blocks long enough for each."""
    scheduled = [
        ScheduledRequest(request, start, num_tokens, block_table=list(range(1, (start + num_tokens + 15) // 16 + 1)))
        for request, start, num_tokens in items
    ]
    return SchedulerOutput(scheduled=scheduled)


def generate(runner, request, num_tokens, num_cached=0):
    """Tokens of a request that runs alone, its first `num_cached` tokens found in a cache."""
    start = num_cached
    for _ in range(num_tokens):
        [token_id] = runner.execute(step((request, start, request.num_tokens - start))).sampled_token_ids
        start = request.num_tokens
        request.append_output_token_ids([token_id])
    return request.output_token_ids


def test_tokens_do_not_depend_on_the_cache_the_request_id_or_the_run():
    alone = generate(SimulatedRunner(), request_of(), 5)
    assert generate(SimulatedRunner(), request_of(request_id="b"), 5, num_cached=32) == alone


def test_tokens_do_not_depend_on_chunks_or_batch_neighbours():
    [expected] = generate(SimulatedRunner(), request_of(), 1)
    runner, request, neighbour = SimulatedRunner(), request_of(), request_of([7, 8, 9], "b")
    first = runner.execute(step((request, 0, 30)))
    second = runner.execute(step((neighbour, 0, 3), (request, 30, 10)))
    assert first.sampled_token_ids == [None]
    assert second.sampled_token_ids == [*generate(SimulatedRunner(), request_of([7, 8, 9]), 1), expected]


def test_a_resumed_request_goes_on_as_if_it_had_never_stopped():
    expected = generate(SimulatedRunner(), request_of(), 4)
    request = request_of()
    generate(SimulatedRunner(), request, 2)
    runner = SimulatedRunner()  # everything computed again, outputs included
    [third] = runner.execute(step((request, 0, request.num_tokens))).sampled_token_ids
    assert third == expected[2]


def test_tokens_without_an_identity_are_the_digest_of_their_ids_alone():
    runner = SimulatedRunner()
    digest = hashlib.blake2b(struct.pack("<40I", *PROMPT), digest_size=16).digest()
    expected = int.from_bytes(digest[:8], "little") % runner.vocab_size
    assert generate(runner, request_of(), 1) == generate(runner, Request("s", PROMPT, cache_salt="salt"), 1) == [expected]


def test_whatever_changes_a_real_model_s_kv_changes_the_output():
    image = MultimodalItem("cat", 10, 5)
    identities = [
        {}, {"lora": LoRA("a", "/1")}, {"lora": LoRA("a", "/2")}, {"lora": LoRA("b", "/1")}, {"mm_items": [image]},
        {"mm_items": [image._replace(identifier="dog")]}, {"mm_items": [image._replace(offset=11)]},
        {"prompt_embeds": [b"1"] * 40}, {"prompt_embeds": [b"1"] * 39 + [b"2"]}, {"prompt_embeds": [b"1"] * 40, "lora": LoRA("a", "/1")},
    ]  # fmt: skip
    outputs = [tuple(generate(SimulatedRunner(), Request("a", PROMPT, **fields), 3)) for fields in identities]
    assert len(set(outputs)) == len(identities)
    # The tokens under given embeddings are read by nobody.
    assert tuple(generate(SimulatedRunner(), Request("a", [0] * 40, prompt_embeds=[b"1"] * 40), 3)) == outputs[7]


@pytest.mark.parametrize("identity", [{"lora": LoRA("a", "/1")}, {"mm_items": [MultimodalItem("cat", 10, 25)]}])
def test_prompt_logprobs_under_an_identity_do_not_depend_on_chunks_either(identity):
    def reports(*chunks):
        runner, start, found = SimulatedRunner(), 0, {}
        request = Request("a", PROMPT, SamplingParams(prompt_logprobs=1), **identity)
        for num_tokens in chunks:
            found |= runner.execute(step((request, start, num_tokens))).prompt_logprobs["a"]
            start += num_tokens
        return found

    assert reports(40) == reports(3, 30, 7)


@pytest.mark.parametrize("position", [0, 20, 39])
def test_changing_any_token_of_the_prompt_changes_the_output(position):
    changed = PROMPT.copy()
    changed[position] += 1
    assert generate(SimulatedRunner(), request_of(changed), 3) != generate(SimulatedRunner(), request_of(), 3)


def test_sampled_tokens_lie_inside_the_vocabulary_and_vary():
    runner = SimulatedRunner("smollm2-135m")
    token_ids = generate(runner, request_of(), 64)
    assert all(0 <= token_id < runner.vocab_size for token_id in token_ids)
    assert len(set(token_ids)) > 60


def test_the_clock_moves_by_the_cost_of_each_step_and_a_fixed_overhead():
    runner = SimulatedRunner("llama-3-8b", "H100 SXM", 0.45)
    shape, gpu = model_shape("llama-3-8b"), gpu_by_name("H100 SXM")
    assert runner.now() == 0.0
    runner.execute(step((request_of(range(2200)), 0, 2200)))
    cold_s = runner.now()
    assert cold_s == STEP_OVERHEAD_S + prefill_seconds(shape, gpu, 0.45, 0, 2200)
    runner.execute(step((request_of(range(2200)), 2000, 200), (request_of(), 39, 1)))
    warm_s = runner.now() - cold_s
    assert warm_s == pytest.approx(STEP_OVERHEAD_S + step_seconds(shape, gpu, 0.45, [(2000, 2200), (39, 40)]))


def test_an_empty_step_leaves_the_clock_where_it_was():
    runner = SimulatedRunner()
    output = runner.execute(SchedulerOutput())
    assert (output.sampled_token_ids, output.logprobs, output.prompt_logprobs) == ([], [], {})
    assert runner.now() == 0.0


def test_the_sampled_token_leads_its_candidates_by_a_gap():
    [logprobs] = SimulatedRunner().execute(step((request_of(logprobs=3), 0, 40))).logprobs
    values = [candidate.logprob for candidate in logprobs.top]
    assert logprobs.token_id == logprobs.top[0].token_id and logprobs.logprob == values[0]
    assert len({candidate.token_id for candidate in logprobs.top}) == 3
    # A ratio of at most 0.5 between ranks keeps every gap above ln 2: a simulated run has no near ties.
    assert all(better - worse >= math.log(2) for better, worse in zip(values, values[1:]))


def test_probabilities_over_the_whole_vocabulary_sum_to_one():
    runner = SimulatedRunner()
    runner.vocab_size = 20  # as many as can be asked for
    [logprobs] = runner.execute(step((request_of(logprobs=20), 0, 40))).logprobs
    assert sum(math.exp(candidate.logprob) for candidate in logprobs.top) == pytest.approx(1, abs=1e-5)


def test_logprobs_come_only_when_asked_for_and_only_with_a_sample():
    asked, silent = request_of(logprobs=0), request_of(request_id="b")
    assert SimulatedRunner().execute(step((asked, 0, 30))).logprobs == [None]
    with_sample = SimulatedRunner().execute(step((asked, 0, 40), (silent, 0, 40)))
    assert with_sample.logprobs[0].top == () and with_sample.logprobs[1] is None
    assert with_sample.prompt_logprobs == {}


@pytest.mark.parametrize("chunks", [[40], [1, 39], [17, 3, 20]])
def test_prompt_logprobs_cover_every_position_after_the_first_whatever_the_chunks(chunks):
    whole = SimulatedRunner().execute(step((request_of(prompt_logprobs=2), 0, 40))).prompt_logprobs["a"]
    runner, request, start, found = SimulatedRunner(), request_of(prompt_logprobs=2), 0, {}
    for num_tokens in chunks:
        found |= runner.execute(step((request, start, num_tokens))).prompt_logprobs["a"]
        start += num_tokens
    assert sorted(whole) == list(range(1, 40))
    assert found == whole
    assert [whole[position].token_id for position in sorted(whole)] == PROMPT[1:]


def test_a_prompt_token_has_the_probability_that_sampling_gave_it():
    [sampled] = SimulatedRunner().execute(step((request_of(logprobs=2), 0, 40))).logprobs
    longer = request_of([*PROMPT, sampled.token_id], prompt_logprobs=2)
    assert SimulatedRunner().execute(step((longer, 0, 41))).prompt_logprobs["a"][40] == sampled


def test_outputs_are_not_part_of_the_prompt_logprobs_when_a_request_is_computed_again():
    request = request_of(prompt_logprobs=1)
    request.append_output_token_ids([1, 2])
    assert max(SimulatedRunner().execute(step((request, 0, 42))).prompt_logprobs["a"]) == 39


def test_the_runner_knows_its_sizes_and_has_no_end_of_text():
    runner = SimulatedRunner()
    runner.allocate_kv(num_blocks=100, unit_size=16)
    assert (runner.num_blocks, runner.unit_size) == (100, 16)
    assert runner.bytes_per_token() == 131_072
    assert runner.eos_token_ids == frozenset()
    assert (runner.vocab_size, runner.max_model_len) == (128_256, 8_192)


def test_a_block_table_that_is_too_short_is_an_error_of_the_scheduler():
    runner = SimulatedRunner()
    runner.allocate_kv(num_blocks=100, unit_size=16)
    with pytest.raises(AssertionError, match="block table"):
        runner.execute(SchedulerOutput(scheduled=[ScheduledRequest(request_of(), 0, 40, block_table=[1, 2])]))


@pytest.mark.parametrize(
    "choice", [{"model": "gpt-0"}, {"gpu": "abacus"}, {"mfu": 0.0}, {"mfu": 1.5}, {"dtype_bytes": 3}]
)
def test_a_choice_that_does_not_exist_is_refused_by_name(choice):
    [field] = choice
    with pytest.raises(ConfigError, match=field):
        SimulatedRunner(**choice)


def test_time_passes_while_nothing_is_computed_and_never_runs_back():
    runner = SimulatedRunner()
    runner.wait_until(2.5)
    runner.wait_until(1.0)
    assert runner.now() == 2.5
