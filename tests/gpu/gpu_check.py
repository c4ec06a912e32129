"""What a GPU is asked: are the tokens transformers' own, and how long does it take? Also a script:

    python tests/gpu/gpu_check.py

Prints one JSON object, and writes it to gpu_check.json in the folder that the variable OUT names. Nothing here asserts:
tests/gpu/test_gpu_speed.py does, on tokens alone. Times are medians; every shape is run before it is timed.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterable, Sequence

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from engine.config import EngineConfig
from engine.cost_model import GPUS, Gpu, model_shape, prefill_flops
from engine.llm_engine import LLMEngine
from engine.request import SamplingParams
from labs.theory import cold_over_warm, predict

MODEL = "llama-3-8b"
SHARED_TOKENS, OWN_TOKENS = 2_000, 200
BATCHES = (1, 32, 256)
DEVICE = "cuda"
# Log-probabilities of two tokens, in float32, that rounding may reorder: a bfloat16 logit of 16 to 32 has steps of 1/8.
NEAR_TIE = {"float32": 1e-3, "bfloat16": 0.25}


def peak_of_this_gpu() -> Gpu | None:
    """The data sheet of the GPU that torch sees; None if the table has none."""
    if not torch.cuda.is_available():
        return None
    words = torch.cuda.get_device_name().replace("-", " ").split()
    return next((gpu for gpu in GPUS if gpu.name.removeprefix("RTX ").split()[0] in words and "PCIe" not in words), None)


def wait_for_gpu() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def random_prompt(num_tokens: int, seed: int, vocab_size: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(300, vocab_size) for _ in range(num_tokens)]


def make_engine(model: str, dtype: str, **fields: Any) -> LLMEngine:
    return LLMEngine(EngineConfig(model=model, dtype=dtype, device=DEVICE, **fields))


def free_memory() -> None:
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


# Tokens


def check_tokens(model: str, dtype: str, num_prompts: int = 6, num_outputs: int = 24) -> dict[str, Any]:
    """Prompts of several lengths, together, twice (cold, then with cached prefixes), against transformers one by one.

    Returns the number of outputs compared, and each prompt that parts: where, and how far apart transformers in float32
    holds the two tokens, given the same tokens before. `explained` is whether that is a near tie.
    """
    engine = make_engine(model, dtype, max_model_len=1024)
    vocab_size = engine.runner.vocab_size
    shared = random_prompt(100, 7, vocab_size)
    prompts = [shared + random_prompt(1 + 37 * index, index, vocab_size) for index in range(num_prompts)]
    params = SamplingParams(temperature=0.0, max_tokens=num_outputs, ignore_eos=True)
    runs = [engine.generate(prompts, params) for _ in range(2)]
    num_cached = sum(output.num_cached_tokens for output in runs[1])
    del engine
    free_memory()
    reference = reference_model(model, dtype)
    exact = copy.deepcopy(reference).float()  # the same weights, without rounding on the way
    parted = []
    for index, prompt in enumerate(prompts):
        wanted = greedy(reference, prompt, num_outputs)
        for run, outputs in zip(("cold", "warm"), runs):
            got = list(outputs[index].output_token_ids)
            if got == wanted:
                continue
            at = next(place for place, (one, other) in enumerate(zip(got, wanted)) if one != other)
            gap = float32_gap(exact, prompt + wanted[:at], got[at], wanted[at])
            parted.append({"prompt": index, "run": run, "at": at, "gap": gap, "explained": gap < NEAR_TIE[dtype]})
    del reference, exact
    free_memory()
    return {"compared": 2 * num_prompts, "cached_tokens_when_warm": num_cached, "parted": parted}


def reference_model(model: str, dtype: str) -> Any:
    """transformers' own model with its own attention; random weights are drawn as the engine draws them."""
    from transformers import AutoModelForCausalLM

    if model == "smollm2":
        from engine.model.model_cache import converted_folder
        from engine.model.model_source import find_model

        folder = converted_folder(find_model(model).gguf_path)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval().to(DEVICE)
    from transformers import LlamaForCausalLM

    from engine.model.loader import load_model

    loaded = load_model(EngineConfig(model=model, dtype=dtype, device=DEVICE))
    config = type(loaded.model.config)(**loaded.model.config.to_dict())
    reference = LlamaForCausalLM._from_config(config, attn_implementation="sdpa", dtype=loaded.dtype).eval().to(DEVICE)
    reference.load_state_dict(loaded.model.state_dict())
    return reference


@torch.inference_mode()
def greedy(reference: Any, prompt: Sequence[int], num_outputs: int) -> list[int]:
    ids = torch.tensor([prompt], device=DEVICE)
    out = reference.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_outputs,
        min_new_tokens=num_outputs, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


@torch.inference_mode()
def float32_gap(exact: Any, context: Sequence[int], one: int, other: int) -> float:
    """Distance of two tokens' log-probabilities after `context`."""
    logits = exact(torch.tensor([context], device=DEVICE), use_cache=False).logits[0, -1].float()
    return (logits[one] - logits[other]).abs().item()


