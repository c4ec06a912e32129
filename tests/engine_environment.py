"""EngineEnvironment: a folder with an interpreter of its own, for a real engine on a CPU; nothing of ours is installed in it.

Real engines pin many packages, most of them for GPUs: what is needed is installed around the engine, which goes in alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

TORCH = "torch==2.13.0"


class EngineEnvironment:
    """With torch; a folder that is there already is completed."""

    def __init__(self, folder: Path, pip_options: list[str]) -> None:
        """pip_options: of each call of pip, such as another package index."""
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        self._python, self._options = str(folder / "bin" / "python"), pip_options
        self.install(TORCH)

    def install(self, *packages: str) -> None:
        """With all that they ask for; torch stays the one it is."""
        with tempfile.TemporaryDirectory() as place:
            constraints = Path(place) / "constraints.txt"
            constraints.write_text(TORCH + "\n")
            self._pip("install", "-c", str(constraints), *packages)

    def install_alone(self, *packages: str) -> None:
        """Without what they ask for."""
        self._pip("install", "--no-deps", *packages)

    def download(self, package: str, place: Path) -> Path:
        """Its wheel, in a folder that is empty before."""
        self._pip("download", "--no-deps", "-d", str(place), package)
        (wheel,) = place.glob("*.whl")
        return wheel

    def _pip(self, command: str, *arguments: str) -> None:
        pip = [self._python, "-m", "pip", "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, command, *self._options, *arguments], check=True)
