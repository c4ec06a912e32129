"""What this machine computes on, and in which dtype: `auto` resolved, the impossible refused."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from engine.errors import ConfigError

# Flags of /proc/cpuinfo for instructions that multiply bfloat16; without them it is emulated and slower than float32.
FAST_BF16_FLAGS = frozenset(("amx_bf16", "avx512_bf16"))


def resolve_device(name: str) -> torch.device:
    """"auto", "cpu", "cuda" or "cuda:<index>" as a device that is there. Raises ConfigError naming the ones that are."""
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda", 0) if num_gpus else torch.device("cpu")
    accepted = "auto, cpu" + "".join(f", cuda:{index}" for index in range(num_gpus)) + ", cuda" * bool(num_gpus)
    if not num_gpus:
        accepted += " (torch sees no CUDA device here)"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError("device", name, accepted) from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda" or (device.index or 0) >= num_gpus:
        raise ConfigError("device", name, accepted)
    return torch.device("cuda", device.index or 0)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """A dtype by name; "auto" is bfloat16 where `device` multiplies it fast, else float32."""
    if name == "auto":
        return torch.bfloat16 if multiplies_bf16_fast(device) else torch.float32
    return {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[name]


def multiplies_bf16_fast(device: torch.device) -> bool:
    """Whether matrix products in bfloat16 have instructions of their own on this device."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return bool(FAST_BF16_FLAGS & cpu_flags())


def memory_limit_bytes(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes this process may use: the machine's, or the container's where that is less; 0 where nobody says."""
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
    try:
        return min(physical, int(limit.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return physical


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The names of the instruction sets that this processor has; few or none outside Linux."""
    try:
        for line in cpuinfo.read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    # No /proc outside Linux: torch knows as well, through calls that are not part of its documented interface.
    names = {"amx_bf16": "_is_amx_tile_supported", "avx512_bf16": "_is_avx512_bf16_supported"}
    return frozenset(flag for flag, call in names.items() if getattr(torch.cpu, call, lambda: False)())
