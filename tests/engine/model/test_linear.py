"""Matrix products in each kind of arrangement, and which kind serves whom."""

import pytest
import torch

from engine.model import linear
from engine.model.linear import PackedLinear, PlainLinear, WidenedLinear, linear_kind

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
CPU = torch.device("cpu")


def numbers(*shape, dtype=F32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("kind, dtype", [(PlainLinear, F32), (PackedLinear, F32), (PlainLinear, BF16), (WidenedLinear, BF16)])
@pytest.mark.parametrize("rows", [1, 2, 33, 300])
@pytest.mark.parametrize("with_bias", [True, False])
def test_every_kind_is_the_product_in_its_dtype(kind, dtype, rows, with_bias):
    x, weight, bias = numbers(rows, 64, dtype=dtype), numbers(48, 64, dtype=dtype, seed=1), numbers(48, dtype=dtype, seed=2)
    got = kind(weight, bias if with_bias else None)(x)
    exact = x.double() @ weight.double().T + (bias.double() if with_bias else 0)
    assert got.dtype == dtype and got.shape == (rows, 48)
    # One rounding of the exact sum: a product whose sums were kept in bfloat16 would be off by far more.
    torch.testing.assert_close(got.double(), exact, rtol=2**-8 if dtype is BF16 else 1e-5, atol=2e-3 if dtype is BF16 else 1e-5)


def test_widened_products_are_those_of_the_same_numbers_in_float32():
    x, weight = numbers(5, 64, dtype=BF16), numbers(48, 64, dtype=BF16, seed=1)
    widened = WidenedLinear(weight, None)
    assert (widened.product_dtype(1), widened.product_dtype(2)) == (BF16, F32)
    torch.testing.assert_close(widened.multiply(x.float()), x.float() @ weight.float().T, rtol=1e-6, atol=1e-5)
    assert torch.equal(widened(x), widened.multiply(x.float()).bfloat16())


@pytest.mark.parametrize(
    "dtype, device, has_bf16, onednn_bf16, kind",
    [
        (F32, "cpu", False, False, PackedLinear),
        (BF16, "cpu", False, False, WidenedLinear),
        (BF16, "cpu", True, True, PackedLinear),
        (BF16, "cpu", True, False, PlainLinear),
        (F16, "cpu", False, False, PlainLinear),
        (BF16, "cuda", True, False, PlainLinear),
    ],
)
def test_the_kind_follows_dtype_and_machine(monkeypatch, dtype, device, has_bf16, onednn_bf16, kind):
    monkeypatch.setattr(linear, "multiplies_bf16_fast", lambda device: has_bf16)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: onednn_bf16)
    assert linear_kind(dtype, torch.device(device)) is kind


def test_a_model_that_would_fill_the_memory_is_not_widened(monkeypatch):
    monkeypatch.setattr(linear, "multiplies_bf16_fast", lambda device: False)
    assert linear_kind(BF16, CPU, 10**6) is WidenedLinear
    assert linear_kind(BF16, CPU, 10**13) is PlainLinear


def test_without_onednns_operators_torchs_own_product_serves(monkeypatch):
    monkeypatch.setattr(linear, "_has_onednn", lambda: False)
    assert linear_kind(F32, CPU) is PlainLinear
