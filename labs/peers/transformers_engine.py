"""TransformersEngine: transformers' own generation in a process of its own, as a TimedEngine.

    generate         what most people run: one prompt after another, K/V kept only while a prompt is served
    generate_batch   transformers' continuous batching: all prompts together over paged K/V, which is empty at the
                     start of each call; prompts of one call share the blocks of a common prefix

Neither keeps anything from one call to the next. Both run in the Python that runs us, in another process so that
threads and memory are theirs alone.
"""

from __future__ import annotations

from pathlib import Path

from labs.peers.engine_worker import EngineWorker
from labs.benches.timed_engine import EngineSettings

_WORKER = Path(__file__).with_name("transformers_engine_worker.py")
METHODS = ("generate", "generate_batch")


class TransformersEngine(EngineWorker):
    """A transformers model that is ready to serve. Use as a context manager, which ends it.

    Its token times are None for generate, which returns a prompt's tokens together, and for a generate_batch whose pool
    was so small that it took blocks away from a request; cached tokens are None: neither method tells.
    """

    def __init__(self, settings: EngineSettings, method: str = "generate") -> None:
        """Start a process and load the model, which takes seconds.

        settings   generate needs only the model, dtype and threads; generate_batch also keeps to the sizes of the
                   pool and of a step, which it makes smaller for few prompts, and shares blocks if
                   enable_prefix_caching. Nobody looks at max_model_len, and nothing is compiled
        method     one of METHODS

        Raises ValueError for another method, PeerUnavailable without transformers, and PeerError when the model
        cannot be loaded.
        """
        if method not in METHODS:
            raise ValueError(f"method {method!r}; accepted: {', '.join(METHODS)}")
        self.name = f"transformers {method}"
        accepted = "a Python that has torch and transformers"
        super().__init__(_WORKER, "transformers", None, accepted, {}, settings, method=method)
