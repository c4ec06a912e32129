"""open_peer: a peer's engine by the name a person types."""

from __future__ import annotations

from typing import Callable

from labs.peers.transformers_engine import TransformersEngine
from labs.peers.vllm_engine import VllmEngine
from labs.benches.timed_engine import EngineSettings

PEERS = ("vllm", "transformers", "transformers-batch")


def open_peer(
    name: str,
    settings: EngineSettings,
    vllm_python: str | None = None,
    on_load: Callable[[str, int, int], None] | None = None,
) -> VllmEngine | TransformersEngine:
    """A running peer, one of PEERS; a context manager, which ends it. Raises PeerError when it does not start.

    vllm_python   an interpreter that has vLLM; None: this one
    on_load       told that it starts, and that it has started
    """
    if on_load is not None:
        on_load(f"starting {name}", 0, 1)
    if name == "vllm":
        peer: VllmEngine | TransformersEngine = VllmEngine(settings, vllm_python)
    else:
        peer = TransformersEngine(settings, "generate_batch" if name == "transformers-batch" else "generate")
    if on_load is not None:
        on_load(f"starting {name}", 1, 1)
    return peer
