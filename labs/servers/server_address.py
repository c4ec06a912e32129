"""ServerAddress: the URL a person typed, split into what is sent and what may be shown.

    http://user:secret@host:8000/v1?key=…   →   base http://host:8000, shown http://host:8000
    http://host:8000/v1/completions         →   base http://host:8000, as an address that was copied from a request

A password in the address goes to the server alone; what stands behind `?` is dropped: paths are our own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from labs.targets.base import TargetUnavailable

SCHEMES = ("http", "https")
# What an address may end with that is a path of our own; the longest first.
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1", "/generate", "/metrics")


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
            # Without "//" all before the port would be taken for the scheme.
            parts = urlsplit(url.strip() if is_server_url(url) else f"//{url.strip()}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise TargetUnavailable(f"the address cannot be read; accepted: {accepted}") from None
        if not is_server_url(url):
            is_host = host and re.fullmatch(r"[\w.-]+", host) and host not in SCHEMES
            meant = f"http://{host}{'' if port is None else f':{port}'}" if is_host else accepted
            raise TargetUnavailable(f"the address has no scheme; accepted: {meant}")
        if parts.scheme.lower() not in SCHEMES or not host or any(character.isspace() for character in host):
            scheme = parts.scheme if parts.scheme.isalnum() else "?"
            raise TargetUnavailable(f"no server can be reached by an address that begins {scheme}://; accepted: {accepted}")
        shown_host = f"[{host}]" if ":" in host else host
        path = parts.path.rstrip("/")
        path = path.removesuffix(next((end for end in ENDPOINTS if path.endswith(end)), "")).rstrip("/")
        base = f"{parts.scheme.lower()}://{shown_host}{'' if port is None else f':{port}'}{path}"
        login = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
        return cls(base, login)
