"""A whole vLLM in another interpreter: the protocol with a stand-in, and the real one where LABCLI_VLLM_PYTHON names it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace

import pytest

from labs.benches.timed_engine import EngineSettings
from labs.peers.vllm_engine import VllmEngine
from labs.peers.worker_process import PeerEnded, PeerError, PeerUnavailable

needs_vllm = pytest.mark.skipif("LABCLI_VLLM_PYTHON" not in os.environ, reason="LABCLI_VLLM_PYTHON names no Python with vLLM")

# What the worker uses of vLLM. Its next token is the last one plus one; each step serves the youngest request first and
# gives two tokens to whoever wants them; a prompt that was served before is cached but for its last token.
STAND_IN = """
import json, os, sys
from types import SimpleNamespace as Things

print("the stand-in talks while it is imported")
__version__ = "0.0.stub"

class SamplingParams:
    def __init__(self, temperature, max_tokens, ignore_eos, detokenize, output_kind):
        assert (temperature, ignore_eos, detokenize, output_kind) == (0.0, True, False, "only what is new")
        self.left = max_tokens

class LLM:
    def __init__(self, **asked):
        print("and while it starts")
        with open(asked["model"] + "/asked.json", "w") as file:
            json.dump({"asked": asked, "environment": dict(os.environ)}, file)
        if asked["dtype"] == "bad":
            raise ValueError("not this\\n  dtype")
        if asked["dtype"] == "worse":
            print("out of everything", file=sys.stderr)
            os._exit(3)
        self.llm_engine, self.known, self.running, self.ids, self.stuck = self, set(), {}, set(), False

    def add_request(self, request_id, prompt, params):
        assert request_id not in self.ids, "an id was used again"
        self.ids.add(request_id)
        prompt = prompt["prompt_token_ids"]
        if not prompt:
            raise ValueError("an empty prompt")
        cached = len(prompt) - 1 if tuple(prompt) in self.known else None
        self.known.add(tuple(prompt))
        self.running[request_id] = Things(last=prompt[-1], left=params.left, cached=cached)

    def abort_request(self, request_ids):
        for request_id in request_ids:
            self.running.pop(request_id, None)

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        outputs = []
        for request_id, request in reversed(list(self.running.items())):
            new = [request.last + 1 + at for at in range(min(2, request.left))]
            request.last, request.left = new[-1], request.left - len(new)
            outputs.append(Things(request_id=request_id, num_cached_tokens=request.cached, outputs=[Things(token_ids=new)]))
            if request.last == 666:
                self.stuck = True
                del self.running[request_id]
            elif not request.left:
                del self.running[request_id]
        return outputs

    def reset_prefix_cache(self):
        self.known.clear()
        return not self.stuck
