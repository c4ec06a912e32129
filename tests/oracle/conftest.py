"""Models for the oracle tests: each once as the engine runs it, once as transformers alone runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.model.loader import LoadedModel, load_model
from engine.model.model_runner import ModelRunner
from engine.request import Request, SamplingParams
from engine.runner import RunnerOutput
from engine.scheduler import ScheduledRequest, SchedulerOutput


@dataclass
class Pair:
    """The same weights in float32, twice."""

    loaded: LoadedModel
    reference: Any  # transformers' own model, with its own attention

    def runner(self, num_blocks: int, unit_size: int) -> ModelRunner:
        runner = ModelRunner(self.loaded, EngineConfig())
        runner.allocate_kv(num_blocks, unit_size)
        return runner

    def generate(self, prompt_ids: list[int], num_tokens: int) -> list[int]:
        """The tokens transformers' greedy generate adds, end of text ignored."""
        ids = torch.tensor([prompt_ids])
        with torch.inference_mode():
            out = self.reference.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens,
                min_new_tokens=num_tokens, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        return out[0, len(prompt_ids) :].tolist()

    @torch.inference_mode()
    def logprobs(self, prompt_ids: list[int]) -> torch.Tensor:
        """transformers' log-softmax of every position, [num_tokens, vocab_size]."""
        return self.reference(torch.tensor([prompt_ids]), use_cache=False).logits[0].float().log_softmax(-1)


class Driver:
    """The least scheduler there can be: the test says who computes how many tokens, and where the blocks lie."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.block_tables: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}

    def add(self, name: str, prompt_ids: list[int], blocks: list[int], num_cached: int = 0, **params: Any) -> Request:
        request = Request(name, prompt_ids, SamplingParams(**{"temperature": 0.0, "max_tokens": 64, **params}))
        self.block_tables[name], self.computed[name] = blocks, num_cached
        return request

    def step(self, *shares: tuple[Request, int]) -> RunnerOutput:
        """Compute `n` tokens (at most what is left) of each request, and append what was sampled."""
        scheduled = []
        for request, num_tokens in shares:
            start = self.computed[request.request_id]
            num_tokens = min(num_tokens, request.num_tokens - start)
            scheduled.append(ScheduledRequest(request, start, num_tokens, self.block_tables[request.request_id]))
            self.computed[request.request_id] = start + num_tokens
        output = self.runner.execute(SchedulerOutput(scheduled))
        for item, token_id in zip(scheduled, output.sampled_token_ids):
            assert item.samples == (token_id is not None)
            if token_id is not None:
                item.request.append_output_token_ids([token_id])
        return output

    def run(self, *requests: Request, num_outputs: int, chunk: int) -> None:
        """Step all requests together until each has `num_outputs` outputs; later ones stop being scheduled."""
        while shares := [(request, chunk) for request in requests if request.num_output_tokens < num_outputs]:
            self.step(*shares)


@pytest.fixture(scope="session")
def drive() -> type[Driver]:
    return Driver


@pytest.fixture(scope="session")
def tiny() -> Pair:
    return _tiny(compile=None)  # with compiled kernels, where there is a compiler


@pytest.fixture(scope="session")
def tiny_uncompiled() -> Pair:
    return _tiny(compile=False)


def _tiny(compile: bool | None) -> Pair:
    from transformers import LlamaForCausalLM

    loaded = load_model(EngineConfig(model="synthetic:tiny", dtype="float32", device="cpu", seed=3, compile=compile))
    config = type(loaded.model.config)(**loaded.model.config.to_dict())
    reference = LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()
    reference.load_state_dict(loaded.model.state_dict())
    return Pair(loaded, reference)


@pytest.fixture(scope="session")
def smollm2() -> Pair:
    from transformers import AutoModelForCausalLM

    from engine.model.model_cache import converted_folder
    from engine.model.model_source import find_model

    # Without its wheel this fails, naming the command: a proof that is skipped proves nothing.
    folder = converted_folder(find_model("smollm2").gguf_path)
    loaded = load_model(EngineConfig(model="smollm2", dtype="float32", device="cpu"))
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    return Pair(loaded, reference)


@pytest.fixture(params=["tiny", "tiny_uncompiled", "smollm2"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return request.getfixturevalue(request.param)
