"""VllmEngine: a whole vLLM in another interpreter, as a TimedEngine.

vLLM runs inside one worker process, without the processes it would start of its own: fewer processes pass messages on,
and nothing of it lives on when the worker is ended.
"""

from __future__ import annotations

from pathlib import Path

from labs.peers.engine_worker import EngineWorker
from labs.benches.timed_engine import EngineSettings

_WORKER = Path(__file__).with_name("vllm_engine_worker.py")


class VllmEngine(EngineWorker):
    """A vLLM that is ready to serve. Use as a context manager, which ends it."""

    name = "vLLM"

    def __init__(self, settings: EngineSettings, python: str | None = None) -> None:
        """Start vLLM and load the model, which takes tens of seconds.

        settings   vLLM on a CPU wants a block_size that is a multiple of 32 tokens; one block of the pool is set
                   aside by vLLM, so num_blocks must be one more than a request of max_model_len needs
        python     an interpreter that can import vLLM; None means this one

        Raises PeerUnavailable without such an interpreter, and PeerError when vLLM does not start with the settings.
        """
        environment = {
            # Only read where vLLM does start a process of its own, whose threads it would otherwise count by itself.
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{settings.num_threads - 1}",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
        }
        accepted = "--vllm-python with a Python that has vLLM"
        super().__init__(_WORKER, self.name, python, accepted, environment, settings)
