"""LLMEngine on the simulated runner: what it refuses, reports, and how it survives a failing step."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError, RequestRefused
from engine.kvcache.block_hash import BlockHasher
from engine.kvcache.cache_identity import LoRA
from engine.llm_engine import LLMEngine
from engine.model.simulated_runner import SimulatedRunner
from engine.request import FinishReason, Request, SamplingParams


def open_engine(**fields) -> LLMEngine:
    return LLMEngine(EngineConfig(model="llama-3-8b", **fields), SimulatedRunner())


def greedy(max_tokens: int = 4, **fields) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **fields)


@pytest.mark.parametrize(
    ("fields", "prompt", "params", "named"),
    [
        ({"num_gpu_blocks": 5}, range(60), greedy(5), "exceeds the pool's 64 tokens.*num_gpu_blocks 5"),
        ({"max_model_len": 64}, range(60), greedy(5), "exceeds max_model_len 64"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 32}, range(40), greedy(1), "max_num_batched_tokens 32"),
        ({}, [], greedy(), "empty prompt"),
        ({}, [-1], greedy(), "outside the vocabulary; accepted: 0 to 128255"),
        ({}, [128_256], greedy(), "outside the vocabulary"),
        ({}, "text", greedy(), "no tokenizer; accepted: token ids"),
        ({}, [1, 2], greedy(stop=("x",)), "no tokenizer; accepted: stop_token_ids"),
    ],
)
def test_a_request_that_can_never_be_served_is_refused_by_the_name_of_the_limit(fields, prompt, params, named):
    engine = open_engine(**fields)
    with pytest.raises(RequestRefused, match=named):
        engine.add_request(prompt, params)
    assert not engine.has_unfinished_requests


@pytest.mark.parametrize("fields", [{"num_gpu_blocks": 5}, {"max_model_len": 64}])
def test_a_request_that_just_fits_is_served(fields):
    output = open_engine(**fields).generate([list(range(60))], greedy(4))[0]
    assert len(output.output_token_ids) == 4 and output.finish_reason is FinishReason.LENGTH


def test_a_max_model_len_beyond_the_model_is_refused():
    with pytest.raises(ConfigError, match="max_model_len is 1000000; accepted: 1 to"):
        open_engine(max_model_len=1_000_000)


@pytest.mark.parametrize("prefix_cache", ["hash", "radix"])
def test_outputs_report_cached_tokens_times_and_order(prefix_cache):
    engine = open_engine(prefix_cache=prefix_cache, page_size=16)
    prompts = [list(range(1000)), list(range(1000)), list(range(2000, 2050))]
    outputs = [engine.generate(prompt, greedy())[0] for prompt in prompts]
    assert [output.num_cached_tokens for output in outputs] == [0, 992, 0]
    assert outputs[1].ttft_s < outputs[0].ttft_s
    assert outputs[0].output_token_ids == outputs[1].output_token_ids
    assert len(outputs[0].metrics.itl_s) == 3 and outputs[0].metrics.e2e_s > outputs[0].ttft_s > 0
    stats = engine.take_stats()
    assert (stats.requests, stats.queries, stats.hits) == (3, 2050, 992)
    assert engine.take_stats().queries == 0


@pytest.mark.parametrize("fields", [{"prefix_cache": "hash"}, {"prefix_cache": "radix", "page_size": 16}])
def test_a_turn_leaves_all_but_its_last_token_for_the_next(fields):
    # Prompt 12, block 16: after 4 outputs 15 tokens have K/V, after 5 a whole block.
    for num_outputs, hits in ((4, 0), (5, 16)):
        engine = open_engine(**fields)
        first = engine.generate([list(range(12))], greedy(num_outputs))[0]
        turn = [*range(12), *first.output_token_ids, 900, 901, 902, 903]
        assert engine.generate([turn], greedy(1))[0].num_cached_tokens == hits


def test_preemption_changes_no_output_and_is_counted_apart():
    prompts = [list(range(start, start + 60)) for start in (0, 1000, 2000)]
    roomy = open_engine().generate(prompts, greedy(40))
    tight_engine = open_engine(num_gpu_blocks=12)
    tight = tight_engine.generate(prompts, greedy(40))
    assert [output.output_token_ids for output in tight] == [output.output_token_ids for output in roomy]
    stats = tight_engine.take_stats()
    assert stats.preempted_requests > 0 and stats.hits == 0 and stats.preempted_hits > 0
    assert tight_engine.manager.num_available == tight_engine.manager.pool.num_usable


def test_an_aborted_request_frees_its_blocks():
    engine = open_engine()
    request_id = engine.add_request(list(range(100)), greedy(50))
    engine.step()
    assert engine.manager.usage > 0
    assert engine.abort_request(request_id) is True
    assert engine.manager.usage == 0 and not engine.has_unfinished_requests
    assert engine.abort_request(request_id) is False


def test_a_reset_is_refused_while_blocks_are_in_use_and_says_so(caplog):
    engine = open_engine()
    engine.add_request(list(range(100)), greedy(50))
    engine.step()
    with caplog.at_level(logging.WARNING):
        assert engine.reset_prefix_cache() is False
    assert "7 blocks are in use" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_blocks_of_a_failed_step_are_never_served(error, monkeypatch):
    engine = open_engine()
    prompt = list(range(100))
    original = engine.runner.execute

    def fail(output):
        raise error

    monkeypatch.setattr(engine.runner, "execute", fail)
    with pytest.raises(error):
        engine.generate([prompt], greedy())
    monkeypatch.setattr(engine.runner, "execute", original)
    assert engine.manager.prefix_cache.num_cached_keys == 0
    assert engine.generate([prompt], greedy())[0].num_cached_tokens == 0
    assert engine.generate([prompt], greedy())[0].num_cached_tokens == 96


def test_unfinished_requests_start_over_after_a_failed_step(monkeypatch):
    engine = open_engine()
    expected = open_engine().generate([list(range(100))], greedy(6))[0].output_token_ids
    engine.add_request(list(range(100)), greedy(6), request_id="kept")
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "execute", lambda output: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
    outputs = []
    while engine.has_unfinished_requests:
        outputs += engine.step()
    assert outputs[-1].output_token_ids == expected


def test_prompt_logprobs_cover_every_prompt_token_but_the_first_in_chunks_too():
    engine = open_engine(max_num_batched_tokens=7)
    engine.generate([list(range(50))], greedy(1))
    output = engine.generate([list(range(50))], greedy(1, prompt_logprobs=1))[0]
    assert output.num_cached_tokens == 0
    assert output.prompt_logprobs[0] is None and None not in output.prompt_logprobs[1:]
    assert [entry.token_id for entry in output.prompt_logprobs[1:]] == list(range(1, 50))


def test_an_adapter_needs_only_its_key_on_the_simulated_runner():
    engine = open_engine()
    prompt = list(range(100))
    assert [engine.generate([prompt], greedy(1), lora=LoRA("a", path))[0].num_cached_tokens for path in ("/1", "/2", "/1")] == [0, 0, 96]


def test_streaming_gives_one_token_a_step():
    engine = open_engine()
    engine.add_request([1, 2, 3], greedy(3), request_id="stream")
    steps = []
    while engine.has_unfinished_requests:
        steps.append([(output.new_token_ids, output.finished) for output in engine.step()])
    assert [len(step) for step in steps] == [1, 1, 1] and steps[-1][0][1] is True


@pytest.mark.parametrize("prompts", [[5, 6, 7], [[5, 6, 7]], np.array([5, 6, 7]), [np.array([5, 6, 7])], ((5, 6, 7),)])
def test_one_prompt_or_several_in_any_sequence_of_ids(prompts):
    (output,) = open_engine().generate(prompts, greedy(1))
    assert output.prompt_token_ids == [5, 6, 7]


def test_no_prompts_give_no_outputs_and_parameters_must_match_prompts():
    assert open_engine().generate([], greedy()) == []
    with pytest.raises(ValueError, match="2 sampling_params for 1 prompts"):
        open_engine().generate([[1]], [greedy(), greedy()])


def run_out(engine: LLMEngine) -> dict[str, list[int]]:
    outputs: dict[str, list[int]] = {}
    while engine.has_unfinished_requests:
        for output in engine.step():
            outputs[output.request_id] = output.output_token_ids
    return outputs


@pytest.mark.parametrize("hasher", [None, BlockHasher("sha256", 4), BlockHasher("xxhash_cbor", 16)], ids=["none", "other size", "other algorithm"])
def test_a_request_made_elsewhere_is_named_as_this_engine_names_blocks(hasher):
    engine = open_engine()
    prompt = list(range(100))
    engine.generate([prompt], greedy(1))
    request = Request("mine", [*range(8), *range(50, 142)], greedy(1), block_hasher=hasher)
    engine.add_request(request)
    run_out(engine)
    assert request.num_cached_tokens == 0  # it parts inside the first block of 16
    again = Request("again", prompt, greedy(1), block_hasher=hasher)
    engine.add_request(again)
    run_out(engine)
    assert again.num_cached_tokens == 96 and 0 < again.metrics.ttft_s < 1


def test_what_stands_beside_a_request_is_refused_not_dropped():
    engine = open_engine()
    with pytest.raises(RequestRefused, match="cache_salt beside a Request"):
        engine.add_request(Request("r", [1, 2]), cache_salt="pepper")
    with pytest.raises(RequestRefused, match="sampling_params beside"):
        engine.add_request(Request("r", [1, 2]), greedy())
    done = Request("r", [1, 2], greedy(1))
    engine.add_request(done)
    run_out(engine)
    with pytest.raises(RequestRefused, match="finished already"):
        engine.add_request(done)


def test_an_id_given_by_hand_never_blocks_an_automatic_one():
    engine = open_engine()
    engine.add_request([1, 2], greedy(), request_id="request-0")
    assert engine.add_request([1, 2], greedy()) == "request-1"


@pytest.mark.parametrize("prefix_cache", ["hash", "radix"])
@pytest.mark.parametrize("broken", ["allocate_slots", "record_lookup", "publish_computed", "free"])
def test_bookkeeping_that_stops_half_way_is_never_trusted(prefix_cache, broken, monkeypatch):
    """Ctrl-C between any two lines of the scheduler: nothing uncomputed is served, no block is lost."""
    prompts = [list(range(start, start + 60)) for start in (0, 1000)]
    lengths = [greedy(3), greedy(5)]
    expected = {f"r{i}": out.output_token_ids for i, out in enumerate(open_engine().generate(prompts, lengths))}
    engine = open_engine(prefix_cache=prefix_cache)
    for index, (prompt, params) in enumerate(zip(prompts, lengths)):
        engine.add_request(prompt, params, request_id=f"r{index}")
    original = getattr(engine.manager, broken)

    def interrupted(*args, **kwargs):
        original(*args, **kwargs)  # done, but nobody is told
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.manager, broken, interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_out(engine)
    assert engine.manager.prefix_cache.num_cached_keys == 0
    outputs = run_out(engine)
    assert outputs == {key: expected[key] for key in outputs} and outputs
    assert engine.manager.num_available == engine.manager.pool.num_usable


def test_a_generate_with_a_bar_writes_nothing_to_stdout(capsys):
    assert len(open_engine().generate([[1, 2], [3]], greedy(1), progress=True)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "2/2" in captured.err
