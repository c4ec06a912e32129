"""open_engine: the engine a server serves, with a real model or a simulated one that takes its time."""

from __future__ import annotations

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.llm_engine import LLMEngine, LoadProgress

TARGETS = ("engine", "sim")


def open_engine(
    config: EngineConfig,
    target: str,
    *,
    gpu: str | None = None,
    pace: float = 1.0,
    cache_dir: str | None = None,
    on_load: LoadProgress | None = None,
) -> LLMEngine:
    """An engine with a tokenizer, ready to take requests.

    target     "engine": config.model, loaded; "sim": the model's cost on a GPU, in real time, without torch
    gpu        for "sim": whose speed is simulated; None: the simulated runner's own choice
    pace       for "sim": real seconds per simulated second; 0: no waiting
    cache_dir  where converted models are kept; None: the user's cache folder
    on_load    told about the progress of loading a model

    Raises ConfigError, ModelNotFound or ModelNotSupported, naming what is accepted.
    """
    if target == "engine":
        return LLMEngine(config, cache_dir=cache_dir, on_load=on_load)
    if target != "sim":
        raise ConfigError("target", target, ", ".join(TARGETS))
    from engine.model.simulated_runner import SimulatedRunner
    from engine.server.paced_runner import PacedRunner
    from engine.server.sim_text import SimText

    runner = SimulatedRunner(config.model) if gpu is None else SimulatedRunner(config.model, gpu)
    text = SimText(runner.vocab_size)
    return LLMEngine(config, PacedRunner(runner, pace, text.eos_token_ids), text)
