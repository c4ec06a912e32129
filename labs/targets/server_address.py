"""ServerAddress: the URL a person typed, split into what is sent and what may be shown.

    http://user:secret@host:8000/v1?key=…   →   base http://host:8000, shown http://host:8000

A password in the address goes to the server alone; what stands behind `?` is dropped: paths are our own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from labs.targets.base import TargetUnavailable

SCHEMES = ("http", "https")


def is_server_url(target: str) -> bool:
    """Whether a target's name is meant as an address."""
    return "://" in target


@dataclass(frozen=True)
class ServerAddress:
    """Where a server answers."""

    base: str  # scheme, host, port and any path before /v1; holds no password
    login: tuple[str, str] | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """For messages and records."""
        return self.base

    @classmethod
    def of(cls, url: str) -> ServerAddress:
        """Raises TargetUnavailable, without showing a password, for what is no http address."""
        accepted = "http://HOST:PORT or https://HOST"
        try:
            url.encode("utf-8")  # bytes that a shell handed over as they were are no text
            parts = urlsplit(url.strip())
            host, port = parts.hostname, parts.port
        except ValueError:
            raise TargetUnavailable(f"the address cannot be read; accepted: {accepted}") from None
        if parts.scheme.lower() not in SCHEMES or not host or any(character.isspace() for character in host):
            scheme = parts.scheme if parts.scheme.isalnum() else "?"
            raise TargetUnavailable(f"no server can be reached by an address that begins {scheme}://; accepted: {accepted}")
        shown_host = f"[{host}]" if ":" in host else host
        path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        base = f"{parts.scheme.lower()}://{shown_host}{'' if port is None else f':{port}'}{path}"
        login = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
        return cls(base, login)
