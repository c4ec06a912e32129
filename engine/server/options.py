"""ServerOptions: what a server shows and how much it takes, checked when built."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.errors import ConfigError

FLAVORS = ("vllm", "sglang")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class ServerOptions:
    """Raises ConfigError for a value outside what each field accepts."""

    flavor: str = "vllm"  # whose names, endpoints and answers
    model_name: str = "smollm2"  # what /v1/models lists and requests name
    software: str = "labcli/0"  # the Server header of each reply: how ours is told from a real one
    host: str = LOOPBACK  # 0.0.0.0 lets everybody in who reaches this machine
    port: int = 8000  # 0: any free one
    api_key: str | None = field(default=None, repr=False)  # asked of all but /health; never in a log or an error
    cache_report: bool = True  # usage.prompt_tokens_details.cached_tokens; else null, as without the real servers' flag
    reset_endpoint: bool = True  # vLLM has /reset_prefix_cache in its dev mode only; SGLang always has /flush_cache
    metrics_endpoint: bool = True  # SGLang has /metrics with --enable-metrics only
    max_waiting: int = 512  # requests queued beyond those that run: more get 503 at once
    max_body_bytes: int = 4 * 2**20  # reading the text of a longer one would keep all others waiting for a second
    max_held_bytes: int = 64 * 2**20  # of all bodies at once: what would be more gets 503
    request_timeout_s: float = 600.0  # from arrival to the last token; then aborted, 504
    headers_timeout_s: float = 30.0  # for a client that connects and sends nothing, or its headers slowly
    body_timeout_s: float = 30.0  # for a client that sends its body slowly
    drain_s: float = 10.0  # at shutdown: how long running requests may still take before they are aborted; 0: not at all

    def __post_init__(self) -> None:
        if self.flavor not in FLAVORS:
            raise ConfigError("flavor", self.flavor, ", ".join(FLAVORS))
        for name in ("model_name", "software", "host"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ConfigError(name, getattr(self, name), "a non-empty text")
        _check_whole("port", self.port, 0, 65_535)
        _check_whole("max_waiting", self.max_waiting, 0)
        _check_whole("max_body_bytes", self.max_body_bytes, 1_024)
        _check_whole("max_held_bytes", self.max_held_bytes, 1_024)
        _check_seconds("request_timeout_s", self.request_timeout_s)
        _check_seconds("headers_timeout_s", self.headers_timeout_s)
        _check_seconds("body_timeout_s", self.body_timeout_s)
        _check_seconds("drain_s", self.drain_s, may_be_0=True)
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable() and self.api_key.strip()):
            raise ConfigError("api_key", "not shown", "printable ASCII characters")


def _check_whole(field_name: str, value: object, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise ConfigError(field_name, value, f"a whole number from {low}" + (f" to {high}" if high is not None else ""))


def _check_seconds(field_name: str, value: object, may_be_0: bool = False) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1e7 or (value == 0 and not may_be_0):  # type: ignore[operator]
        raise ConfigError(field_name, value, "seconds, 0 or more" if may_be_0 else "seconds, more than 0")
