"""ServerRun: how a run uses a server: where it is, and what it may ask of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.errors import ConfigError
from labs.servers.server_address import ServerAddress
from labs.servers.server_client import SendLimits

ISOLATIONS = ("auto", "reset", "rename")
MAX_CONCURRENCY = 256


@dataclass(frozen=True)
class ServerRun:
    """Raises ConfigError for a value outside what each field accepts."""

    address: ServerAddress
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None  # the name a server lists; None: its first
    limits: SendLimits = SendLimits()
    concurrency: int = 64  # requests at once, where a lab sends many
    rate: float | None = None  # requests started per second; None: as fast as they come
    isolation: str = "auto"  # "reset": empty the cache between phases; "rename": send other ids; "auto": what the server can

    def __post_init__(self) -> None:
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable() and self.api_key.strip()):
            raise ConfigError("api_key", "not shown", "printable ASCII characters")
        if self.model is not None and not (isinstance(self.model, str) and self.model):
            raise ConfigError("model", self.model, "a name that the server lists")
        if (
            isinstance(self.concurrency, bool)
            or not isinstance(self.concurrency, int)
            or not 1 <= self.concurrency <= MAX_CONCURRENCY
        ):
            raise ConfigError("concurrency", self.concurrency, f"a whole number from 1 to {MAX_CONCURRENCY}")
        if self.rate is not None and (
            isinstance(self.rate, bool) or not isinstance(self.rate, (int, float)) or not 0 < self.rate < 1e6
        ):
            raise ConfigError("rate", self.rate, "requests per second, more than 0")
        for name in ("timeout_s", "max_requests", "max_seconds"):
            value = getattr(self.limits, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
                raise ConfigError(name, value, "more than 0")
        if self.isolation not in ISOLATIONS:
            raise ConfigError("isolation", self.isolation, ", ".join(ISOLATIONS))
