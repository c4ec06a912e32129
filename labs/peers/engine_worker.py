"""EngineWorker: a whole engine in a process of its own, as a TimedEngine; what vLLM's and transformers' have in common."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Mapping, Sequence

from labs.peers.worker_process import PeerError, WorkerProcess
from labs.benches.timed_engine import EngineSettings, Served, TokenIds

START_TIMEOUT_S = 900.0  # torch.compile takes minutes on a slow machine
SERVE_TIMEOUT_S = 1800.0


class EngineWorker(WorkerProcess):
    """An engine that is ready to serve. Use as a context manager, which ends it.

    name      of the engine, as people read it
    version   of its package
    start_s   seconds from nothing to ready, imports included
    """

    name: str

    def __init__(
        self,
        script: Path,
        package: str,
        python: str | None,
        accepted: str,
        environment: Mapping[str, str],
        settings: EngineSettings,
        **more: Any,
    ) -> None:
        """Start the script with WorkerProcess's first five arguments, then the engine with `settings` and `more`.

        Raises PeerUnavailable as WorkerProcess does, and PeerError when the engine does not start.
        """
        # OpenMP reads its number of threads once, when torch is imported; models are folders, nothing is fetched.
        common = {"OMP_NUM_THREADS": str(settings.num_threads), "HF_HUB_OFFLINE": "1"}
        super().__init__(script, package, python, accepted, {**common, **environment})
        try:
            question = {"do": "start", "settings": asdict(settings), **more}
            self.start_s: float = self.ask(question, START_TIMEOUT_S)["start_s"]
        except PeerError as error:
            self.kill()
            raise type(error)(f"{self.name} did not start: {error}") from None
        except BaseException:
            self.kill()
            raise

    def serve(self, prompts: Sequence[TokenIds], num_outputs: int) -> Served:
        """All prompts, greedy, exactly num_outputs tokens each, an end-of-text token being one like any other.

        The first call also pays for what an engine sets up when it first runs: serve something before what is measured.
        Raises PeerError when a prompt cannot be served; none of the others is left behind then.
        """
        question = {"do": "serve", "prompts": [list(prompt) for prompt in prompts], "num_outputs": num_outputs}
        answer = self.ask(question, SERVE_TIMEOUT_S)
        times, cached = answer.get("token_times_s"), answer.get("num_cached_tokens")
        return Served(
            seconds=answer["seconds"],
            output_ids=tuple(map(tuple, answer["output_ids"])),
            token_times_s=None if times is None else tuple(map(tuple, times)),
            num_cached_tokens=None if cached is None else tuple(cached),
        )

    def reset(self) -> None:
        """Nothing is cached afterwards. Raises PeerError when the engine refuses."""
        self.ask({"do": "reset"}, SERVE_TIMEOUT_S)
