"""NativeKernels: native/kernels.cpp, compiled for this machine and called on torch tensors.

    source + compiler + processor ─hash─▶ <cache_dir>/native/kernels-<hash>.so ─ctypes─▶ functions

Compiling takes seconds and needs a C++ compiler ($CXX, c++, g++ or clang++); the result is kept in the per-user cache
folder and serves every later start. It is linked with the OpenMP library that torch has loaded, so that both share
one set of threads: two sets would take turns waiting for each other.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.model.machine import cpu_flags
from engine.model.model_cache import Progress, default_cache_dir

SOURCE = Path(__file__).parent / "native" / "kernels.cpp"
FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC", "-std=c++17")
COMPILE_TIMEOUT_S = 120.0

_NAMES = {torch.float32: "float", torch.bfloat16: "bf16"}
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64


class NativeKernels:
    """The functions, for hidden states of one dtype; seconds of building in `build_s` (0.0 when they were there).

    Products' rows may be wider (float32 with bfloat16 states): each call looks at the tensors it is given.
    """

    def __init__(self, dtype: torch.dtype, cache_dir: Path | str | None = None, progress: Progress | None = None) -> None:
        """Raises ConfigError without a C++ compiler, or for a dtype that the kernels do not have."""
        if dtype not in _NAMES:
            raise ConfigError("compile", True, "false, or true with dtype float32 or bfloat16")
        begin_s = time.perf_counter()
        path, was_there = _library(cache_dir, progress)
        self.build_s = 0.0 if was_there else time.perf_counter() - begin_s
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:  # a folder from which nothing may be run, for example
            raise ConfigError("compile", True, f"false: the compiled kernels cannot be loaded ({error})") from error
        kinds = [product for product in (torch.float32, dtype) if (product, dtype) != (torch.bfloat16, torch.float32)]
        self._norm = {kind: _function(library, f"add_rms_norm_{_pair(kind, dtype)}", 4, 2, 1) for kind in kinds}
        self._silu = {kind: _function(library, f"silu_mul_{_pair(kind, dtype)}", 2, 2, 0) for kind in kinds}
        self._rotate = {kind: _function(library, f"rotate_store_{_pair(kind, dtype)}", 7, 4, 0) for kind in kinds}
        self._attend = library[f"attend_{_NAMES[dtype]}"]
        self._attend.argtypes = [_POINTER, _INT, *[_POINTER] * 6, *[_INT] * 4, ctypes.c_float]

    def add_rms_norm(self, hidden: Tensor, delta: Tensor | None, weight: Tensor, normed: Tensor, eps: float) -> None:
        """hidden += delta, then normed = its RMS norm times weight; [n, size] each, all contiguous."""
        rows, size = hidden.shape
        self._norm[normed.dtype](
            hidden.data_ptr(), None if delta is None else delta.data_ptr(), weight.data_ptr(), normed.data_ptr(), rows, size, eps
        )

    def silu_mul(self, gate_up: Tensor, gated: Tensor) -> None:
        """gated [n, size] = silu(gate) * up, of gate_up [n, 2 * size]."""
        rows, size = gated.shape
        self._silu[gate_up.dtype](gate_up.data_ptr(), gated.data_ptr(), rows, size)

    def rotate_store(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, rotated: Tensor, keys: Tensor, values: Tensor, slots: Tensor, num_heads: int
    ) -> None:
        """Rotate q and k, and store k and v.

        qkv, rotated  [n, (num_heads + 2 * num_kv_heads) * head_dim]
        cos, sin      [n, head_dim], sin with the sign of the half it is multiplied with
        keys, values  [num_slots, num_kv_heads, head_dim], one layer of the pool
        slots         [n] int64
        """
        _, num_kv_heads, head_dim = keys.shape
        self._rotate[qkv.dtype](
            qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(), rotated.data_ptr(), keys.data_ptr(), values.data_ptr(),
            slots.data_ptr(), qkv.shape[0], num_heads, num_kv_heads, head_dim,
        )  # fmt: skip

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, rows: Tensor, starts: Tensor, slots: Tensor, out: Tensor, scale: float
    ) -> None:
        """Attention of one token of each of `batch` requests over its own slots, read where they are.

        query   [T, num_heads, head_dim], any stride between rows
        rows    [batch] int64, the requests' rows in query
        starts  [batch + 1] int64, where each request's slots begin in `slots`; slots int64
        out     [batch, num_heads, head_dim], contiguous
        """
        _, num_kv_heads, head_dim = keys.shape
        self._attend(
            query.data_ptr(), query.stride(0), keys.data_ptr(), values.data_ptr(), rows.data_ptr(), starts.data_ptr(),
            slots.data_ptr(), out.data_ptr(), rows.shape[0], query.shape[1], num_kv_heads, head_dim, scale,
        )  # fmt: skip


def _pair(product: torch.dtype, kept: torch.dtype) -> str:
    return f"{_NAMES[product]}_{_NAMES[kept]}"


def _function(library: ctypes.CDLL, name: str, num_pointers: int, num_ints: int, num_floats: int) -> ctypes._CFuncPtr:
    function = library[name]
    function.argtypes = [*[_POINTER] * num_pointers, *[_INT] * num_ints, *[ctypes.c_float] * num_floats]
    function.restype = None
    return function


def _library(cache_dir: Path | str | None, progress: Progress | None) -> tuple[Path, bool]:
    """The compiled library, and whether it was there already."""
    compiler = _compiler()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    openmp = _openmp_library()
    name = hashlib.sha256(
        "\0".join([SOURCE.read_text(), version, *FLAGS, platform.machine(), *sorted(cpu_flags()), str(openmp)]).encode()
    ).hexdigest()[:16]
    root = default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser()
    path = root / "native" / f"kernels-{name}.so"
    if path.exists():
        return path, True
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if progress is not None:
            progress("compiling kernels", 0, 1)
        with tempfile.TemporaryDirectory(prefix=f"{path.name}.tmp-", dir=path.parent) as folder:
            _compile(compiler, openmp, Path(folder))
            os.replace(Path(folder) / "kernels.so", path)
        if progress is not None:
            progress("compiling kernels", 1, 1)
    except OSError as error:
        raise ConfigError("cache_dir", str(root), f"a folder that can be written ({error.strerror})") from error
    return path, False


def _compile(compiler: str, openmp: Path | None, folder: Path) -> None:
    # Two calls: -ffast-math at linking would change how the whole process rounds the smallest numbers.
    compile_flags = FLAGS if openmp is not None else tuple(flag for flag in FLAGS if flag != "-fopenmp")
    libraries = [] if openmp is None else [str(openmp)]
    for command in (
        [compiler, *compile_flags, "-c", str(SOURCE), "-o", "kernels.o"],
        [compiler, "-shared", "kernels.o", *libraries, "-lm", "-o", "kernels.so"],
    ):
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
        except OSError as error:
            raise ConfigError("compile", True, f"false: {compiler} cannot be run ({error.strerror})") from None
        except subprocess.TimeoutExpired:
            raise ConfigError("compile", True, f"false: {compiler} did not finish within {COMPILE_TIMEOUT_S:.0f} s") from None
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit code {done.returncode}"]
            raise ConfigError("compile", True, f"false, or a C++ compiler that compiles the kernels ({compiler}: {lines[0].strip()})")


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise ConfigError("compile", True, "false, or true where there is a C++ compiler ($CXX, c++, g++ or clang++)")


def _openmp_library() -> Path | None:
    """GNU's OpenMP library that this process has loaded (torch brings its own); None: the kernels use one thread."""
    try:
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = Path(line.split(maxsplit=5)[-1])
            if path.name.startswith("libgomp"):
                return path
    except OSError:
        pass
    return None
