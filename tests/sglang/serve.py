"""Starts the real SGLang 0.5.23 on a CPU: python tests/sglang/serve.py --model-path FOLDER --device cpu [SGLang's options]

The wheel of SGLang brings no compiled kernels for CPUs. Plain serving with `--attention-backend torch_native` calls only
one of them, which writes rows of the table from requests to cache slots; it is given here in torch. Everything else is
SGLang's own code, unchanged.

Run it by path: SGLang spawns processes that import the main file again, and so find the same stand-ins there.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402  SGLang reads the variables when it is imported

KERNELS = "sgl_kernel"


def write_slots(request_rows, table, starts, ends, slots, row_length):
    """In row request_rows[i] of `table`, positions starts[i] to ends[i] (half-open) become the next of `slots`.

    table  [num_requests, row_length], changed in place
    slots  [sum of ends - starts], request after request
    """
    lengths = (ends - starts).tolist()
    for row, start, part in zip(request_rows.tolist(), starts.tolist(), torch.split(slots, lengths)):
        table[row, start : start + len(part)] = part.to(table.dtype)


def stand_in_kernels() -> types.ModuleType:
    """A module with the kernel above; other kernels can be imported by name, and say so when they are called."""
    module = types.ModuleType(KERNELS)
    module.__spec__ = importlib.machinery.ModuleSpec(KERNELS, loader=None)  # SGLang looks for one before it imports
    module.assign_req_to_token_pool_cpu = write_slots

    def missing(name):
        if not name.endswith("_cpu"):
            raise AttributeError(name)

        def refuse(*args, **options):
            raise NotImplementedError(f"{KERNELS}.{name} has no stand-in on this machine")

        return refuse

    module.__getattr__ = missing
    return module


def declare_torchvision_operators() -> torch.library.Library | None:
    """torchvision's wheel is built for CUDA: its operators do not load here, but its import wants them declared."""
    try:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
    except RuntimeError:  # a torchvision built for this machine has declared them
        return None
    return library


sys.modules[KERNELS] = stand_in_kernels()
_declared = declare_torchvision_operators()  # kept: the declaration ends with the object

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
