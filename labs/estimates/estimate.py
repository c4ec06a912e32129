"""Estimate: the laws' answer to one question about numbers that somebody typed.

An answer is a list of figures with their laws (labs/theory.py), remarks that follow from them, and the sources of what
was looked up: the tables of models and GPUs, and the engines whose rules the laws state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Mapping

from engine.cost_model import Gpu, ModelShape
from labs.estimates.figure import Figure, counted, shown
from labs.theory import predict


@dataclass(frozen=True)
class Estimate:
    """The answer to one question."""

    title: str
    inputs: Mapping[str, Any]
    figures: tuple[Figure, ...]
    remarks: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> float | int:
        """The value of a figure by its name."""
        return next(one.value for one in self.figures if one.name == name)


@dataclass(frozen=True)
class Granularity:
    """What a hit is a multiple of: `size` tokens, called a block (hash cache), a page (radix cache) or a unit."""

    size: int
    noun: str = "block"

    @property
    def text(self) -> str:
        cache = {"block": "hash cache", "page": "radix cache"}.get(self.noun)
        return f"{self.noun}s of {counted(self.size, 'token')}{f' ({cache})' if cache else ''}"


def figure(name: str, label: str, unit: str, law: Callable[..., Any], *args: Any, of: float | int | None = None) -> Figure:
    """What a law gives for these arguments, as a figure."""
    value, text = predict(law, *args)
    return Figure(name, label, value, unit, text, of)


def model_text(shape: ModelShape) -> str:
    """A model's figures and where they are from."""
    return (
        f"{shape.name}: {shape.num_parameters:,} parameters, {shape.num_layers} layers, {shape.num_heads} query heads, "
        f"{shape.num_kv_heads} key/value heads of {shape.head_dim}; {shape.source}"
    )


def gpu_text(gpu: Gpu) -> str:
    """A GPU's figures and where they are from."""
    return (
        f"{gpu.name}: {shown(gpu.peak_flops_per_s, 'FLOP/s')} bf16 dense, {gpu.memory_bytes_per_s / 1e12:g} TB/s, "
        f"{gpu.memory_bytes / 1e9:g} GB; {gpu.source}"
    )
