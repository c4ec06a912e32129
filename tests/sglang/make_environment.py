"""Makes an environment with SGLang 0.5.23 for CPUs, to test against: python -m tests.sglang.make_environment FOLDER [pip options]

A few minutes and some gigabytes. The wheel itself goes in without its requirements, most of which are packages for GPUs:
PACKAGES names those that plain serving on a CPU imports. tests/sglang/serve.py starts it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.engine_environment import EngineEnvironment

# torchvision is imported at start-up and not used; without its requirements, for it would ask for another torch.
ALONE = ["sglang==0.5.23", "torchvision==0.28.0"]
PACKAGES = """
    transformers==5.19.0 tokenizers sentencepiece gguf compressed-tensors numpy einops triton
    fastapi uvicorn uvloop orjson msgspec python-multipart aiohttp requests openai partial-json-parser jsonschema xgrammar
    pyzmq psutil setproctitle dill pybase64 prometheus-client ipython pillow soundfile
""".split()


def main(folder: Path, pip_options: list[str]) -> None:
    """Make the environment in `folder`; one that is there already is completed."""
    environment = EngineEnvironment(folder, pip_options)
    environment.install(*PACKAGES)
    environment.install_alone(*ALONE)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
