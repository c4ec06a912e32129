"""Makes an environment with SGLang 0.5.23 for CPUs, to test against: python tests/sglang/make_environment.py FOLDER [pip options]

A few minutes and some gigabytes. It is an environment of its own, because SGLang pins many packages; nothing of ours is
installed in it. The wheel itself goes in without its requirements, most of which are packages for GPUs: PACKAGES names
those that plain serving on a CPU imports. tests/sglang/serve.py starts it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

TORCH = "torch==2.13.0"
# torchvision is imported at start-up and not used; without its requirements, for it would ask for another torch.
ALONE = ["sglang==0.5.23", "torchvision==0.28.0"]
PACKAGES = """
    transformers==5.19.0 tokenizers sentencepiece gguf compressed-tensors numpy einops triton
    fastapi uvicorn uvloop orjson msgspec python-multipart aiohttp requests openai partial-json-parser jsonschema xgrammar
    pyzmq psutil setproctitle dill pybase64 prometheus-client ipython pillow soundfile
""".split()


def main(folder: Path, pip_options: list[str]) -> None:
    """Make the environment in `folder`; one that is there already is completed."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    with tempfile.TemporaryDirectory() as place:
        constraints = Path(place) / "constraints.txt"
        constraints.write_text(TORCH + "\n")
        install = [*pip, "install", *pip_options, "-c", str(constraints)]
        subprocess.run([*install, TORCH], check=True)
        subprocess.run([*install, *PACKAGES], check=True)
        subprocess.run([*pip, "install", *pip_options, "--no-deps", *ALONE], check=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
