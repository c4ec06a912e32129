"""ServeRun: `labcli serve`, from its settings to its last line."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Iterator, Mapping

from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError
from engine.server.options import FLAVORS, ServerOptions
from labcli.fault import Interrupted, UsageFault
from labs.servers.server_address import is_server_url

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine
    from engine.server.run_server import Shutdown

API_KEY_VARIABLE = "LABCLI_API_KEY"
_TARGETS = ("engine", "sim")
_CACHE_OF_FLAVOR = {"vllm": "hash", "sglang": "radix"}
_CACHE_OF_FIELD = {
    "block_size": "hash",
    "prefix_caching_hash_algo": "hash",
    "page_size": "radix",
    "radix_eviction_policy": "radix",
}
# What is asked of a cache, and so not where caching is off. Sizes are not: the pool is divided by them all the same; nor is
# --speculative: a server without a cache may have a drafter.
_OF_A_CACHE = ("prefix_cache", "prefix_caching_hash_algo", "radix_eviction_policy")
_LOOPBACK = ("127.", "::1", "localhost")
# Options of other names than the fields they fill.
_OPTION_OF_FIELD = {
    "model_name": "--served-model-name",
    "request_timeout_s": "--request-timeout",
    "drain_s": "--drain",
    "use_eagle": "--speculative",
    "enable_prefix_caching": "--prefix-caching",
    "api_key": API_KEY_VARIABLE,
}


@contextmanager
def options_named() -> Iterator[None]:
    """Inside, a ConfigError names the option that was typed, not the field it fills."""
    try:
        yield
    except ConfigError as error:
        option = _OPTION_OF_FIELD.get(error.field, "--" + error.field.replace("_", "-"))
        raise ConfigError(option, error.value, error.accepted) from None


def check_meaning(target: str, *, engine_only: Mapping[str, Any], sim_only: Mapping[str, Any]) -> None:
    """Raises UsageFault for an option that the target would ignore: it must not look like a condition of the run."""
    if target not in _TARGETS:
        shown = "an address" if is_server_url(target) else repr(target)  # which may hold a password
        raise UsageFault(f"--target is {shown}", ", ".join(_TARGETS))
    other = "sim" if target == "engine" else "engine"
    for option, value in (sim_only if target == "engine" else engine_only).items():
        if value is not None:
            raise UsageFault(f"{option} means nothing with --target {target}", f"{option} with --target {other}")


def engine_fields(target: str, flavor: str, prefix_cache: str | None, **typed: Any) -> EngineConfig:
    """The engine's configuration; what was not typed is the flavor's or the engine's own. Raises ConfigError, UsageFault."""
    from labs.targets.open_target import SIM_MODEL

    if flavor not in FLAVORS:
        raise ConfigError("flavor", flavor, ", ".join(FLAVORS))
    cache = prefix_cache or _CACHE_OF_FLAVOR[flavor]
    _check_cache_options(cache, {**typed, "prefix_cache": prefix_cache})
    given = {name: value for name, value in typed.items() if value is not None}
    if target == "sim":
        given.setdefault("model", SIM_MODEL)  # a shape the cost model knows; no weights are needed
    return EngineConfig(prefix_cache=cache, **given)


def _check_cache_options(cache: str, typed: Mapping[str, Any]) -> None:
    """Raises UsageFault for an option that another cache has, or that asks for something of a cache that is off."""
    for field, owner in _CACHE_OF_FIELD.items():
        if typed[field] is not None and cache in _CACHE_OF_FLAVOR.values() and cache != owner:
            name = "--" + field.replace("_", "-")
            raise UsageFault(f"{name} means nothing with the {cache} cache", f"{name} with --prefix-cache {owner}")
    for field in () if typed["enable_prefix_caching"] else _OF_A_CACHE:
        if typed[field] is not None:
            name = "--" + field.replace("_", "-")
            raise UsageFault(f"{name} means nothing with --no-prefix-caching", f"{name} with --prefix-caching")


