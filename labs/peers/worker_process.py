"""WorkerProcess: a script of ours run by another engine's Python, asked and answering in JSON, one object a line.

A process of its own keeps the other engine's packages apart from ours. The script's first line is
{"version": text} when it has imported the engine, or {"error": text}.

    PeerError             it answered with an error
    ├── PeerUnavailable   no interpreter there, or none that has the engine
    └── PeerEnded         its process ended, or hung
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Mapping, Self

START_TIMEOUT_S = 300.0  # importing an engine from a cold disk
_END_TIMEOUT_S = 5.0  # from the end of its output to its own


class PeerError(Exception):
    """The other engine failed; the message is one line for people."""


class PeerUnavailable(PeerError):
    """The other engine is not there; the message says what is accepted."""


class PeerEnded(PeerError):
    """The other engine's process ended, or did not answer and was ended."""


class WorkerProcess:
    """A running worker. Use as a context manager, which ends it.

    version   of the other engine
    """

    def __init__(
        self,
        script: Path,
        engine: str,
        python: str | None,
        accepted: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start the script and wait until it has imported the engine, seconds.

        engine        its name, for messages
        python        an interpreter that can import it; None means this one
        accepted      ends the message when there is none: "--vllm-python with a Python that has vLLM"
        environment   variables that it gets besides this process's own

        Raises PeerUnavailable when the interpreter cannot be run or cannot import the engine.
        """
        self._engine, self._python = engine, sys.executable if python is None else python
        self._log = tempfile.TemporaryFile()
        try:
            self._process = subprocess.Popen(
                [self._python, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        except OSError as error:
            self._log.close()
            raise PeerUnavailable(f"{self._python!r} cannot be run ({error.strerror}); accepted: {accepted}") from None
        try:
            first = self._exchange("", START_TIMEOUT_S)
            if "version" not in first:
                raise PeerError("it answers as no worker does")
            self.version: str = first["version"]
        except PeerError as error:
            self.kill()
            raise PeerUnavailable(f"{self._python!r} cannot import {engine} ({error}); accepted: {accepted}") from None
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
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

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer to one request. Raises PeerError when it is an error, PeerEnded when none comes in time."""
        return self._exchange(json.dumps(request) + "\n", timeout_s)

    def _exchange(self, question: str, timeout_s: float) -> dict[str, Any]:
        """The next answer, once the question, if any, is written: both in time, for what hangs reads nothing either."""
        assert self._process.stdin is not None and self._process.stdout is not None
        line = ""
        timer = threading.Timer(timeout_s, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(question)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass  # it ended before it was asked
        finally:
            in_time = timer.is_alive()
            timer.cancel()
        if not line.endswith("\n"):  # it ended, perhaps in the middle of its answer
            if not in_time:
                self._process.wait()
                raise PeerEnded(f"{self._engine}'s process did not answer within {timeout_s:.0f} s")
            raise PeerEnded(f"{self._engine}'s process ended{self._cause()}")
        try:
            answer = json.loads(line)
        except ValueError:
            raise PeerError("it answers as no worker does") from None
        if not isinstance(answer, dict):
            raise PeerError("it answers as no worker does")
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def _cause(self) -> str:
        """ " (Aborted): its last words"; of what the system killed, as when memory is short, they would say something else."""
        try:
            exit_code = self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            exit_code = 0  # it closed its output, and lives on
        by_signal = f" ({signal.strsignal(-exit_code)})" if exit_code < 0 else ""
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return by_signal + (f": {lines[-1]}" if lines and exit_code != -signal.SIGKILL else "")
