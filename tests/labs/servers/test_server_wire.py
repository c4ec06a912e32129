"""What a redirect may show, what TLS's own words mean, and whether a port speaks it."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager

import pytest

from labs.servers.server_wire import redirect_place, speaks_tls, tls_trouble

ALERT = bytes((0x15, 3, 3, 0, 2, 2, 40))  # TLS's refusal of a handshake


@contextmanager
def answering(reply: bytes):
    """The address of a port that answers the first connection with these bytes and hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run():
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(reply)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        thread.join(10)
        listener.close()


@pytest.mark.parametrize("reply, speaks", [(ALERT, True), (b"HTTP/1.0 400 Bad Request\r\n\r\n", False), (b"", False)])
def test_a_port_that_refuses_a_handshake_in_tls_speaks_tls(reply, speaks):
    with answering(reply) as base:
        assert speaks_tls(base) is speaks


@pytest.mark.parametrize(
    "location, place",
    [
        ("https://me:pass@login.example:8443/start?token=abc#at", "https://login.example:8443/start"),
        ("/v1/models/?key=abc", "/v1/models/"),
        ("https://host/sign-in/hunter2/back", "https://host"),
        ("https://host/%68unter2", "https://host"),
        ("https://hunter2.example/", ""),
        ("https://host/" + "long" * 90, "https://host"),
        ("https://[::1]:80/a", "https://[::1]:80/a"),
        ("https://host:port/", ""),
        ("", ""),
    ],
)
def test_a_redirect_is_told_by_host_and_path_and_nothing_secret(location, place):
    assert redirect_place(location, iter(["hunter2"])) == place


@pytest.mark.parametrize(
    "told, words",
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)", "SSL_CERT_FILE"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] Hostname mismatch, certificate is not valid for 'a'.", "certificate of another name"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired", "has expired"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "does not speak TLS"),
    ],
)
def test_trouble_with_tls_names_what_would_help(told, words):
    assert words in tls_trouble(told) and "; accepted: " in tls_trouble(told)
