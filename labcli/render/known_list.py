"""The models and GPUs that are known by name, as tables, with where their figures are from."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Sequence

from engine.cost_model import GPUS, MODELS, kv_bytes_per_token
from labcli.render.estimate import folded


def print_known() -> None:
    """Print both tables; the K/V of a token is in bf16."""
    _print_table(
        ("model", "parameters", "layers", "heads", "K/V heads", "K/V a token", "longest"),
        [
            (
                one.name, f"{one.num_parameters:,}", str(one.num_layers), str(one.num_heads),
                f"{one.num_kv_heads} of {one.head_dim}", f"{kv_bytes_per_token(one) / 1024:g} KiB", f"{one.max_model_len:,}",
            )
            for one in MODELS
        ],
    )  # fmt: skip
    print()
    _print_table(
        ("GPU", "TFLOP/s, bf16 dense", "TB/s", "GB"),
        [
            (
                one.name, f"{one.peak_flops_per_s / 1e12:,.1f}", f"{one.memory_bytes_per_s / 1e12:.3f}",
                f"{one.memory_bytes / 1e9:g}",
            )
            for one in GPUS
        ],
    )  # fmt: skip
    print()
    for one in (*MODELS, *GPUS):
        print(folded(f"{one.name}: {one.source}", indent="    "))


def known_json() -> str:
    """Both tables with all their fields."""
    tables = {"models": [asdict(one) for one in MODELS], "gpus": [asdict(one) for one in GPUS]}
    return json.dumps(tables, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(titles, *rows)]
    for row in (titles, *rows):
        numbers = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("  ".join([row[0].ljust(widths[0]), *numbers]).rstrip())
