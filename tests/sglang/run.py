"""Runs a module of SGLang 0.5.23 on a CPU: python tests/sglang/run.py sglang.bench_serving [its options]

The module is SGLang's own, unchanged. It finds the stand-ins of serve.py, and one more: its benchmark imports Hugging Face's
`datasets`, for data sets that are downloaded, which no test asks for.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import runpy
import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import serve  # noqa: E402, F401  the stand-ins


def stand_in_datasets() -> types.ModuleType:
    """A module whose names can be imported, and nothing more."""
    module = types.ModuleType("datasets")
    module.__spec__ = importlib.machinery.ModuleSpec("datasets", loader=None)
    module.load_dataset = module.Dataset = None
    return module


if importlib.util.find_spec("datasets") is None:
    sys.modules["datasets"] = stand_in_datasets()

if __name__ == "__main__":
    del sys.argv[0]  # the module's own name takes its place
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
