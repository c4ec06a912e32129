"""ServerAddress: the URL a person typed, split into what is sent and what may be shown.

    http://user:secret@host:8000/v1?key=…   →   base http://host:8000, shown http://host:8000
    http://host:8000/v1/completions         →   base http://host:8000, as an address that was copied from a request
    http://user:sec/ret@host                →   AddressError: there the host would end before the password does

A password in the address goes to the server alone; what stands behind `?` is dropped: paths are our own. Of an address that
cannot be used nothing is shown but its scheme and, where only that is missing, its host: any other part may be a password in a
wrong place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from labs.targets.base import TargetUnavailable

SCHEMES = ("http", "https")
# What an address may end with that is a path of our own; the longest first.
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1", "/generate", "/metrics")
_ACCEPTED = "http://HOST:PORT or https://HOST"
_NO_PORT = 0  # what no server listens on stands for what is no port
_HOST_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.?")


class AddressError(TargetUnavailable):
    """What was typed is no server's address; nothing was sent."""


def is_server_url(target: str) -> bool:
    """Whether a target's name is meant as an address, if a wrong one: "localhost:8000" has no scheme."""
    return any(sign in target for sign in ":/.@?#")


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
        """Raises AddressError, without showing a password, for what is no http address."""
        url = url.strip()
        try:
            url.encode("utf-8")  # bytes that a shell handed over as they were are no text
            # Without "//" all before the port would be taken for the scheme.
            parts = urlsplit(url if "://" in url else f"//{url}")
        except ValueError:
            raise AddressError(f"the address cannot be read; accepted: {_ACCEPTED}") from None
        host, port = parts.hostname or "", _port(parts)
        is_host = ":" in host or _HOST_NAME.fullmatch(host)  # with a colon it stood in brackets: IPv6, checked above
        is_torn = "@" in parts.path + parts.query + parts.fragment  # a / ? or # in a login ends the host too early
        if "://" not in url:
            meant = is_host and host not in SCHEMES and port != _NO_PORT and not is_torn
            shown = _base("http", host, port, "") if meant else _ACCEPTED
            raise AddressError(f"the address has no scheme; accepted: {shown}")
        scheme = parts.scheme.lower()
        if scheme not in SCHEMES:
            shown = scheme if scheme.isalnum() else "?"
            raise AddressError(f"no server can be reached by an address that begins {shown}://; accepted: {_ACCEPTED}")
        if not is_host:
            what = "the host in the address is no name and no IP address" if host else "the address has no host"
            raise AddressError(f"{what}; accepted: {_ACCEPTED}")
        if port == _NO_PORT:
            what = "the port in the address is no number from 1 to 65535"
            raise AddressError(f"{what}; accepted: {_ACCEPTED}, an IPv6 address in [ ]")
        if is_torn:
            what = "an @ stands behind the host in the address: in a login / ? # are written %2F %3F %23"
            raise AddressError(f"{what}; accepted: {_ACCEPTED}")
        path = parts.path.rstrip("/")
        path = path.removesuffix(next((end for end in ENDPOINTS if path.endswith(end)), "")).rstrip("/")
        login = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
        return cls(_base(scheme, host, port, path), login)


def _port(parts: SplitResult) -> int | None:
    """The port; _NO_PORT for what is none, None where none is said."""
    try:
        return parts.port
    except ValueError:
        return _NO_PORT


def _base(scheme: str, host: str, port: int | None, path: str) -> str:
    shown_host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown_host}{'' if port is None else f':{port}'}{path}"
