"""From a target's name to something that opens it: "engine", "sim", or a server's URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from engine.config import EngineConfig
from engine.errors import ConfigError
from labs.servers.server_address import ServerAddress, is_server_url
from labs.targets.base import OpenTarget, Target
from labs.targets.in_process import InProcessTarget

if TYPE_CHECKING:
    from labs.servers.server_run import ServerRun

TARGETS = ("engine", "sim")
SIM_MODEL = "llama-3-8b"
SIM_GPU = "H100 SXM"

LoadProgress = Callable[[str, int, int], None]


def open_target_factory(
    target: str,
    config: EngineConfig,
    *,
    gpu: str | None = None,
    cache_dir: str | None = None,
    progress: LoadProgress | None = None,
    server: ServerRun | None = None,
) -> OpenTarget:
    """What a lab calls to open its target.

    target     "engine" (a real model in this process), "sim" (the same scheduler and caches, simulated time), or a URL
    config     settings a lab does not choose itself: model, dtype, device, seed
    gpu        for "sim": whose speed is simulated
    cache_dir  where converted models are kept
    progress   told about the progress of loading a model
    server     how a server is used; its address wins over the URL

    Raises TargetUnavailable for a server on which labs cannot run, ConfigError for any other name.
    """
    if server is not None or is_server_url(target):
        from labs.servers.server_run import ServerRun
        from labs.targets.open_server import OpenServer

        return OpenServer(server or ServerRun(ServerAddress.of(target)))
    if target == "sim":
        return _OpenSimulated(config, gpu or SIM_GPU)
    if target == "engine":
        return _OpenEngine(config, cache_dir, progress)
    raise ConfigError("target", target, f"{', '.join(TARGETS)} or a server's URL")


def import_model_packages() -> None:
    """Import what a real model needs, all at once: seconds, during which an interruption would leave half of it."""
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, LlamaForCausalLM  # noqa: F401

    import engine.model.model_runner  # noqa: F401


class _OpenEngine:
    """Opens engines over a real model, loaded at the first call that needs it and shared by all others."""

    kind = "engine"
    served = None  # a lab chooses its caches
    isolation = None

    def __init__(self, config: EngineConfig, cache_dir: str | None, progress: LoadProgress | None) -> None:
        from engine.model.model_source import find_model

        self._config, self._cache_dir, self._progress = config, cache_dir, progress
        self._loaded: dict[tuple[str, str, str, int], Any] = {}
        find_model(config.model)  # a wrong name is reported before anything is loaded

    def __call__(self, **engine_fields: Any) -> Target:
        # Checked before the model is loaded: a wrong field should not cost half a minute.
        config = self._config.replace(**engine_fields)

        from engine.llm_engine import LLMEngine
        from engine.model.loader import load_model
        from engine.model.model_runner import ModelRunner

        key = (config.model, config.dtype, config.device, config.seed)
        if key not in self._loaded:
            # The limits of one engine must not stick to the model that others share.
            self._loaded[key] = load_model(config.replace(max_model_len=self._config.max_model_len), self._cache_dir, self._progress)
        loaded = self._loaded[key]
        engine = LLMEngine(config, ModelRunner(loaded, config), loaded.tokenizer)
        dtype, device = str(loaded.dtype).removeprefix("torch."), str(loaded.device)
        return InProcessTarget(engine, self.kind, config.model, dtype, device)

    def notes(self) -> tuple[str, ...]:
        return ()


class _OpenSimulated:
    """Opens engines over the simulated runner: no model, no torch, no tokenizer."""

    kind = "sim"
    served = None  # a lab chooses its caches
    isolation = None

    def __init__(self, config: EngineConfig, gpu: str) -> None:
        from engine.model.simulated_runner import SimulatedRunner

        self._config, self._gpu = config, gpu
        SimulatedRunner(model=config.model, gpu=gpu)  # a wrong name is reported before the lab starts

    def __call__(self, **engine_fields: Any) -> Target:
        from engine.llm_engine import LLMEngine
        from engine.model.simulated_runner import SimulatedRunner

        config = self._config.replace(**engine_fields)
        engine = LLMEngine(config, SimulatedRunner(model=config.model, gpu=self._gpu))
        return InProcessTarget(engine, self.kind, config.model, "bfloat16", f"simulated {self._gpu}")

    def notes(self) -> tuple[str, ...]:
        return ()
