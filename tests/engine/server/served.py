"""A server of the simulated engine, on a free loopback port, for tests of whatever talks to servers.

    with served(flavor="sglang", page_size=16, num_gpu_blocks=64) as url:
        httpx.post(f"{url}/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 1})

Fields of ServerOptions and of EngineConfig mix; the cache follows the flavor (vllm: hash, block 16; sglang: radix, page 1)
unless said. `pace` is real seconds per simulated second, 0 by default: no waiting. `serving(...)` gives the whole server, with
`url`, `loop` (EngineLoop: `num_unfinished`, `engine`) and `server` (`should_exit`). With `engine=` it serves one of your own.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Callable, Iterator

from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.server.app import build_app
from engine.server.engine_loop import EngineLoop
from engine.server.metrics.prometheus import ServerMetrics, open_metrics
from engine.server.open_engine import open_engine
from engine.server.options import ServerOptions
from engine.server.run_server import DrainingServer, bind

SIM_MODEL = "smollm2-135m"
_OPTION_NAMES = {field.name for field in fields(ServerOptions)}


@dataclass
class Serving:
    """A running server and what is inside."""

    url: str
    options: ServerOptions
    loop: EngineLoop
    server: DrainingServer
    metrics: ServerMetrics
    thread: threading.Thread


@contextmanager
def served(**chosen: Any) -> Iterator[str]:
    """The base URL of a server that runs inside."""
    with serving(**chosen) as running:
        yield running.url


@contextmanager
def serving(*, pace: float = 0.0, engine: LLMEngine | None = None, **chosen: Any) -> Iterator[Serving]:
    """A server that runs inside; on leaving it ends as Ctrl-C ends one."""
    options = {name: chosen.pop(name) for name in list(chosen) if name in _OPTION_NAMES}
    options = {"port": 0, "software": "labcli/test", "drain_s": 0.1, "model_name": "sim", **options}
    chosen.setdefault("prefix_cache", "radix" if options.get("flavor") == "sglang" else "hash")
    if engine is None:
        engine = open_engine(EngineConfig(**{"model": SIM_MODEL, **chosen}), "sim", pace=pace)
    listener = bind(ServerOptions(**options))
    options = ServerOptions(**{**options, "port": listener.getsockname()[1]})
    metrics = open_metrics(options, engine)
    loop = EngineLoop(engine, metrics, max_waiting=options.max_waiting)
    ready = threading.Event()
    server = DrainingServer(build_app(loop, options, engine.tokenizer, metrics), loop, options, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server")
    previous = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    thread.start()
    try:
        assert ready.wait(10), "the server did not start"
        yield Serving(f"http://127.0.0.1:{options.port}", options, loop, server, metrics, thread)
    finally:
        server.should_exit = True
        thread.join(20)
        sys.setswitchinterval(previous)
        assert not thread.is_alive(), "the server did not end"


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for something to become true."""
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.01)


if __name__ == "__main__":
    with served() as url:
        print(url)
        time.sleep(3600)
