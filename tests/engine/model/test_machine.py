import pytest
import torch

from engine.errors import ConfigError
from engine.model import machine
from engine.model.machine import multiplies_bf16_fast, resolve_device, resolve_dtype

CPU = torch.device("cpu")


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_auto_is_the_first_gpu_or_else_the_cpu(no_gpu, monkeypatch):
    assert resolve_device("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_device("auto") == torch.device("cuda", 0)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "tpu", "mps", "cuda:x"])
def test_a_device_that_is_not_there_is_named_with_those_that_are(no_gpu, name):
    with pytest.raises(ConfigError, match=f"device is '{name}'.*cpu"):
        resolve_device(name)


def test_a_gpu_index_must_exist(two_gpus):
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="cuda:0, cuda:1"):
        resolve_device("cuda:2")


@pytest.mark.parametrize(
    "flags, dtype",
    [({"avx2", "avx512f"}, torch.float32), ({"avx512_bf16"}, torch.bfloat16), ({"amx_bf16", "avx2"}, torch.bfloat16)],
)
def test_auto_dtype_is_bfloat16_only_where_the_cpu_multiplies_it(monkeypatch, flags, dtype):
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags))
    assert resolve_dtype("auto", CPU) == dtype


def test_the_flags_are_read_from_the_first_processor(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: fma avx2 avx512_bf16\nprocessor : 1\n")
    assert machine.cpu_flags(cpuinfo) == {"fma", "avx2", "avx512_bf16"}
    assert isinstance(machine.cpu_flags(tmp_path / "absent"), frozenset)


@pytest.mark.parametrize("capability, fast", [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_gpus_multiply_bfloat16_from_capability_8(monkeypatch, capability, fast):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert multiplies_bf16_fast(torch.device("cuda", 0)) is fast


@pytest.mark.parametrize("text, limited", [("4096\n", True), ("max\n", False), (None, False)])
def test_the_memory_is_the_containers_where_that_is_less(tmp_path, text, limited):
    if text is not None:
        (tmp_path / "memory.max").write_text(text)
    found = machine.memory_limit_bytes(tmp_path / "memory.max")
    assert found == 4096 if limited else found > 2**28
