"""VllmHashing: vLLM's own block hash, in another interpreter, to be timed in turns with ours.

A process of its own keeps vLLM's packages apart from ours, and lets the two take turns on one machine.

    PeerError
    └── PeerUnavailable   no interpreter there, or none that has vLLM
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Sequence

_WORKER = Path(__file__).with_name("vllm_hash_worker.py")


class PeerError(Exception):
    """The other engine failed; the message is one line for people."""


class PeerUnavailable(PeerError):
    """The other engine is not there; the message says what is accepted."""


class VllmHashing:
    """A running worker. Use as a context manager, which ends it.

    version   of vLLM
    """

    def __init__(self, python: str | None = None) -> None:
        """python: an interpreter that can import vLLM; None means this one. Takes as long as that import, seconds.

        Raises PeerUnavailable when it cannot be run or cannot import vLLM.
        """
        self._python = python or sys.executable
        self._log = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                [self._python, str(_WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
            )
        except OSError as error:
            self._log.close()
            raise PeerUnavailable(f"{self._python!r} cannot be run ({error.strerror}); {_ACCEPTED}") from None
        try:
            self.version: str = self._read()["version"]
        except PeerError as error:
            self.close()
            raise PeerUnavailable(f"{self._python!r} cannot import vLLM ({error}); {_ACCEPTED}") from None

    def __enter__(self) -> VllmHashing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def load(self, token_ids: Sequence[int], block_size: int) -> None:
        """Send the full blocks of a prompt; they are hashed from Python lists there too."""
        end = len(token_ids) // block_size * block_size
        self._ask({"do": "load", "blocks": [list(token_ids[at : at + block_size]) for at in range(0, end, block_size)]})

    def names(self, algorithm: str, none_hash_seed: str) -> list[str]:
        """Hexadecimal names of all blocks. Raises PeerError, as when a package is missing there."""
        return self._ask({"do": "names", "algorithm": algorithm, "seed": none_hash_seed})["names"]

    def time(self, algorithm: str, none_hash_seed: str) -> float:
        """Seconds for the whole chain, block after block."""
        return self._ask({"do": "time", "algorithm": algorithm, "seed": none_hash_seed})["seconds"]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"vLLM's process ended{self._last_words()}") from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"its process ended{self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


_ACCEPTED = "accepted: --vllm-python with a Python that has vLLM"
