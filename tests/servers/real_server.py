"""The real vLLM and the real SGLang on this machine's CPU, for tests: each a context manager that yields a base URL.

Both listen on 127.0.0.1 only, on a port that was free a moment ago, and serve the default model (SmolLM2-135M) under
the name MODEL_NAME, in float32: a CPU without bfloat16 instructions computes bfloat16 several times slower. A start takes
30 to 60 s. Each runs in a session of its own, so that the processes it starts in turn end with it, also when a test fails.

    with real_vllm(os.environ["LABCLI_VLLM_PYTHON"]) as url:
        httpx.get(url + "/v1/models")
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Mapping, Sequence

import httpx
import pytest

MODEL_NAME = "smollm2"
START_TIMEOUT_S = 300.0  # on two busy cores vLLM takes a minute
STOP_TIMEOUT_S = 20.0
NUM_LOG_LINES = 15
SGLANG_STARTER = Path(__file__).parents[1] / "sglang" / "serve.py"

needs_vllm = pytest.mark.skipif("LABCLI_VLLM_PYTHON" not in os.environ, reason="LABCLI_VLLM_PYTHON names no Python with vLLM")
needs_sglang = pytest.mark.skipif(
    "LABCLI_SGLANG_PYTHON" not in os.environ, reason="LABCLI_SGLANG_PYTHON names no Python with SGLang"
)


class ServerNotReady(Exception):
    """The server ended or stayed silent; the message holds its last lines."""


@contextmanager
def real_vllm(
    python: str,
    *,
    block_size: int = 32,
    details: bool = True,
    dev_mode: bool = True,
    prefix_caching: bool = True,
    max_model_len: int = 4_096,
    dtype: str = "float32",
    extra: Sequence[str] = (),
) -> Iterator[str]:
    """A vLLM; its CPU attention takes blocks of a multiple of 32 tokens only.

    details   whether usage tells cached tokens (--enable-prompt-tokens-details)
    dev_mode  whether there is a /reset_prefix_cache
    extra     more arguments
    Raises ServerNotReady.
    """
    port = free_port()
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", str(model_folder()), "--served-model-name", MODEL_NAME, "--dtype", dtype, "--enforce-eager"]
    # Of the machine's memory: the default, nine tenths, is more than a shared machine has free.
    command += ["--max-model-len", str(max_model_len), "--block-size", str(block_size), "--gpu-memory-utilization", "0.3"]
    command += ["--enable-prefix-caching" if prefix_caching else "--no-enable-prefix-caching"]
    command += ["--enable-prompt-tokens-details"] if details else []
    environment = {
        "VLLM_SERVER_DEV_MODE": "1" if dev_mode else "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # pinned threads stand still while another process has their core
        "OMP_NUM_THREADS": "2",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with running_server([*command, *extra], environment, f"http://127.0.0.1:{port}") as url:
        yield url


@contextmanager
def real_sglang(
    python: str,
    *,
    page_size: int = 1,
    cache_report: bool = True,
    metrics: bool = True,
    max_total_tokens: int = 20_000,
    extra: Sequence[str] = (),
) -> Iterator[str]:
    """An SGLang with its default radix tree.

    cache_report      whether usage tells cached tokens (--enable-cache-report)
    metrics           whether there is a /metrics
    max_total_tokens  slots of the pool
    extra             more arguments
    Raises ServerNotReady. A token id outside the vocabulary, sent to this server, ends it.
    """
    port = free_port()
    command = [python, str(SGLANG_STARTER), "--model-path", str(model_folder()), "--served-model-name", MODEL_NAME]
    command += ["--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--sleep-on-idle"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-total-tokens", str(max_total_tokens), "--page-size", str(page_size)]
    command += ["--enable-cache-report"] if cache_report else []
    command += ["--enable-metrics"] if metrics else []
    # A second OpenMP thread waits for a core that the server's other processes hold: prefills take 30 times as long.
    with running_server([*command, *extra], {"OMP_NUM_THREADS": "1"}, f"http://127.0.0.1:{port}") as url:
        yield url


def model_folder() -> Path:
    """The default model as both servers read it: a folder as transformers saves it; made at the first call, in half a minute."""
    from engine.model.model_cache import converted_folder
    from engine.model.model_source import find_model

    return converted_folder(find_model("smollm2").gguf_path)


@contextmanager
def running_server(command: Sequence[str], environment: Mapping[str, str], url: str) -> Iterator[str]:
    """Start a server that will answer at `url`, wait for it, and end it and all that it started. Raises ServerNotReady."""
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=place,
                env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
                start_new_session=True,
            )
        try:
            _wait_until_ready(process, url, log)
            yield url
        finally:
            _end_session(process)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """/health alone is too early for SGLang, which answers it before its first request is through."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerNotReady(f"the server ended with exit code {process.returncode}:\n{_last_lines(log)}")
        try:
            if httpx.get(url + "/health", timeout=5).status_code == 200 and httpx.get(url + "/v1/models", timeout=5).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise ServerNotReady(f"the server was not ready within {START_TIMEOUT_S:.0f} s:\n{_last_lines(log)}")


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """First ask, then force: the session's number is the process id of its first process."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait(STOP_TIMEOUT_S)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _last_lines(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-NUM_LOG_LINES:])
