"""transformers in a process of its own, for real: a tiny random Llama, by one prompt at a time and by batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from labs.benches.timed_engine import EngineSettings
from labs.peers.transformers_engine import METHODS, TransformersEngine
from labs.peers.worker_process import PeerError

NUM_OUTPUTS = 6
# Of unequal lengths, out of order, and two of them with a block in common.
PROMPTS = [[7] * 40, [3, 1, 4], list(range(100, 170)), [7] * 40 + [9], [400]]


def greedy(model, prompt):
    """Each next token the most probable one, without a cache: what any engine must say."""
    ids = list(prompt)
    for _ in range(NUM_OUTPUTS):
        with torch.inference_mode():
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return tuple(ids[len(prompt) :])


@pytest.fixture(scope="module")
def expected_and_settings(tmp_path_factory):
    """Outputs by prompt, and a model that takes a token which it generates for the end of a text."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    expected = tuple(greedy(model, prompt) for prompt in PROMPTS)
    model.config.eos_token_id = model.generation_config.eos_token_id = expected[0][1]
    # What a chat model's checkpoint brings, and what greedy is without.
    model.generation_config.do_sample, model.generation_config.repetition_penalty = True, 2.0
    model.save_pretrained(folder)
    settings = EngineSettings(
        model_folder=str(folder),
        dtype="float32",
        num_threads=1,
        block_size=32,
        num_blocks=32,
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=128,
    )
    return expected, settings


@pytest.fixture(scope="module", params=METHODS)
def engine(request, expected_and_settings):
    with TransformersEngine(expected_and_settings[1], request.param) as started:
        yield started


def test_the_expected_tokens_are_those_of_a_direct_generate(expected_and_settings):
    expected, settings = expected_and_settings
    model = AutoModelForCausalLM.from_pretrained(settings.model_folder, dtype=torch.float32)
    model.generation_config = transformers.GenerationConfig()
    for prompt, output_ids in zip(PROMPTS, expected):
        whole = model.generate(torch.tensor([prompt]), max_new_tokens=NUM_OUTPUTS, do_sample=False)
        assert tuple(whole[0, len(prompt) :].tolist()) == output_ids
    assert len(set(expected)) == len(expected)
    assert model.config.eos_token_id in expected[0][:-1]


def test_it_says_what_it_is(engine):
    assert engine.name in ("transformers generate", "transformers generate_batch")
    assert engine.version == transformers.__version__
    assert engine.start_s > 0


def test_outputs_are_greedy_by_prompt_and_go_on_after_the_end_of_text(engine, expected_and_settings):
    served = engine.serve(PROMPTS, NUM_OUTPUTS)
    assert served.output_ids == expected_and_settings[0]
    assert served.num_cached_tokens is None
    engine.reset()
    assert engine.serve(PROMPTS[1:2], NUM_OUTPUTS).output_ids == expected_and_settings[0][1:2]


def test_times_of_tokens_are_told_where_they_come_one_by_one(engine):
    served = engine.serve(PROMPTS, NUM_OUTPUTS)
    assert served.seconds > 0
    if engine.name == "transformers generate":
        assert served.token_times_s is None
        return
    for times in served.token_times_s:
        assert len(times) == NUM_OUTPUTS
        assert 0 < times[0] and list(times) == sorted(times)
    assert max(times[-1] for times in served.token_times_s) == served.seconds


def test_one_output_and_one_token_of_a_prompt_are_enough(engine, expected_and_settings):
    expected = expected_and_settings[0]
    assert engine.serve(PROMPTS, 1).output_ids == tuple(ids[:1] for ids in expected)
    assert engine.serve(PROMPTS[-1:], NUM_OUTPUTS).output_ids == expected[-1:]


def test_a_prompt_that_fails_leaves_the_engine_alive(engine, expected_and_settings):
    with pytest.raises(PeerError, match="index out of range"):
        engine.serve([[1_000_000]], 2)
    assert engine.serve(PROMPTS[:1], NUM_OUTPUTS).output_ids == expected_and_settings[0][:1]


def test_more_prompts_than_a_small_pool_holds_are_served_and_a_longer_one_is_refused(expected_and_settings):
    expected, settings = expected_and_settings
    small = replace(settings, num_blocks=4, max_num_seqs=2, max_num_batched_tokens=32, enable_prefix_caching=False)
    with TransformersEngine(small, "generate_batch") as engine:
        assert engine.serve(PROMPTS, NUM_OUTPUTS).output_ids == expected
        with pytest.raises(PeerError, match="No requests can be scheduled"):
            engine.serve([[7] * 130], 1)
        # Both fit as they begin, and not as they grow: one is begun anew.
        served = engine.serve([[7] * 30, [8] * 30], 60)
        assert [len(ids) for ids in served.output_ids] == [60, 60] and served.seconds > 0
        assert served.token_times_s is None


def test_a_model_that_is_not_there_is_one_line(expected_and_settings):
    with pytest.raises(PeerError, match="^transformers generate did not start: ") as caught:
        TransformersEngine(replace(expected_and_settings[1], model_folder="/nope/model"))
    assert "\n" not in str(caught.value)


def test_another_method_is_refused_before_anything_starts(expected_and_settings):
    with pytest.raises(ValueError, match="'beam'; accepted: generate, generate_batch"):
        TransformersEngine(expected_and_settings[1], "beam")