def server_options(**chosen: Any) -> ServerOptions:
    """The server's options, with the key from the environment. Raises ConfigError."""
    import labcli

    key = os.environ.get(API_KEY_VARIABLE) or None
    return ServerOptions(api_key=key, software=f"labcli/{labcli.__version__.partition(' ')[0]}", **chosen)


@dataclass(frozen=True)
class ServeRun:
    """One server: opened, served until it is told to end, closed."""

    target: str
    config: EngineConfig
    options: ServerOptions
    gpu: str | None
    pace: float
    cache_dir: str | None

    def execute(self) -> int:
        """Exit code 0 after an end that was asked for.

        Raises Interrupted after a second Ctrl-C, and EngineError when the engine ended by itself.
        """
        from engine.server.run_server import bind

        with bind(self.options) as listener:  # a port that is taken should not cost the loading of a model
            options = replace(self.options, port=listener.getsockname()[1])
            engine = self._open_engine()
            shutdown = self._serve(engine, options, listener)
        running = shutdown.num_finished + shutdown.num_aborted
        if shutdown.died_of is not None:
            raise EngineError(f"the engine ended by itself ({shutdown.died_of}), and the server with it; start it again")
        if shutdown.is_forced:
            raise Interrupted("ended at once")
        told = (
            f"; of {running} running requests {shutdown.num_finished} finished, {shutdown.num_aborted} aborted" if running else ""
        )
        print(f"labcli: stopped{told}", flush=True)
        return 0

    def _open_engine(self) -> LLMEngine:
        from engine.server.open_engine import open_engine
        from labcli.held_interrupts import held_interrupts
        from labcli.progress_bar import ProgressBar
        from labs.targets.open_target import SIM_GPU, import_model_packages

        if self.target == "engine":
            from engine.model.model_source import find_model

            find_model(self.config.model)  # a wrong name is reported before anything is loaded
            with held_interrupts():
                import_model_packages()
        with ProgressBar() as bar:
            gpu = (self.gpu or SIM_GPU) if self.target == "sim" else None
            return open_engine(self.config, self.target, gpu=gpu, pace=self.pace, cache_dir=self.cache_dir, on_load=bar.loading)

    def _serve(self, engine: LLMEngine, options: ServerOptions, listener: Any) -> Shutdown:
        from engine.server.app import build_app
        from engine.server.engine_loop import EngineLoop
        from engine.server.metrics.prometheus import open_metrics
        from engine.server.run_server import run_server

        metrics = open_metrics(options, engine) if options.metrics_endpoint else None
        loop = EngineLoop(engine, metrics, max_waiting=options.max_waiting)
        assert engine.tokenizer is not None
        app = build_app(loop, options, engine.tokenizer, metrics)
        return run_server(app, loop, options, listener, lambda: self._announce(engine, options))

    def _announce(self, engine: LLMEngine, options: ServerOptions) -> None:
        config = self.config
        unit = "page" if config.prefix_cache == "radix" else "block"
        cache = f"{config.prefix_cache} cache" if config.enable_prefix_caching else "no prefix cache"
        pool = f"{unit} {config.unit_size}, {engine.manager.pool.num_usable:,} {unit}s"
        what = f"{options.model_name} ({self.target}, {options.flavor} flavor, {cache}, {pool})"
        host = f"[{options.host}]" if ":" in options.host else options.host
        print(f"labcli: serving {what} on http://{host}:{options.port}", flush=True)
        if not options.host.startswith(_LOOPBACK):
            key = "with the key" if options.api_key else f"without a key ({API_KEY_VARIABLE} is not set)"
            warning = (
                f"other machines that reach {options.host} can use this server {key}, over any number of connections, so"
                " put a proxy in front of it where you do not know them"
            )
            print(f"labcli: warning: {warning}", file=sys.stderr, flush=True)
