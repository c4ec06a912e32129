"""VllmHashing: vLLM's own block hash, in another interpreter, to be timed in turns with ours.

A process of its own keeps vLLM's packages apart from ours, and lets the two take turns on one machine.

    PeerError             it answered with an error
    ├── PeerUnavailable   no interpreter there, or none that has vLLM
    └── PeerEnded         its process ended, or hung
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Sequence

_WORKER = Path(__file__).with_name("vllm_hash_worker.py")
_ACCEPTED = "accepted: --vllm-python with a Python that has vLLM"
START_TIMEOUT_S = 300.0  # importing vLLM from a cold disk
ANSWER_TIMEOUT_S = 600.0


class PeerError(Exception):
    """The other engine failed; the message is one line for people."""


class PeerUnavailable(PeerError):
    """The other engine is not there; the message says what is accepted."""


class PeerEnded(PeerError):
    """The other engine's process ended, or did not answer and was ended."""


class VllmHashing:
    """A running worker. Use as a context manager, which ends it.

    version   of vLLM
    """

    def __init__(self, python: str | None = None) -> None:
        """python: an interpreter that can import vLLM; None means this one. Takes as long as that import, seconds.

        Raises PeerUnavailable when it cannot be run or cannot import vLLM.
        """
        self._python = sys.executable if python is None else python
        self._log = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                [self._python, str(_WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
            )
        except OSError as error:
            self._log.close()
            raise PeerUnavailable(f"{self._python!r} cannot be run ({error.strerror}); {_ACCEPTED}") from None
        try:
            first = self._read(START_TIMEOUT_S)
            if "version" not in first:
                raise PeerError("it answers as no worker does")
            self.version: str = first["version"]
        except PeerError as error:
            self.kill()
            raise PeerUnavailable(f"{self._python!r} cannot import vLLM ({error}); {_ACCEPTED}") from None
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> VllmHashing:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self.close()
        else:
            self.kill()  # whatever it is doing, nobody waits for it

    def close(self) -> None:
        """Let the worker come to its end."""
        try:
            self._process.communicate(timeout=10)  # closes its input, at which it ends
        except (subprocess.TimeoutExpired, ValueError, BrokenPipeError):
            pass
        self.kill()

    def kill(self) -> None:
        """End the worker at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            try:
                pipe.close()  # type: ignore[union-attr]
            except BrokenPipeError:
                pass  # what it was still to be told

    def load(self, token_ids: Sequence[int], block_size: int) -> None:
        """Send the full blocks of a prompt; they are hashed from Python lists there too."""
        end = len(token_ids) // block_size * block_size
        self._ask({"do": "load", "blocks": [list(token_ids[at : at + block_size]) for at in range(0, end, block_size)]})

    def names(self, algorithm: str, none_hash_seed: str) -> list[str]:
        """Hexadecimal names of all blocks. Raises PeerError, as when a package is missing there."""
        return self._ask({"do": "names", "algorithm": algorithm, "seed": none_hash_seed})["names"]

    def time(self, algorithm: str, none_hash_seed: str, repeats: int = 1) -> float:
        """Seconds for the whole chain, block after block; the mean of as many rounds."""
        return self._ask({"do": "time", "algorithm": algorithm, "seed": none_hash_seed, "repeats": repeats})["seconds"]

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerEnded(f"vLLM's process ended{self._last_words()}") from None
        return self._read(ANSWER_TIMEOUT_S)

    def _read(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        timer = threading.Timer(timeout_s, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            in_time = timer.is_alive()
            timer.cancel()
        if not line and not in_time:
            raise PeerEnded(f"vLLM's process did not answer within {timeout_s:.0f} s")
        if not line:
            self._process.wait()
            raise PeerEnded(f"vLLM's process ended{self._last_words()}")
        try:
            answer = json.loads(line)
        except ValueError:
            raise PeerError("it answers as no worker does") from None
        if not isinstance(answer, dict):
            raise PeerError("it answers as no worker does")
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""
