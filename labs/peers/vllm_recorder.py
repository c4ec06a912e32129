"""VllmRecorder: vLLM's own KVCacheManager and Scheduler, in another interpreter, to do the scenarios that ours replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labs.peers.worker_process import WorkerProcess

_WORKER = Path(__file__).with_name("vllm_recorder_worker.py")
ANSWER_TIMEOUT_S = 120.0  # an answer takes milliseconds, the first of a scheduler seconds
_QUESTION = {"manager": ("config", "ops"), "scheduler": ("config", "arrivals", "actions")}


class VllmRecorder(WorkerProcess):
    """A running worker. Use as a context manager, which ends it.

    version   of vLLM
    """

    def __init__(self, python: str | None = None) -> None:
        """python: an interpreter that can import vLLM; None means this one. Takes as long as that import, seconds.

        Raises PeerUnavailable when it cannot be run or cannot import vLLM.
        """
        super().__init__(_WORKER, "vLLM", python, "--vllm-python with a Python that has vLLM")

    def record(self, kind: str, scenario: dict[str, Any]) -> dict[str, Any]:
        """The scenario with what vLLM did in it: `expect` or `steps`, and `final`, in place of any it had.

        kind       "manager" or "scheduler"
        scenario   as in labs/recorded/README.md; its answers are not needed
        returns    a new scenario; the pool is told after every operation and step

        Raises PeerError when vLLM refuses the scenario, PeerEnded when it does not answer.
        """
        question = {key: scenario[key] for key in _QUESTION[kind]}
        # Through JSON, as vLLM gets it and as from a file: a salt and an adapter's name that are equal must not be one
        # object on one side and two on the other, for pickle, and so a block's name, tells the difference.
        as_read = json.loads(json.dumps(scenario))
        return {**as_read, **self.ask({"kind": kind, "scenario": question}, ANSWER_TIMEOUT_S)}
