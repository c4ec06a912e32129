"""OwnEngine: our engine in this process, as a TimedEngine."""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version
from typing import Sequence

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.llm_engine import LLMEngine, LoadProgress
from engine.request import SamplingParams
from labs.benches.timed_engine import EngineSettings, Served, TokenIds


class OwnEngine:
    """An LLMEngine with a real model, ready to serve.

    name      "labcli"
    version   of this package
    start_s   seconds from nothing to ready: import of torch, load, compile
    """

    name = "labcli"

    def __init__(
        self,
        config: EngineConfig,
        num_threads: int | None = None,
        *,
        cache_dir: str | None = None,
        on_load: LoadProgress | None = None,
    ) -> None:
        """num_threads: of torch on the CPU; None leaves them as they are. Raises what LLMEngine raises."""
        begin_s = time.perf_counter()
        if num_threads is not None:
            import torch

            torch.set_num_threads(num_threads)
        self.version = _version()
        self.engine = LLMEngine(config, cache_dir=cache_dir, on_load=on_load)
        self.start_s = time.perf_counter() - begin_s

    @property
    def computes_with(self) -> str:
        """What runs the layers, in words: a compiler's kernels or torch's operations, and on what."""
        from engine.model.loader import LoadedModel

        loaded: LoadedModel = self.engine.runner.loaded  # type: ignore[attr-defined]
        kernels = "compiled kernels" if loaded.step_kernels is not None else "torch's operations"
        return f"{type(loaded.body).__name__}, {kernels}, {loaded.device}"

    @property
    def build_s(self) -> float:
        """Seconds of `start_s` in which kernels were compiled, once for this machine."""
        kernels = self.engine.runner.loaded.kernels  # type: ignore[attr-defined]
        return 0.0 if kernels is None else kernels.build_s

    def serve(self, prompts: Sequence[TokenIds], num_outputs: int) -> Served:
        """All prompts at once, greedy, exactly num_outputs tokens each, an end-of-text token being one like any other."""
        engine = self.engine
        params = SamplingParams(temperature=0.0, max_tokens=num_outputs, ignore_eos=True)
        begin_s = engine.runner.now()
        numbers = {engine.add_request(prompt, params): number for number, prompt in enumerate(prompts)}
        finished = {}
        try:
            while engine.has_unfinished_requests:
                for output in engine.step():
                    if output.finished:
                        finished[numbers[output.request_id]] = output
        finally:
            for request_id in numbers:
                engine.abort_request(request_id)
        outputs = [finished[number] for number in range(len(prompts))]
        times = tuple(tuple(at - begin_s for at in output.metrics.token_times_s) for output in outputs)
        return Served(
            seconds=max(own[-1] for own in times),
            output_ids=tuple(tuple(output.output_token_ids) for output in outputs),
            token_times_s=times,
            num_cached_tokens=tuple(output.num_cached_tokens for output in outputs),
        )

    def reset(self) -> None:
        """Nothing is cached afterwards."""
        assert self.engine.reset_prefix_cache(), "nothing runs between two calls of serve"


def _version() -> str:
    try:
        return version("labcli")
    except PackageNotFoundError:
        return "unknown"  # run from a checkout that is not installed


def model_folder(model: str, cache_dir: str | None = None, on_load: LoadProgress | None = None) -> str:
    """The folder from which a peer loads the same model. Raises ConfigError for one that has no files."""
    from engine.model.model_cache import converted_folder
    from engine.model.model_source import find_model

    source = find_model(model)
    folder = source.folder if source.gguf_path is None else converted_folder(source.gguf_path, cache_dir, on_load)
    if folder is None:
        raise ConfigError("model", model, "a model with files beside a peer: smollm2, a folder or a hub id")
    return str(folder)


def settings_of(config: EngineConfig, own: OwnEngine, num_threads: int, folder: str) -> EngineSettings:
    """What a peer needs to serve the model in `folder` as ours serves it."""
    engine = own.engine
    return EngineSettings(
        model_folder=folder,
        dtype=str(engine.runner.loaded.dtype).removeprefix("torch."),  # type: ignore[attr-defined]
        num_threads=num_threads,
        block_size=config.block_size,
        # Of the same number of tokens: our blocks may be pages of another size.
        num_blocks=-(-engine.manager.pool.num_usable * engine.config.unit_size // config.block_size) + 1,
        max_model_len=engine.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_prefix_caching=config.enable_prefix_caching,
        compile=bool(config.compile),
    )
