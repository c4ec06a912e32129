"""Gpu: what a GPU's data sheet says of its speed and memory, for the GPUs in the table.

Data sheets like to print tensor-core figures "with sparsity": twice what a model with ordinary weights can use.
Every figure here is the dense one, for bf16 with accumulation in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.named_entry import find_named


@dataclass(frozen=True)
class Gpu:
    """What of a GPU the cost depends on, as its data sheet prints it (1 GB = 1e9 bytes)."""

    name: str
    peak_flops_per_s: float  # bf16 tensor cores, dense, accumulating in float32
    memory_bytes_per_s: float
    memory_bytes: float
    source: str
    aliases: tuple[str, ...] = ()


GPUS = (
    Gpu(
        "H100 SXM", 989.4e12, 3.35e12, 80e9, "NVIDIA H100 architecture white paper and data sheet, SXM5",
        ("H100", "H100 SXM5"),
    ),
    Gpu("H100 PCIe", 756.5e12, 2.0e12, 80e9, "NVIDIA H100 data sheet, PCIe; the printed 1,513 TFLOP/s count sparsity"),
    Gpu("H200", 989.4e12, 4.8e12, 141e9, "NVIDIA H200 data sheet; arithmetic as H100 SXM", ("H200 SXM",)),
    Gpu("A100 SXM 80GB", 312e12, 2.039e12, 80e9, "NVIDIA A100 data sheet, SXM4 80 GB"),
    Gpu("A100 SXM 40GB", 312e12, 1.555e12, 40e9, "NVIDIA A100 data sheet, SXM4 40 GB"),
    Gpu(
        "B200", 2.25e15, 7.7e12, 180e9,
        "NVIDIA Blackwell data sheet, HGX B200, for one GPU; the printed 4.5 PFLOP/s count sparsity",
        ("B200 SXM", "HGX B200"),
    ),
    Gpu("L4", 121e12, 300e9, 24e9, "NVIDIA L4 data sheet; the printed 242 TFLOP/s count sparsity"),
    Gpu("L40S", 362.05e12, 864e9, 48e9, "NVIDIA L40S data sheet"),
    Gpu("RTX 4090", 165.2e12, 1.008e12, 24e9, "NVIDIA Ada GPU architecture white paper", ("RTX4090",)),
)  # fmt: skip


def gpu_by_name(name: str) -> Gpu:
    """The data sheet of a GPU in the table, as `find_named` reads names. Raises ConfigError for an unknown one."""
    return find_named("gpu", name, GPUS)
