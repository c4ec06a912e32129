"""VllmHashing: vLLM's own block hash, in another interpreter, to be timed in turns with ours on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence

from labs.peers.worker_process import PeerEnded, PeerError, PeerUnavailable, WorkerProcess

__all__ = ["PeerEnded", "PeerError", "PeerUnavailable", "VllmHashing"]

_WORKER = Path(__file__).with_name("vllm_hash_worker.py")
ANSWER_TIMEOUT_S = 600.0


class VllmHashing(WorkerProcess):
    """A running worker. Use as a context manager, which ends it.

    version   of vLLM
    """

    def __init__(self, python: str | None = None) -> None:
        """python: an interpreter that can import vLLM; None means this one. Takes as long as that import, seconds.

        Raises PeerUnavailable when it cannot be run or cannot import vLLM.
        """
        super().__init__(_WORKER, "vLLM", python, "--vllm-python with a Python that has vLLM")

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
        return self.ask(request, ANSWER_TIMEOUT_S)