"""


@pytest.fixture
def settings(tmp_path):
    return EngineSettings(
        model_folder=str(tmp_path),
        dtype="float32",
        num_threads=1,
        block_size=32,
        num_blocks=24,
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=512,
    )


@pytest.fixture
def stub(tmp_path, monkeypatch):
    package = tmp_path / "packages" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    (package / "sampling_params.py").write_text("class RequestOutputKind:\n    DELTA = 'only what is new'\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


def test_prompts_are_served_and_answered_in_their_order(stub, settings):
    with VllmEngine(settings) as engine:
        assert (engine.name, engine.version) == ("vLLM", "0.0.stub")
        assert engine.start_s > 0
        served = engine.serve([[5, 1], (7, 10), [20]], 3)
        assert served.output_ids == ((2, 3, 4), (11, 12, 13), (21, 22, 23))
        assert served.num_cached_tokens == (0, 0, 0)
        for first, second, third in served.token_times_s:
            assert 0 < first == second < third == served.seconds
        assert engine.serve([[1], [7, 10]], 1).num_cached_tokens == (0, 1)
        engine.reset()
        assert engine.serve([[7, 10]], 1).num_cached_tokens == (0,)


def test_settings_and_threads_reach_vllm(stub, settings, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for compiled in (False, True):
        asked_for = replace(settings, compile=compiled, num_threads=3, enable_prefix_caching=compiled)
        with VllmEngine(asked_for, sys.executable):
            told = json.loads((tmp_path / "asked.json").read_text())
        asked, environment = told["asked"], told["environment"]
        assert asked["model"] == settings.model_folder
        assert asked["num_gpu_blocks_override"] == 24
        assert asked["enforce_eager"] is not compiled
        assert asked["skip_tokenizer_init"] is True
        for name in ("dtype", "block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            assert asked[name] == getattr(settings, name)
        assert asked["enable_prefix_caching"] is compiled
        assert environment["OMP_NUM_THREADS"] == "3"
        assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert os.environ["OMP_NUM_THREADS"] == "7"


def test_a_prompt_that_is_refused_leaves_nothing_behind(stub, settings):
    with VllmEngine(settings) as engine:
        with pytest.raises(PeerError, match="ValueError: an empty prompt"):
            engine.serve([[1], []], 2)
        assert engine.serve([[1]], 2).output_ids == ((2, 3),)


def test_tokens_that_are_missing_and_a_cache_that_stays_are_errors(stub, settings):
    with VllmEngine(settings) as engine:
        with pytest.raises(PeerError, match="did not return 4 tokens for each prompt"):
            engine.serve([[664]], 4)
        with pytest.raises(PeerError, match="did not reset its prefix cache"):
            engine.reset()


def test_a_vllm_that_does_not_start_is_one_clear_line(stub, settings):
    with pytest.raises(PeerError, match="^vLLM did not start: ValueError: not this dtype$"):
        VllmEngine(replace(settings, dtype="bad"))
    with pytest.raises(PeerEnded, match="^vLLM did not start: vLLM's process ended: out of everything$"):
        VllmEngine(replace(settings, dtype="worse"))


def test_an_interpreter_without_vllm_is_refused(settings):
    with pytest.raises(PeerUnavailable, match="cannot be run.*accepted: --vllm-python"):
        VllmEngine(settings, "/nope/python")


@needs_vllm
def test_the_real_vllm_caches_full_blocks_and_says_what_transformers_says(settings, tmp_path):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,  # vLLM's attention on a CPU knows a few head sizes only
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    prompts, num_outputs = [[7] * 64, list(range(100, 170)), [3, 1, 4]], 6
    expected = []
    for prompt in prompts:
        whole = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=num_outputs)
        expected.append(tuple(whole[0, len(prompt) :].tolist()))
    # A token that is generated ends a text: both engines must go on.
    model.config.eos_token_id = model.generation_config.eos_token_id = expected[0][1]
    model.save_pretrained(tmp_path)

    with VllmEngine(settings, os.environ["LABCLI_VLLM_PYTHON"]) as engine:
        assert engine.start_s > 1
        for cached in ((0, 0, 0), tuple(32 * ((len(prompt) - 1) // 32) for prompt in prompts)):
            served = engine.serve(prompts, num_outputs)
            assert served.output_ids == tuple(expected)
            assert served.num_cached_tokens == cached
            for times in served.token_times_s:
                assert len(times) == num_outputs and 0 < times[0] and list(times) == sorted(set(times))
            assert max(times[-1] for times in served.token_times_s) == served.seconds
        engine.reset()
        assert engine.serve(prompts[:2], 1).num_cached_tokens == (0, 0)
        with pytest.raises(PeerError):
            engine.serve([[1], [5] * 300], 1)  # longer than max_model_len
        assert engine.serve(prompts[2:], num_outputs).output_ids == (expected[2],)


@needs_vllm
def test_the_real_vllm_says_in_one_line_why_it_does_not_start(settings):
    with pytest.raises(PeerError, match="^vLLM did not start: ") as caught:
        VllmEngine(settings, os.environ["LABCLI_VLLM_PYTHON"])
    assert "\n" not in str(caught.value)
