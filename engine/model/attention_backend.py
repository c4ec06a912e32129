"""Which attention serves a model on a device, and why.

    device   choice       it is taken when
    CUDA     flashinfer   installed, kernels there or a compiler for them; half precision, head size 64, 128 or 256
             triton       installed
             sdpa         otherwise
    CPU      sdpa         always

The first two read K/V in place through block ids; sdpa gathers a cached prefix before it reads it. On CUDA a choice is
tried on a few tokens and compared with sdpa before it is made: kernels are compiled for the GPU at hand at their
first use, so "installed" does not mean that they run.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from engine.config import ATTENTION_BACKENDS
from engine.errors import ConfigError

if TYPE_CHECKING:
    import torch

FLASHINFER_HEAD_DIMS = (64, 128, 256)
TRITON_MAX_HEAD_DIM = 256
# Largest difference of outputs of size 1 in the trial; float32 must not have been computed in tf32.
TRIAL_TOLERANCE = {"float32": 5e-4, "float16": 0.02, "bfloat16": 0.05}


@dataclass(frozen=True)
class AttentionChoice:
    """A backend with its classes."""

    name: str
    step_class: Any  # SdpaAttention, or a class with its interface
    graph_class: Any | None  # for CUDA graphs of decode steps: FlashInferDecode, TritonDecode; None: cannot be captured
    reason: str  # one line for people


def choose(
    device: torch.device, dtype: torch.dtype, head_dim: int, num_heads: int, num_kv_heads: int, name: str = "auto"
) -> AttentionChoice:
    """The attention for layers of this shape.

    name  "auto", or the one that is wanted

    Raises ConfigError for another name, and for a backend that cannot be had here.
    """
    if name not in ATTENTION_BACKENDS:
        raise ConfigError("attention_backend", name, ", ".join(ATTENTION_BACKENDS))
    if name == "sdpa" or (name == "auto" and device.type == "cpu"):
        return _choice("sdpa", "asked for by name" if name == "sdpa" else "on a CPU")
    shape = (device, dtype, head_dim, num_heads, num_kv_heads)
    refusals: list[str] = []
    for candidate in ("flashinfer", "triton") if name == "auto" else (name,):
        refusal = refusal_of(candidate, *shape) or _trial_failure(candidate, *shape)
        if refusal is None:
            return _choice(candidate, "; ".join(["reads K/V in place through block ids", *refusals]))
        refusals.append(f"no {candidate}: {refusal}")
    if name != "auto":
        raise ConfigError("attention_backend", name, f"auto, sdpa ({refusals[0]})")
    return _choice("sdpa", "; ".join(refusals))


def describe(
    device: torch.device, dtype: torch.dtype, head_dim: int, num_heads: int, num_kv_heads: int, name: str = "auto"
) -> str:
    """One line: the choice and its reason; see `choose`."""
    choice = choose(device, dtype, head_dim, num_heads, num_kv_heads, name)
    return f"{choice.name}: {choice.reason}"


def refusal_of(
    name: str, device: torch.device, dtype: torch.dtype, head_dim: int, num_heads: int, num_kv_heads: int
) -> str | None:
    """Why a backend cannot serve this shape; None if it can. Imports nothing."""
    if device.type != "cuda":
        return f"it runs on CUDA, and the device is {device.type}"
    if find_spec(name) is None:
        return "not installed"
    if num_heads % num_kv_heads:
        return f"{num_heads} query heads do not divide among {num_kv_heads} K/V heads"
    if name == "triton":
        if head_dim > TRITON_MAX_HEAD_DIM:
            return f"head size {head_dim}; accepted: up to {TRITON_MAX_HEAD_DIM}"
        return None
    if _name_of(dtype) not in ("float16", "bfloat16"):
        return f"dtype {_name_of(dtype)}; accepted: float16, bfloat16"
    if head_dim not in FLASHINFER_HEAD_DIMS:
        return f"head size {head_dim}; accepted: {', '.join(map(str, FLASHINFER_HEAD_DIMS))}"
    if find_spec("flashinfer_jit_cache") is None and not _has_cuda_compiler():
        return "no CUDA compiler (nvcc) for its kernels, and the package flashinfer-jit-cache is not installed"
    return None


def _choice(name: str, reason: str) -> AttentionChoice:
    if name == "flashinfer":
        from engine.model.flashinfer_attention import FlashInferAttention, FlashInferDecode

        return AttentionChoice(name, FlashInferAttention, FlashInferDecode, reason)
    if name == "triton":
        from engine.model.triton_attention import TritonAttention, TritonDecode

        return AttentionChoice(name, TritonAttention, TritonDecode, reason)
    from engine.model.attention import SdpaAttention

    return AttentionChoice(name, SdpaAttention, None, reason)


def _has_cuda_compiler() -> bool:
    # Where FlashInfer looks, in its order.
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home is None:
        return shutil.which("nvcc") is not None or os.path.exists("/usr/local/cuda/bin/nvcc")
    return os.path.exists(os.path.join(home, "bin", "nvcc"))


def _trial_failure(
    name: str, device: torch.device, dtype: torch.dtype, head_dim: int, num_heads: int, num_kv_heads: int
) -> str | None:
    """Compute a few tokens with a backend and with sdpa; what went wrong, None if they agree."""
    try:
        error = trial_error(_choice(name, "").step_class, device, dtype, head_dim, num_heads, num_kv_heads)
    except Exception as failure:  # a compiler, a driver, a missing library: many kinds, each means that it does not run
        return f"it does not run here ({(str(failure).strip() or type(failure).__name__).splitlines()[0]})"
    return None if error <= TRIAL_TOLERANCE[_name_of(dtype)] else f"its outputs differ from sdpa's by {error:.1e}"


def trial_error(
    step_class: Any, device: torch.device, dtype: torch.dtype, head_dim: int, num_heads: int, num_kv_heads: int
) -> float:
    """The largest difference between a backend's outputs and sdpa's; NaN counts as infinite.

    Two steps over blocks of 16 in no order: decodes alone; then a decode, an extended prefix and a whole prompt.
    """
    import numpy as np
    import torch

    from engine.model.attention import SdpaAttention
    from engine.model.kv_tensors import KVTensors, slots_of
    from engine.model.model_input import TokenSpan

    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    largest = 0.0
    for requests in (((300, 1), (17, 1)), ((40, 1), (50, 30), (0, 20))):
        storages = [KVTensors(1, 48, 16, num_kv_heads, head_dim, dtype, device) for _ in range(2)]
        storages[0].keys.copy_(random(*storages[0].keys.shape))
        storages[0].values.copy_(random(*storages[0].values.shape))
        storages[1].keys.copy_(storages[0].keys)
        storages[1].values.copy_(storages[0].values)
        free = np.arange(1, 48)[::-1]
        spans: list[TokenSpan] = []
        row = 0
        for start, num_rows in requests:
            num_blocks = -(-(start + num_rows) // 16)
            spans.append(TokenSpan(row, num_rows, start, slots_of(free[:num_blocks], 16, start + num_rows)))
            free, row = free[num_blocks:], row + num_rows
        write_slots = np.concatenate([span.context_slots[span.start :] for span in spans])
        heads = [random(count, row, head_dim) for count in (num_heads, num_kv_heads, num_kv_heads)]
        outputs = [
            kind(kv, write_slots, spans, num_heads, num_kv_heads).forward(0, *heads, None).float().cpu()
            for kind, kv in zip((SdpaAttention, step_class), storages)
        ]
        error = (outputs[0] - outputs[1]).abs().max().item()
        largest = max(largest, error if error == error else float("inf"))
    return largest


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
