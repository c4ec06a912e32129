"""An address is split into what is sent and what may be shown."""

from __future__ import annotations

import pytest

from labs.servers.server_address import ServerAddress, is_server_url
from labs.targets.base import TargetUnavailable


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("HTTP://localhost:8000/v1/", "http://localhost:8000"),
        ("https://gate.example/models/a/v1", "https://gate.example/models/a"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://host?key=secret#secret", "http://host"),
        ("http://host:8000/v1/completions", "http://host:8000"),
        ("http://host:8000/v1/chat/completions/", "http://host:8000"),
        ("https://gate.example/team/v1/models", "https://gate.example/team"),
        ("http://host:30000/generate", "http://host:30000"),
        ("https://gate.example/models", "https://gate.example/models"),
    ],
)
def test_the_base_is_what_stands_before_our_own_paths(url, base):
    assert ServerAddress.of(url).base == base


def test_a_password_is_sent_and_never_shown():
    address = ServerAddress.of("http://me:pass%20word@host:1/v1")
    assert address.login == ("me", "pass word") and address.shown == "http://host:1"
    assert "pass" not in repr(address) and "pass" not in str(address)


@pytest.mark.parametrize(
    "url", ["ftp://me:secret@host", "http://", "http://:80", "http://host:99999", "http://a b/", "://x", "http://[::1"]
)
def test_what_is_no_address_is_refused_in_one_line_without_a_password(url):
    with pytest.raises(TargetUnavailable, match="accepted: http://HOST:PORT") as refusal:
        ServerAddress.of(url)
    assert "secret" not in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost:8000/v1", "http://localhost:8000"),
        ("me:secret@gate.example", "http://gate.example"),
        ("http:localhost", "http://HOST:PORT or https://HOST"),
        ("two words", "http://HOST:PORT or https://HOST"),
        ("", "http://HOST:PORT or https://HOST"),
    ],
)
def test_an_address_without_a_scheme_is_shown_with_one(url, meant):
    with pytest.raises(TargetUnavailable) as refusal:
        ServerAddress.of(url)
    assert str(refusal.value) in (
        f"the address has no scheme; accepted: {meant}",
        f"the address cannot be read; accepted: {meant}",
    )


def test_an_url_is_told_from_a_target_of_ours():
    assert is_server_url("http://host") and is_server_url("ftp://host") and not is_server_url("engine")
