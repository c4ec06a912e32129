"""An address is split into what is sent and what may be shown."""

from __future__ import annotations

import pytest

from labs.servers.server_address import AddressError, ServerAddress, is_server_url

TORN = "an @ stands behind the host in the address: in a login / ? # are written %2F %3F %23"


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
    ("url", "told"),
    [
        ("ftp://me:secret@host", "no server can be reached by an address that begins ftp://"),
        ("ws://host?key=secret", "no server can be reached by an address that begins ws://"),
        ("://x", "no server can be reached by an address that begins ?://"),
        ("http://", "the address has no host"),
        ("http://:80", "the address has no host"),
        ("HTTPS:///v1?key=secret", "the address has no host"),
        ("http://me:secret@", "the address has no host"),
        ("http://a b/", "the host in the address is no name and no IP address"),
        ("http://me:secret@ho\x00st", "the host in the address is no name and no IP address"),
        ("http://host..example", "the host in the address is no name and no IP address"),
        ("http://%41", "the host in the address is no name and no IP address"),
        ("http://host:99999", "the port in the address is no number from 1 to 65535"),
        ("http://host:0", "the port in the address is no number from 1 to 65535"),
        ("http://[::1]:99999", "the port in the address is no number from 1 to 65535"),
        ("http://me:secret/word@host", "the port in the address is no number from 1 to 65535"),
        ("http://[::1", "the address cannot be read"),
        ("http://\udcff", "the address cannot be read"),
        ("http://me:12/secret@host:80", TORN),
        ("http://me:1#secret@host", TORN),
        ("http://me?secret@host", TORN),
    ],
)
def test_what_is_no_address_is_refused_in_one_line_without_a_password(url, told):
    with pytest.raises(AddressError) as refusal:
        ServerAddress.of(url)
    what, _, accepted = str(refusal.value).partition("; accepted: ")
    assert what == told and accepted.startswith("http://HOST:PORT or https://HOST") and "\n" not in accepted


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("localhost:8000/v1", "http://localhost:8000"),
        ("me:secret@gate.example", "http://gate.example"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("host/v1?key=secret", "http://host"),
        ("me:secret@", "http://HOST:PORT or https://HOST"),
        ("me:12/secret@host", "http://HOST:PORT or https://HOST"),
        ("http:localhost", "http://HOST:PORT or https://HOST"),
        ("http//localhost", "http://HOST:PORT or https://HOST"),
        ("two words", "http://HOST:PORT or https://HOST"),
        ("", "http://HOST:PORT or https://HOST"),
    ],
)
def test_an_address_without_a_scheme_is_shown_with_one(url, meant):
    with pytest.raises(AddressError) as refusal:
        ServerAddress.of(url)
    assert str(refusal.value) == f"the address has no scheme; accepted: {meant}"


def test_an_url_is_told_from_a_target_of_ours():
    assert all(is_server_url(one) for one in ("http://host", "ftp://host", "localhost:8000", "gate.example", "me@host"))
    assert not is_server_url("engine") and not is_server_url("gpu")
