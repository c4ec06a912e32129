"""Compiled kernels against torch's operations, in the dtypes and with the rounding they claim."""

import os
import shutil

import pytest
import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from engine.errors import ConfigError
from engine.model import native_kernels
from engine.model.native_kernels import NativeKernels

F32, BF16 = torch.float32, torch.bfloat16
# (dtype of products' rows, dtype of what is kept)
PAIRS = pytest.mark.parametrize("product, kept", [(F32, F32), (F32, BF16), (BF16, BF16)], ids=str)
KEPT = pytest.mark.parametrize("kept", [F32, BF16], ids=str)


@pytest.fixture(scope="module")
def kernels():
    return {dtype: NativeKernels(dtype) for dtype in (F32, BF16)}


def numbers(*shape, dtype=F32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(got, wanted):
    # Half a unit in the last place of what is kept may fall the other way.
    torch.testing.assert_close(got.float(), wanted.float(), rtol=1.6e-2 if BF16 in (got.dtype, wanted.dtype) else 1e-5, atol=1e-5)


@PAIRS
@pytest.mark.parametrize("rows", [1, 7, 60])
@pytest.mark.parametrize("with_delta", [True, False])
def test_add_and_norm(kernels, product, kept, rows, with_delta):
    hidden, weight, delta = numbers(rows, 576, dtype=kept), numbers(576, dtype=kept, seed=1), numbers(rows, 576, dtype=product, seed=2)
    wanted = hidden + delta.to(kept) if with_delta else hidden.clone()
    normed = torch.empty(rows, 576, dtype=product)
    kernels[kept].add_rms_norm(hidden, delta if with_delta else None, weight, normed, 1e-5)
    assert torch.equal(hidden, wanted)
    close(normed.to(kept), rms_norm(wanted.float(), (576,), None, 1e-5).to(kept) * weight)
    assert torch.equal(normed.to(kept).to(product), normed), "a value that the kept dtype does not have"


@PAIRS
@pytest.mark.parametrize("rows", [1, 40])
def test_gated_silu(kernels, product, kept, rows):
    gate_up = 4 * numbers(rows, 2 * 96, dtype=product)
    gated = torch.empty(rows, 96, dtype=product)
    kernels[kept].silu_mul(gate_up, gated)
    gate, up = gate_up.to(kept).split(96, dim=1)
    close(gated.to(kept), silu(gate) * up)


@PAIRS
def test_gates_far_below_zero_are_zero_and_not_nan(kernels, product, kept):
    gate_up = torch.full((3, 64), -200.0, dtype=product)
    gated = torch.full((3, 32), 7.0, dtype=product)
    kernels[kept].silu_mul(gate_up, gated)
    torch.testing.assert_close(gated, torch.zeros_like(gated), rtol=0, atol=1e-20)


@PAIRS
@pytest.mark.parametrize("heads, kv_heads, dim", [(9, 3, 64), (4, 2, 16), (2, 2, 6)])
def test_rotation_and_storing(kernels, product, kept, heads, kv_heads, dim):
    rows, width = 13, (heads + 2 * kv_heads) * dim
    qkv = numbers(rows, width, dtype=product)
    cos, sin = numbers(rows, dim, dtype=kept, seed=1), numbers(rows, dim, dtype=kept, seed=2)
    keys, values = torch.zeros(2, 40, kv_heads, dim, dtype=kept)
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(3))[:rows]
    rotated = torch.empty(rows, width, dtype=kept)
    kernels[kept].rotate_store(qkv, cos, sin, rotated, keys, values, slots, heads)
    x = qkv.to(kept).view(rows, -1, dim)
    wanted = x.clone()
    turned = x[:, : heads + kv_heads]
    wanted[:, : heads + kv_heads] = turned * cos[:, None] + turned.roll(dim // 2, -1) * sin[:, None]
    close(rotated.view(rows, -1, dim), wanted)
    assert torch.equal(rotated.view(rows, -1, dim)[:, heads + kv_heads :], x[:, heads + kv_heads :])
    assert torch.equal(keys[slots], rotated.view(rows, -1, dim)[:, heads : heads + kv_heads])
    assert torch.equal(values[slots], x[:, heads + kv_heads :])
    others = torch.ones(40, dtype=torch.bool)
    others[slots] = False
    assert not keys[others].any() and not values[others].any(), "a slot of somebody else was written"


@KEPT
@pytest.mark.parametrize("heads, kv_heads, dim", [(9, 3, 64), (4, 4, 16), (6, 1, 10)])
def test_attention_of_single_tokens_over_their_own_slots(kernels, kept, heads, kv_heads, dim):
    keys, values = numbers(2, 500, kv_heads, dim, dtype=kept)
    query = numbers(6, heads + 2, dim, dtype=kept, seed=1)[:, :heads]  # a stride between rows, as in q, k, v side by side
    lengths, rows = [1, 130, 17, 64], torch.tensor([5, 0, 3, 1])
    order = torch.randperm(500, generator=torch.Generator().manual_seed(2))
    contexts = order[: sum(lengths)].split(lengths)
    starts = torch.tensor([0, 1, 131, 148, 212])
    out = torch.empty(4, heads, dim, dtype=kept)
    kernels[kept].attend(query, keys, values, rows, starts, torch.cat(contexts), out, 0.3)
    for own, row, result in zip(contexts, rows, out):
        wanted = scaled_dot_product_attention(
            query[row][:, None].double(), keys[own].transpose(0, 1).double(), values[own].transpose(0, 1).double(),
            scale=0.3, enable_gqa=True,
        )[:, 0]  # fmt: skip
        close(result, wanted.to(kept))


def test_large_scores_do_not_overflow(kernels):
    keys = torch.full((3, 1, 8), 100.0)
    keys[1] = -100.0
    values = torch.arange(24.0).view(3, 1, 8)
    out = torch.empty(1, 1, 8)
    kernels[F32].attend(
        torch.full((1, 1, 8), 100.0), keys, values, torch.tensor([0]), torch.tensor([0, 3]), torch.tensor([0, 1, 2]), out, 1.0
    )
    torch.testing.assert_close(out[0], (values[0] + values[2]) / 2)


def test_the_library_is_built_once_and_then_found(tmp_path):
    told = []
    first = NativeKernels(F32, tmp_path, lambda *progress: told.append(progress))
    again = NativeKernels(BF16, tmp_path, lambda *progress: told.append(progress))
    assert first.build_s > 0 and again.build_s == 0.0
    assert told == [("compiling kernels", 0, 1), ("compiling kernels", 1, 1)]
    assert [path.suffix for path in (tmp_path / "native").iterdir()] == [".so"], "something was left behind"


def test_another_source_is_another_library(tmp_path, monkeypatch):
    changed = tmp_path / "kernels.cpp"
    changed.write_text(native_kernels.SOURCE.read_text() + "// changed\n")
    NativeKernels(F32, tmp_path)
    monkeypatch.setattr(native_kernels, "SOURCE", changed)
    NativeKernels(F32, tmp_path)
    assert len(list((tmp_path / "native").iterdir())) == 2


def test_without_a_compiler_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="compile is True; accepted: false, or true where there is a C\\+\\+ compiler"):
        NativeKernels(F32, tmp_path)


def test_a_compiler_that_fails_is_named_with_its_first_error(tmp_path, monkeypatch):
    broken = tmp_path / "kernels.cpp"
    broken.write_text("int kernels( {\n")
    monkeypatch.setattr(native_kernels, "SOURCE", broken)
    with pytest.raises(ConfigError, match="error"):
        NativeKernels(F32, tmp_path)
    assert not list((tmp_path / "native").glob("*")), "something was left behind"


def test_a_library_that_cannot_be_loaded_is_one_line(tmp_path, monkeypatch):
    def refuse(path):
        raise OSError("failed to map segment from shared object")

    monkeypatch.setattr(native_kernels.ctypes, "CDLL", refuse)
    with pytest.raises(ConfigError, match="compile is True; accepted: false: the compiled kernels cannot be loaded .failed to map"):
        NativeKernels(F32, tmp_path)


def test_half_precision_without_kernels_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="float32 or bfloat16"):
        NativeKernels(torch.float16, tmp_path)


def test_the_kernels_use_torchs_threads():
    loaded = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line} if os.path.exists("/proc/self/maps") else set()
    NativeKernels(F32)
    after = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line} if os.path.exists("/proc/self/maps") else set()
    assert loaded == after, "a second OpenMP was loaded"
