"""SmolLM2 in bfloat16: as close to the float32 model as transformers' own bfloat16, and the same with the cache on and off.

Two engines round bfloat16 differently, so their tokens may part where two candidates are closer than the rounding.
Each such place is proved with the float32 model: the two tokens' log-probabilities there must be that close.
"""

from __future__ import annotations

import random

import pytest
import torch

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.model.loader import LoadedModel, load_model
from engine.model.model_runner import ModelRunner
from engine.request import SamplingParams

# Log-probabilities closer than this in float32 may change places in bfloat16 (8 bits of mantissa, logits of about 20).
TIE = 0.25


@pytest.fixture(scope="module", params=[True, False], ids=["compiled", "uncompiled"])
def half(request) -> LoadedModel:
    return load_model(EngineConfig(model="smollm2", dtype="bfloat16", device="cpu", compile=request.param))


@pytest.fixture(scope="module")
def half_reference(smollm2):
    import copy

    return copy.deepcopy(smollm2.reference).to(torch.bfloat16)


def prompts_of(vocab_size: int) -> list[list[int]]:
    rng = random.Random(4)
    system, *tails = ([rng.randrange(vocab_size) for _ in range(length)] for length in (70, 9, 21, 40))
    return [system + tail for tail in tails] + [system]


def open_engine(loaded: LoadedModel, **fields) -> LLMEngine:
    config = EngineConfig(dtype="bfloat16", device="cpu", num_gpu_blocks=300, **fields)
    return LLMEngine(config, ModelRunner(loaded, config), loaded.tokenizer)


@torch.inference_mode()
def test_log_probabilities_are_as_close_to_float32_as_transformers_bfloat16(half, smollm2, half_reference):
    prompt = prompts_of(half.vocab_size)[2]
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    ours = open_engine(half).generate([prompt], params)[0].prompt_logprobs
    exact = smollm2.logprobs(prompt)
    theirs = half_reference(torch.tensor([prompt]), use_cache=False).logits[0].float().log_softmax(-1)
    at = [(position - 1, prompt[position]) for position in range(1, len(prompt))]
    error = torch.tensor([report.logprob for report in ours[1:]]) - torch.stack([exact[row, token] for row, token in at])
    their_error = torch.stack([theirs[row, token] - exact[row, token] for row, token in at])
    assert error.abs().mean() <= 1.25 * their_error.abs().mean() + 0.01
    assert error.abs().mean() > 1e-4, "these are not bfloat16 numbers"


def test_tokens_with_the_cache_equal_those_without_or_part_at_a_tie(half, smollm2):
    prompts, params = prompts_of(half.vocab_size), SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    off = [open_engine(half, enable_prefix_caching=False).generate([prompt], params)[0].output_token_ids for prompt in prompts]
    for fields in ({"block_size": 16}, {"prefix_cache": "radix", "page_size": 1}):
        engine = open_engine(half, **fields)
        outputs = [engine.generate([prompt], params)[0] for prompt in prompts + prompts]
        assert sum(output.num_cached_tokens for output in outputs) > 400
        for prompt, output, wanted in zip(prompts + prompts, outputs, off + off):
            assert_equal_or_tied(smollm2, prompt, output.output_token_ids, wanted)
        together = engine.generate(prompts * 3, params)
        for prompt, output, wanted in zip(prompts * 3, together, off * 3):
            assert_equal_or_tied(smollm2, prompt, output.output_token_ids, wanted)


def assert_equal_or_tied(smollm2, prompt: list[int], got: list[int], wanted: list[int]) -> None:
    at = next((index for index, (one, other) in enumerate(zip(got, wanted)) if one != other), None)
    if at is None:
        assert len(got) == len(wanted)
        return
    logprobs = smollm2.logprobs(prompt + wanted[:at])[-1]
    gap = abs(float(logprobs[got[at]] - logprobs[wanted[at]]))
    assert gap < TIE, f"output {at}: {got[at]} instead of {wanted[at]}, {gap:.2f} apart in float32"