# Times


def measure_ttft(engine: LLMEngine, repeats: int = 7) -> dict[str, Any]:
    """Cold and warm time to the first token of SHARED_TOKENS + OWN_TOKENS, and the ratio that theory predicts."""
    vocab_size, params = engine.runner.vocab_size, SamplingParams(temperature=0.0, max_tokens=1)

    def ttft(prompt: list[int]) -> tuple[float, int]:
        wait_for_gpu()
        output = engine.generate([prompt], params)[0]
        assert output.ttft_s is not None
        return output.ttft_s, output.num_cached_tokens

    cold, warm, cached = [], [], set()
    for repeat in range(repeats + 2):
        shared = random_prompt(SHARED_TOKENS, 1_000 + repeat, vocab_size)
        first = ttft(shared + random_prompt(OWN_TOKENS, 2_000 + repeat, vocab_size))
        second = ttft(shared + random_prompt(OWN_TOKENS, 3_000 + repeat, vocab_size))
        assert first[1] == 0
        if repeat >= 2:  # the first two compile and warm up
            cold.append(first[0])
            warm.append(second[0])
            cached.add(second[1])
    predicted = predict(cold_over_warm, model_shape(MODEL), SHARED_TOKENS, SHARED_TOKENS + OWN_TOKENS)
    gpu, cold_s, warm_s = peak_of_this_gpu(), statistics.median(cold), statistics.median(warm)
    flops = prefill_flops(model_shape(MODEL), 0, SHARED_TOKENS + OWN_TOKENS)
    return {
        "cached_tokens": sorted(cached), "cold_ttft_s": cold_s, "warm_ttft_s": warm_s, "ratio": cold_s / warm_s,
        "predicted_ratio": round(predicted.value, 2), "law": predicted.law,
        "prefill_mfu": None if gpu is None else flops / cold_s / gpu.peak_flops_per_s, "peak_of": gpu and gpu.name,
    }  # fmt: skip


def measure_decode(engine: LLMEngine, batch: int, num_steps: int = 32, prompt_tokens: int = 128) -> dict[str, Any]:
    """Tokens per second of `batch` requests that decode together, and what a step spends outside kernels."""
    params = SamplingParams(temperature=0.0, max_tokens=3 * num_steps + 200, ignore_eos=True)
    ids = [
        engine.add_request(random_prompt(prompt_tokens, 10_000 * batch + index, engine.runner.vocab_size), params)
        for index in range(batch)
    ]
    try:
        waiting = set(ids)
        while waiting:
            waiting -= {output.request_id for output in engine.step()}
        for _ in range(4):
            engine.step()
        wait_for_gpu()
        started = time.perf_counter()
        for _ in range(num_steps):
            assert len(engine.step()) == batch
        wait_for_gpu()
        step_s = (time.perf_counter() - started) / num_steps
        busy_s = gpu_busy_seconds(engine.step, 8)
    finally:
        for request_id in ids:
            engine.abort_request(request_id)
    return {
        "batch": batch, "tokens_per_s": batch / step_s, "step_s": step_s,
        "gpu_busy_s": busy_s, "outside_kernels_s": step_s - busy_s,
    }  # fmt: skip


def gpu_busy_seconds(step: Callable[[], Any], num_steps: int) -> float:
    """Seconds per step in which the GPU runs a kernel or copies; the profiler slows the host only."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(num_steps):
            step()
        wait_for_gpu()
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA
    ]
    return covered(spans) / num_steps / 1e6


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of [start, end) spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def measure_speed() -> dict[str, Any]:
    engine = make_engine(f"synthetic:{MODEL}", "bfloat16", max_num_seqs=256, num_gpu_blocks=12_000, max_model_len=4096)
    result = {"ttft": measure_ttft(engine), "decode": [measure_decode(engine, batch) for batch in BATCHES]}
    del engine
    free_memory()
    return result


def attention_in_use() -> str:
    """Which attention serves the measured model here, and why."""
    from engine.model.attention_backend import describe

    shape = model_shape(MODEL)
    return describe(torch.device("cuda", 0), torch.bfloat16, shape.head_dim, shape.num_heads, shape.num_kv_heads)


def write_result(name: str, result: Any) -> None:
    """Print a result, and keep it in the folder that OUT names."""
    text = json.dumps(result, indent=1)
    print(f"{name}: {text}", flush=True)
    if folder := os.environ.get("OUT"):
        (Path(folder) / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    from engine.errors import ModelNotFound

    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "attention": attention_in_use()}
    for model in ("synthetic:tiny", "smollm2"):
        for dtype in ("float32", "bfloat16"):
            try:
                result[f"tokens {model} {dtype}"] = check_tokens(model, dtype)
            except ModelNotFound as error:
                result[f"tokens {model} {dtype}"] = str(error)
    result["speed"] = measure_speed()
    write_result("gpu_check", result)


if __name__ == "__main__":
    main()
