"""The environment of a run: machine, versions, code. Read without importing what is not loaded already.

No user name, no host name, no path of a home folder: a record may be published. Records of one machine are told
from those of another by a short hash.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("labcli", "torch", "transformers", "numpy", "cbor2", "xxhash")


def read_environment() -> dict[str, Any]:
    """JSON-ready facts about this machine and this code."""
    commit, dirty = read_commit()
    return {
        "machine": machine_id(),
        "os": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "num_cpus": _num_cpus(),
        "memory_bytes": _memory_bytes(),
        "gpu": _gpu_name(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": commit,
        "dirty": dirty,
    }


def machine_id() -> str:
    """Eight hex digits that stay the same on one machine and tell nothing about it."""
    try:
        identity = Path("/etc/machine-id").read_text().strip()
    except OSError:
        identity = ""
    return hashlib.sha256(f"labcli {identity or uuid.getnode()}".encode()).hexdigest()[:8]


def read_commit() -> tuple[str | None, bool | None]:
    """Commit of the checkout this code runs from, and whether it has changes; (None, None) outside of one."""
    root = Path(__file__).resolve().parent.parent
    top_level = _git(root, "rev-parse", "--show-toplevel")
    # Installed below somebody else's checkout, the commit there would say nothing about this code.
    if top_level is None or Path(top_level).resolve() != root:
        return None, None
    status = _git(root, "status", "--porcelain")
    return _git(root, "rev-parse", "--verify", "HEAD"), None if status is None else bool(status)


def without_home(value: Any) -> Any:
    """The same JSON-ready value, with the home folder in its texts written as "~"."""
    if isinstance(value, str):
        home = os.path.expanduser("~")
        return value.replace(home, "~") if len(home) > 1 else value
    if isinstance(value, dict):
        return {key: without_home(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_home(one) for one in value]
    return value


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        # Without optional locks `git status` writes nothing into the checkout.
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _num_cpus() -> int | None:
    # The cores this process may use; a container often has fewer than the machine.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _gpu_name() -> str | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name()
