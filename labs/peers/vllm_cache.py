"""VllmCache: vLLM's own KVCacheManager, in another interpreter, to be timed in turns with ours on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

from labs.benches.cache_cost import CacheRun
from labs.peers.worker_process import WorkerProcess

_WORKER = Path(__file__).with_name("vllm_cache_worker.py")
ANSWER_TIMEOUT_S = 600.0


class VllmCache(WorkerProcess):
    """A running worker. Use as a context manager, which ends it.

    version   of vLLM
    """

    def __init__(self, python: str | None = None) -> None:
        """python: an interpreter that can import vLLM; None means this one. Raises PeerUnavailable without one."""
        super().__init__(_WORKER, "vLLM", python, "--vllm-python with a Python that has vLLM")

    def load(self, prompts: Sequence[Sequence[int]]) -> None:
        """Send the prompts; they are kept there as Python lists."""
        self.ask({"do": "load", "prompts": [list(prompt) for prompt in prompts]}, ANSWER_TIMEOUT_S)

    def run(self, algorithm: str, block_size: int, num_blocks: int) -> CacheRun:
        """Name, look up, allocate and free every prompt there. Raises PeerError."""
        request = {"do": "run", "algorithm": algorithm, "block_size": block_size, "num_blocks": num_blocks}
        answer = self.ask(request, ANSWER_TIMEOUT_S)
        return CacheRun(answer["seconds"], answer["hits"])
