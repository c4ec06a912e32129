"""What a connection tells beside its replies: whether a port speaks TLS, what is wrong with it, where a redirect leads."""

from __future__ import annotations

import socket
import ssl
from typing import Iterable
from urllib.parse import unquote, urlsplit

from labs.servers.server_words import cleaned

MAX_WAIT_S = 3.0  # for a handshake
MAX_PLACE = 120  # characters of a redirect's place


def speaks_tls(base: str) -> bool:
    """Whether an http:// address answers a TLS handshake, be it with an alert that refuses this client.

    Whose certificate it is does not matter: nothing else is sent.
    """
    parts = urlsplit(base)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((parts.hostname, parts.port or 80), MAX_WAIT_S) as connection:
            with context.wrap_socket(connection, server_hostname=parts.hostname):
                return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except (OSError, ValueError):
        return False


def redirect_place(location: str, secrets: Iterable[str]) -> str:
    """Scheme, host and path of a redirect, for messages; its query, which may hold a token, and a login are left out.

    The path too where it quotes what was sent. Empty where nothing can be shown.
    """
    try:
        parts = urlsplit(location)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return ""
    secrets, path = list(secrets), unquote(parts.path)
    host = f"[{host}]" if ":" in host else host
    where = f"{parts.scheme}://{host}{'' if port is None else f':{port}'}" if host and parts.scheme else host
    for place in (where + path, where):
        if len(place) <= MAX_PLACE and place.isprintable() and cleaned(place, secrets) == place:
            return place
    return ""


def tls_trouble(told: str) -> str:
    """What is wrong with TLS there, and what is accepted, from OpenSSL's words."""
    if "CERTIFICATE_VERIFY" not in told:
        return "does not speak TLS; accepted: the scheme, http or https, that it serves"
    if "mismatch" in told:
        return "shows a certificate of another name; accepted: the name that it serves"
    if "expired" in told:
        return "shows a certificate that has expired; accepted: one that is valid today"
    return (
        "shows a certificate that nothing here vouches for; accepted: a known authority's, or this one's file (PEM) in the "
        "environment variable SSL_CERT_FILE"
    )
